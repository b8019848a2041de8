"""Commands that cannot be carried out: the exit code, all that stderr says, and that nothing is written.

The texts are in tests/golden/messages/cli-test_refusals.json.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_events, write_jobs, write_profile
from tests.builders import cluster, job
from tests.cli.calling import call, sweep
from tests.tools.report.runs import first_come
from tests.tools.run.fake_nvml import install
from tests.tools.run.live_states import a_queue, live_state
from tests.tools.schedule.test_decide import PROFILE

FILES = "jobs.jsonl --cluster cluster.json"
FIFO = f"{FILES} --policy fifo"
REFUSED = {
    "schedule": f"""
        schedule --policy fifo
        schedule jobs.jsonl --policy fifo
        schedule {FIFO} --state s
        schedule {FILES}
        schedule {FILES} --policy nope
        schedule {FIFO} --param x
        schedule {FIFO} --param x=1
        schedule {FIFO} --param bakfill=1
        schedule {FILES} --policy shadow-price --param dwell_s=5x
        schedule {FIFO} --time-budget 1
        schedule {FILES} --policy ones --time-budget 0.05 --param time_budget_s=2
        schedule {FIFO} --now nan
        schedule {FIFO} --now -1
        schedule --now soon --policy fifo
        schedule --demand oracle --policy fifo
        schedule - --profile - --cluster cluster.json --policy fifo
        schedule none --cluster cluster.json --policy fifo
        schedule {FIFO} --profile none
        schedule --state none --policy fifo
        schedule cluster.json --cluster cluster.json --policy fifo
        schedule epochs.jsonl --cluster cluster.json --policy oasis
    """,
    "replay": f"""
        replay {FILES} --policy fifo,las
        replay {FILES} --policy fofi
        replay {FIFO} --param x=1
        replay {FIFO} --param fiffo.x=1
        replay {FIFO} --rescale-cost x
        replay {FIFO} --start-cost =5
        replay {FIFO} --interval -1
        replay {FIFO} --interval inf
        replay {FIFO} --interval nan
        replay {FIFO} --interval 1e-300
        replay --interval abc
        replay --mtbf 0
        replay --jobs-limit 0
        replay --progress sample
        replay {FIFO} --interference 1
        replay {FIFO} --interference nan
        replay {FIFO} --repair 2
        replay {FIFO} -o events.json
        replay {FIFO} -o jobs.jsonl/
        replay {FIFO} -o /dev/full
        replay {FIFO} --profile none.parquet
        replay {FIFO} --profile jobs.jsonl
        replay {FIFO} --shares label:
        replay {FIFO} --shares "label:a b"
        replay {FIFO} --shares nowhere.json
        replay jobs.jsonl --cluster jobs.jsonl --policy fifo
        replay epochs.jsonl --cluster cluster.json --policy fifo
        replay sweep.toml
        replay --policy fifo
        replay jobs.jsonl --policy fifo
        replay --intervl 5
        replay --zzz
    """,
    "sweep": """
        replay --recipe sweep.toml
        replay --recipe gone.toml -o out
        replay --recipe sweep.toml --policy fifo -o out
        replay --recipe s.toml --seed 0 -o out
        replay --recipe s.toml --param las.x=1 -o out
        replay --recipe s.toml --no-timing -o out
        replay --task 0 --jobs-limit 3 -o out
        replay --recipe s.toml --task 0 -o out
        replay --policy fifo --executor slurm-array
        replay --recipe s.toml --table 3f2a -o out
        replay --recipe s.toml --max-array-size 9 -o out
        replay --recipe sweep.toml -o jobs.jsonl
        replay --recipe sweep.toml -o jobs.jsonl/x
    """,
    "trace": """
        trace synth posson
        trace synth poisson --jobs 0
        trace synth poisson --gpus 1=x
        trace synth poisson --gpus 1=
        trace synth poisson --models net:x
        trace synth poisson --models =2
        trace synth poisson --elastic rubber
        trace import phily x
        trace import sacct x
    """,
    "submit": """
        submit jobs.jsonl --gpus 2 --state live
        submit jobs.jsonl --state live -- --epochs
        submit train.py --gpus 4-1 --state live
        submit train.py --epochs 3 --state live
        submit train.py --gpus 1,4,2 --state live
        submit train.py --after j00 --state live
        submit train.py --after j0:done --state live
        submit train.py --begin 2020-01-01 --state live
        submit train.py --begin soon --state live
        submit train.py --begin +2h --deadline +1h --state live
        submit train.py --array 5-1 --state live
        submit train.py --array 0-99999 --state live
        submit jobs.jsonl --state live --priority nan
    """,
    "state": """
        hold j0 --state nowhere
        hold --state live
        release j0 c --state live
        priority j0 high --state live
        status
        -q status
        status --state live --watch --every 1ms
        run --follow --state nowhere
        run --follow --state nowhere --cluster cluster.json --policy oasis-offline
        drain n0 --within 0.1 --state live
        run --demand oracle --policy fifo
        run --log-bytes 64XB
        run --log-bytes 64kB
        run cluster.json
        whatif --state live
        whatif --state live --cancel x
        whatif --state live --remove-node n7
        whatif --state live --add-nodes 0
        whatif --state live --add-nodes 1:a100
        whatif --state live --policy fofo
        whatif --state live --param a=1 --cancel j0
    """,
    "others": """
        report jobs.jsonl
        report -f tabel
        report x --completed-at 4,y
        profile cluster.json
        schema jbo
        policies shadow-prise
        policies qqq
        cluster discover --slots gpu
        cluster discover --slots tpu
        cluster discover -o missing/cluster.json
        cluster discover --partition gpu
        cluster discover --backend slurm --gres a100
        cluster discover --backend kubernetes
        cluster discover --backend slurm
        doctor --backend kubernetes
        doctor -f xml
        doctor extra
    """,
}


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_jobs([job("a", gpus=2, model="m"), job("b", gpus=3, model="m")], "jobs.jsonl")
    write_cluster(cluster(4), "cluster.json")
    (here / "epochs.jsonl").write_text('{"id": "a", "command": ["train.py"], "work": {"epochs": 3}}\n')
    (here / "train.py").touch()
    (here / "sweep.toml").write_text(sweep("fifo"))
    live_state(here / "live", a_queue(1), cluster(4, 4))
    install(monkeypatch)  # no GPU
    monkeypatch.setenv("PATH", "/nowhere")
    return here


def contents(folder: Path) -> dict[Path, bytes]:
    paths = [path for path in folder.rglob("*") if path.name != "lock"]
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


def answers(commands: Iterable[str], folder: Path) -> str:
    """What each command says; stdout stays empty and no file changes."""
    before = contents(folder)
    texts = []
    for command in commands:
        done = call(*shlex.split(command), columns=200)
        assert done.stdout == "", command
        assert done.stderr.startswith("pliant: "), command
        answer = re.sub(r"the \d+ that there are", "the ones that there are", done.stderr.rstrip())
        texts += [f"$ {command}", f"{done.exit_code} {answer}"]
    assert contents(folder) == before
    return "\n".join(texts)


@pytest.mark.parametrize("about", REFUSED)
def test_what_cannot_be_done_is_said(about: str, here: Path, golden_text: Callable[[str], None]) -> None:
    golden_text(answers(filter(None, map(str.strip, REFUSED[about].splitlines())), here))


SETTINGS = (
    'polcy = "fifo"',
    'state = "x"\npolicy = 3',
    "state = ",
    "[job]\n\ngpus = {requsted = 2}",
    '[job]\nid = "a"',
    "[parameters]\nx = 1",
)
RECIPES = (
    "interval = 1979-05-27",
    "interval = 07:32:00",
    "noise_scale = { a = [1, 1979-05-27T07:32:00Z] }",
    f"interval = {'9' * 5000}",
    f"interval = 0x{'f' * 5000}",
    f"interval = {'[' * 20_000}",
    'interval = "2 fortnights"',
    "interval = ",
)


def test_wrong_settings_and_recipes_name_their_line(here: Path, golden_text: Callable[[str], None]) -> None:
    texts = []
    for setting in SETTINGS:
        (here / "pliant.toml").write_text(f"{setting}\n")
        texts += [setting, answers(["status"], here)]
    (here / "pliant.toml").unlink()
    run = "replay --recipe sweep.toml -o out"
    for line in RECIPES:
        (here / "sweep.toml").write_text(sweep("fifo", more=line))
        texts += [line[:50], answers([run], here)]
    (here / "sweep.toml").write_text(sweep("fofi"))
    texts.append(answers([run], here))
    (here / "sweep.toml").write_bytes(sweep("fifo", more="interval = 'é'").encode("latin-1"))
    texts.append(answers([run], here))
    golden_text("\n".join(texts))


WORK = (
    "pliant.tools.profile.measuring.run.measure",
    "pliant.tools.replay.batch.replay_all",
    "pliant.tools.report.report.read_report",
    "pliant.tools.schedule.decide.decide",
    "pliant.tools.replay.synthetic.synthesize",
    "pliant.tools.replay.importers.run.SortedJobs",
)
"""What takes the time."""
UNWRITABLE = f"""
    profile jobs.jsonl -o folder
    profile jobs.jsonl -o gone/profile.parquet
    profile jobs.jsonl -o p.parquet --allreduce --allreduce-file gone/a.parquet
    profile jobs.jsonl --predict profile.parquet -o gone/x
    replay {FIFO} -o file/out.parquet
    replay {FIFO} -o file/out/
    report events.jsonl -o folder
    report events.jsonl -o gone/report.html
    report events.jsonl --figures file
    report events.jsonl --figures file/figures
    schedule {FIFO} -o gone/s.json
    trace synth poisson -o gone/jobs.jsonl
    trace import philly jobs.jsonl -o gone/jobs.jsonl
    trace import pollux folder -o file/out
"""


def test_a_place_that_cannot_be_written_ends_it_before_the_work(here: Path, monkeypatch, golden_text) -> None:
    shutil.rmtree("live")
    write_events(first_come(), "events.jsonl")
    write_profile(PROFILE, "profile.parquet")
    (here / "folder").mkdir()
    (here / "file").write_text("kept")

    def work(*_arguments: object, **_more: object) -> None:
        raise AssertionError("work is done whose product cannot be written")

    for name in WORK:
        monkeypatch.setattr(name, work)
    golden_text(answers(filter(None, map(str.strip, UNWRITABLE.splitlines())), here))
