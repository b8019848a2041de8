"""Many replays of one recipe: what they are named, what is made again, and arrays of Slurm."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.io import read_events, read_jobs, write_cluster, write_jobs
from pliant.tools.replay import batch
from pliant.tools.replay import sweep as sweeps
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.inputs import Inputs, Sources
from pliant.tools.replay.sweep_recipe import pliant_digest, read_sweep
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import read_recipe
from pliant.tools.schedule.policies.drl import SHIPPED
from tests.builders import cluster, job
from tests.tools.schedule.foreign import Foreign

JOBS = [job(f"j{n}", at=10.0 * n, low=1, high=4, gpu_seconds=100) for n in range(5)]
SWEEP = """
policies = ["fifo", "ares"]
rescale_cost = "5"
[[traces]]
name = "real"
jobs = "trace.jsonl"
[[traces]]
name = "made"
synth = "made.toml"
seeds = [1, 2]
[[clusters]]
name = "small"
path = "cluster.json"
[parameters.ares]
alpha = [0.5, 0.75]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep and its inputs."""
    write_jobs(JOBS, tmp_path / "trace.jsonl")
    write_cluster(cluster(2, 2), tmp_path / "cluster.json")
    (tmp_path / "made.toml").write_text('jobs = 4\n[gpus]\n1 = 1\n[[models]]\nname = "linear"\n')
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def tasks_of(folder: Path, *changes: tuple[str, str]) -> list[sweeps.SweepTask]:
    """The tasks of the sweep, whose recipe is changed where changes are named."""
    recipe, out = folder / "sweep.toml", folder / "out"
    if changes:
        text = SWEEP
        for old, new in changes:
            text = text.replace(old, new)
        recipe.write_text(text)
    out.mkdir(exist_ok=True)
    return sweeps.sweep_tasks(read_sweep(str(recipe)), out)


def test_names_hold_traces_policies_parameters_and_seeds(folder: Path) -> None:
    traces = ("real", "made-t1", "made-t2")
    runs = ("fifo", "ares-alpha0.5", "ares-alpha0.75")
    assert [task.name for task in tasks_of(folder)] == [f"{trace}-{run}" for trace in traces for run in runs]
    seeds = ('["fifo", "ares"]', '["fifo", "ares"]\nseeds = [3, 4]')
    more = ("[param", '[[clusters]]\nname = "large"\npath = "cluster.json"\n[param')
    names = [task.name for task in tasks_of(folder, seeds, more)]
    assert len(names) == 3 * 2 * 3 * 2
    assert names[:2] == ["real-small-fifo-s3", "real-small-fifo-s4"]
    assert "made-t2-large-ares-alpha0.75-s4" in names
    names = [task.name for task in tasks_of(folder, ('"real"', f'"{"r" * 110}"'))[:3]]
    assert [len(name) for name in names] == [100] * 3
    assert len(set(names)) == 3
    # A recipe keeps its own seed where the sweep names none.
    recipe = folder / "made.toml"
    recipe.write_text("seed = 7\n" + recipe.read_text())
    tasks_of(folder, ("seeds = [1, 2]\n", ""))
    alone = synthesize(read_recipe(str(recipe), {"seed": 7}))
    assert read_jobs(folder / "out" / "traces" / "made.jsonl") == alone


def with_networks(folder: Path, names: str) -> list[sweeps.SweepTask]:
    """The sweep with the policy drl, a network a replay."""
    policy = ('"fifo", "ares"', '"drl"'), ("parameters.ares", "parameters.drl")
    return tasks_of(folder, *policy, ("alpha = [0.5, 0.75]", f"network = [{names}]"))


def test_files_that_parameters_name_count_by_their_bytes(folder, monkeypatch) -> None:
    (folder / "nets").mkdir()
    shutil.copy(SHIPPED, folder / "nets" / "mine.json")
    monkeypatch.chdir("/")
    own, shipped = with_networks(folder, '"nets/mine.json", ""')[:2]
    assert (own.name, shipped.name) == ("real-drl-networkmine", "real-drl-network")
    assert own.parameters == {"network": str(folder / "nets" / "mine.json")}
    out = folder / "out"
    sweeps.carry_out(own, out)
    assert sweeps.is_finished(own, out)
    document = json.loads(SHIPPED.read_bytes())
    (folder / "nets" / "mine.json").write_text(json.dumps(document | {"command": "another"}))
    assert sweeps.outdated([tasks_of(folder)[0]], out) == {"the network": 1}
    with pytest.raises(BadInputError, match=r"sweep.toml: /policies/0: .*none.json: no such file"):
        with_networks(folder, '"none.json"')


def test_a_second_sweep_does_only_what_changed(folder: Path) -> None:
    tasks, out, seen = tasks_of(folder), folder / "out", list[tuple[int, int | None]]()
    assert sweeps.sweep(tasks, out, advance=lambda done, total: seen.append((done, total))) == []
    assert seen == [(n + 1, 9) for n in range(9)]
    assert all(
        sum(e.event == "finish" for e in read_events(sweeps.event_file(task, out))) > 3 for task in tasks
    )
    times = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert sweeps.sweep(tasks_of(folder), out) == []
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")} == times
    assert len(times) == 9
    assert sweeps.strangers(tasks, out) == []
    assert sweeps.strangers(tasks[1:], out) == ["real-fifo.parquet"]
    write_jobs(JOBS[:4], folder / "trace.jsonl")
    again = [task.name for task in tasks_of(folder) if not sweeps.is_finished(task, out)]
    assert again == ["real-fifo", "real-ares-alpha0.5", "real-ares-alpha0.75"]
    reasons = sweeps.outdated(tasks_of(folder, ('"5"', '"6"')), out)
    assert reasons == {"the jobs, the recipe's settings": 3, "the recipe's settings": 6}


def test_a_cost_taken_from_an_event_file_counts_by_its_bytes(folder: Path) -> None:
    measured, keys = folder / "measured.parquet", set[str]()
    assert "rescale_cost" not in tasks_of(folder)[1].made_from
    for task in tasks_of(folder)[:2]:
        sweeps.carry_out(task, folder / "out")
        measured.write_bytes(sweeps.event_file(task, folder / "out").read_bytes())
        keys.add(tasks_of(folder, ('"5"', '"measured.parquet"'))[1].made_from["rescale_cost"])
    assert len(keys) == 2


def test_one_failed_task_does_not_stop_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tasks_of(folder)[:3]
    tasks[1] = tasks[1].model_copy(update={"cluster": str(folder / "gone.json")})
    (failure,) = sweeps.sweep(tasks, folder / "out")
    assert (failure.name, failure.message) == ("real-ares-alpha0.5", f"{folder}/gone.json: no such file")
    assert [sweeps.is_finished(task, folder / "out") for task in tasks] == [True, False, True]

    def exhaust(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pliant.tools.replay.sweep.carry_out", exhaust)
    (folder / "other").mkdir()
    (failure,) = sweeps.sweep(tasks[:1], folder / "other")
    assert failure.message == "memory ran out: fewer --workers need less"


def test_a_task_comes_from_the_table_unless_its_input_changed(folder: Path) -> None:
    tasks, out = tasks_of(folder), folder / "out"
    sweeps.write_table(tasks, out)
    assert sweeps.read_table(out) == tasks
    sweeps.carry_out(sweeps.task_of(out, 4), out)
    assert [sweeps.is_finished(task, out) for task in tasks] == [n == 4 for n in range(9)]
    with pytest.raises(UsageError, match=r"--task 9: .* has 9 tasks, counted from 0"):
        sweeps.task_of(out, 9)
    write_jobs(JOBS[:4], folder / "trace.jsonl")
    with pytest.raises(BadInputError, match=r"tasks\.jsonl:3: real-ares-alpha0\.5: the jobs changed after"):
        sweeps.task_of(out, 1)
    assert sweeps.task_of(out, 4).name == "made-t1-ares-alpha0.5"


FOREIGN = """
from pliant.tools.schedule.policies.fifo import Fifo
from foreign_order import ORDER

class Mine(Fifo):
    name = "mine"
    order = ORDER
"""


def test_results_of_a_policy_whose_code_changed_are_made_again(folder, monkeypatch) -> None:
    """Another package brings the policy, in a module and one that it imports."""
    (folder / "foreign_order.py").write_text("ORDER = 1\n")
    (folder / "foreign_policy.py").write_text(FOREIGN)
    Foreign(folder, monkeypatch).offers("mine", "foreign_policy:Mine")
    (folder / "sweep.toml").write_text(SWEEP.replace('"ares"]', '"mine"]').partition("[parameters")[0])
    for module in ("foreign_policy", "foreign_order"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    out = folder / "out"
    for module in ("foreign_policy", "foreign_order"):
        assert sweeps.sweep(tasks_of(folder)[:2], out) == []
        assert [sweeps.is_finished(task, out) for task in tasks_of(folder)[:2]] == [True, True]
        with (folder / f"{module}.py").open("a") as code:
            code.write("# another rule\n")
        again = tasks_of(folder)[:2]
        assert [(task.policy, sweeps.is_finished(task, out)) for task in again] == [
            ("fifo", True),
            ("mine", False),
        ]
        assert sweeps.outdated(again, out) == {"the policy's code": 1}


def test_missing_results_and_those_of_another_pliant_are_made(folder, monkeypatch) -> None:
    task, out = tasks_of(folder)[0], folder / "out"
    sweeps.carry_out(task, out)
    assert sweeps.is_finished(task, out)
    key = out / sweeps.KEYS / f"{task.name}.key"
    kept = key.read_bytes()
    for damaged in (b"", b"3f2a", b'{"schema": "pliant.origin/2"}', b"\xff"):
        key.write_bytes(damaged)
        assert not sweeps.is_finished(task, out)
        assert sweeps.outdated([task], out) == {}
    key.write_bytes(kept)
    sweeps.event_file(task, out).unlink()
    assert not sweeps.is_finished(task, out)
    sweeps.carry_out(task, out)
    monkeypatch.setattr("pliant.tools.replay.sweep_recipe.pliant_digest", lambda: "another")
    task = tasks_of(folder)[0]
    assert not sweeps.is_finished(task, out)
    assert sweeps.outdated([task], out) == {"pliant itself": 1}


def test_a_sweep_says_how_jobs_train_and_how_nodes_fail(folder: Path) -> None:
    stated = 'progress = "goodput"\nnoise_scale = { linear = 100 }\nmtbf = 0.01\nrepair = 0.01\n'
    task, out = tasks_of(folder, (SWEEP, stated + SWEEP))[0], folder / "out"
    run = task.run()
    assert (run.conditions.progress, run.conditions.noise_scale) == ("goodput", {"linear": 100.0})
    assert (run.simulated.start_cost, run.simulated.rescale_cost) == (None, Cost(5))
    assert sweeps.sweep([task], out) == []
    assert any(event.event == "node_down" for event in read_events(sweeps.event_file(task, out)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "made"', 'name = "real"', '/traces: "real" is there twice'),
        ('jobs = "trace.jsonl"', "", r"/traces/0/jobs: expected exactly one of jobs and synth"),
        ("[parameters.ares]", "[parameters.las]", "/parameters/las: is not among the policies of this sweep"),
        ('rescale_cost = "5"', "rescale = 5", "/rescale: is not a field that this version knows"),
        ('rescale_cost = "5"', "interval = 1e-9", "/interval: 1e-09: expected 0, or"),
        ("alpha = [0.5, 0.75]", "alpha = []", "/parameters/ares/alpha"),
        ('["fifo", "ares"]', "[", "is neither TOML nor JSON"),
        ('"fifo"', '"fofi"', r'sweep\.toml: /policies/0: unknown policy "fofi"'),
    ],
)
def test_a_wrong_sweep_says_what_is_wrong(folder: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        tasks_of(folder, (old, new))


def test_forked_workers_share_what_was_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file that is gone after the parent has read it stops no worker."""
    if not batch.can_fork():
        pytest.skip("another thread runs here: workers are fresh processes")
    tasks = tasks_of(folder)[:3]
    read = Sources.read

    def read_once(sources: Sources) -> Inputs:
        try:
            return read(sources)
        finally:
            Path(sources.jobs).unlink()

    monkeypatch.setattr(Sources, "read", read_once)
    assert sweeps.sweep(tasks, folder / "out", workers=2) == []


def test_what_is_too_much_is_read_by_the_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tasks_of(folder)[:3]
    if batch.can_fork():  # where no other thread runs
        assert [each.jobs for each in sweeps._worth_sharing(tasks, 2)] == [tasks[0].sources().jobs]
    assert sweeps._worth_sharing(tasks, 4) == {}, "not all workers read it"
    for bound, most in (("_MOST_SHARED", 0), ("_SHARED_BYTES", 10), ("_SHARED_FILE_BYTES", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(sweeps, bound, most)
            assert sweeps._worth_sharing(tasks, 2) == {}
    monkeypatch.setattr(sweeps, "_MOST_SHARED", 0)
    assert sweeps.sweep(tasks, folder / "out", workers=2) == []


SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=pliant-sweep
#SBATCH --array=0-2,5,7-8%4
#SBATCH --output="/data/my sweep/.sweep/%a.log"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
exec python3 -m pliant.cli replay -o '/data/my sweep' --table 3f2a --task "$SLURM_ARRAY_TASK_ID"
"""


def scripts(folder: str, numbers: list[int], at_once: int | None = None, size: int = 1001) -> list[str]:
    program = ["python3", "-m", "pliant.cli"]
    return sweeps.array_scripts(folder, numbers, program, at_once, table="3f2a", size=size)


def test_an_array_names_its_tasks_limit_and_folder() -> None:
    assert scripts("/data/my sweep", [7, 0, 1, 2, 8, 5], at_once=4) == [SCRIPT]
    [script] = scripts("/data/50%", [3])  # a percent sign is no pattern, and Slurm limits what runs at once
    assert "--array=3\n" in script
    assert '--output="/data/50%%/.sweep/%a.log"' in script
    with pytest.raises(UsageError, match="sbatch cannot name this folder"):
        scripts('/data/"\n#SBATCH --x', [3])
    with pytest.raises(ServiceMissingError, match="MaxArraySize is 0"):
        scripts("/data", [1], size=0)


def test_a_sweep_too_long_for_one_array_becomes_several(tmp_path: Path) -> None:
    for numbers, more, arrays in (
        ([*range(1001)], {}, ["0-1000"]),
        ([*range(2005)], {"at_once": 8}, ["0-1000%8", "0-1000%8", "0-2%8"]),
        ([3, 17, 42], {"size": 10}, ["3", "7", "2"]),
    ):
        assert re.findall("--array=(.*)", "".join(scripts("/data", numbers, **more))) == arrays
    (_, second) = sweeps.array_scripts(str(tmp_path), [3, 17], ["echo"], None, table="3f2a", size=10)
    assert f'--output="{tmp_path}/.sweep/10+%a.log"' in second
    shown = subprocess.run(
        ["bash", "-c", second], env={"SLURM_ARRAY_TASK_ID": "7"}, capture_output=True, text=True, check=True
    )
    assert shown.stdout.endswith("--table 3f2a --task 17\n")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("reply", "size"),
    [
        ('printf "MaxArraySize            = 4001\\nMaxJobCount = 7\\n"', 4001),
        ('echo "slurm_load_ctl_conf error" >&2; exit 1', 1001),
        ('echo "MaxArraySize = many"', 1001),
    ],
)
def test_the_size_of_arrays_is_what_slurm_says(programs, monkeypatch, reply, size) -> None:
    programs("scontrol", reply)
    assert sweeps.array_size() == size
    monkeypatch.setenv("PATH", "")
    assert sweeps.array_size() == 1001, "without Slurm its usual size"


def test_scripts_are_written_anew_and_named_without_slurm(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    one, two = sweeps.write_scripts([SCRIPT, "second"], tmp_path)
    with pytest.raises(ServiceMissingError, match=f"no sbatch here: submit {one}, {two} where there is one"):
        sweeps.submit([one, two], in_turn=False)
    with pytest.raises(ServiceMissingError, match="each after the end of the one before it"):
        sweeps.submit([one, two], in_turn=True)
    assert (one.read_text(), two.read_text()) == (SCRIPT, "second")
    assert (tmp_path / ".sweep").is_dir()
    sweeps.write_scripts([SCRIPT, "second", "third"], tmp_path)
    assert sweeps.write_scripts([SCRIPT], tmp_path) == [tmp_path / "sweep.sbatch"]
    assert [path.name for path in tmp_path.glob("*.sbatch")] == ["sweep.sbatch"]


def test_arrays_are_submitted_in_turn_and_refusals_named(tmp_path, programs) -> None:
    calls = shlex.quote(str(tmp_path / "calls"))
    programs("sbatch", f'echo "$*" >> {calls}; wc -l < {calls}')
    paths = sweeps.write_scripts([SCRIPT, "second"], tmp_path)
    assert sweeps.submit(paths, in_turn=True) == ["1", "2"]
    assert sweeps.submit(paths, in_turn=False) == ["3", "4"]
    stated = ("", "--dependency=afterany:1 ", "", "")
    expected = [f"--parsable {words}{path}" for words, path in zip(stated, paths * 2, strict=True)]
    assert (tmp_path / "calls").read_text().splitlines() == expected
    programs("sbatch", 'case "$*" in *sweep-2*) echo "invalid partition" >&2; exit 1;; esac; echo "7;site"')
    paths = sweeps.write_scripts([SCRIPT, "second"], tmp_path)
    assert sweeps.submit(paths[:1], in_turn=True) == ["7"]
    with pytest.raises(ServiceMissingError, match=r"sweep-2.*: invalid partition \(submitted before it: 7\)"):
        sweeps.submit(paths, in_turn=False)


def test_the_digest_of_pliant_covers_the_code_that_a_replay_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr("pliant.tools.replay.sweep_recipe._digest", lambda files, _: seen.extend(files) or "")
    pliant_digest.__wrapped__()
    code = {"/".join(path.parts[-3:]) for path in seen}
    policies = {f"schedule/policies/{name}" for name in ("fifo.py", "drl_network.json")}
    assert {"replay/engine/engine.py", *policies} <= code
