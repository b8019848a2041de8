import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.io import write_jobs
from pliant.schemas.job import ArrayPlace, Job
from pliant.schemas.quantities import read_ahead
from pliant.tools.run.service.submit import submit
from pliant.tools.run.service.submitter import active_python, of_submitter
from pliant.tools.run.statedir.directory import StateDir, account_name
from pliant.tools.run.statedir.requests import Spool
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.run.live_states import a_queue, live_state

SUBMIT = ("submit", "jobs.jsonl", "--state", "live")


@pytest.fixture
def here(here: Path) -> Path:
    (here / "train.py").write_text("print('hello')\n")
    return here


def test_a_missing_script_is_refused_without_no_check(here: Path):
    write_jobs([job("a", command=("train.py",)), job("b", command=("trian.py",))], "jobs.jsonl")
    refused = call(*SUBMIT, columns=200)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert f'job "b": no such script: {here}/trian.py (--no-check skips this check)' in refused.stderr
    assert "none of the 2 jobs was submitted:" in refused.stderr
    assert call("status", "--state", "live").exit_code == 2
    done = call(*SUBMIT, "--no-check")
    assert done.stdout == "a\nb\n"
    assert "train.py" not in done.stderr


def test_a_script_is_a_job_without_a_file(here: Path):
    options = ("--gpus", "1-4", "--batch", "128", "--priority", "2", "--dry-run", "--", "--epochs", "90")
    asked = dry_run(*options)
    assert asked.command == ("train.py", "--epochs", "90")
    assert (asked.id, asked.gpus.min, asked.gpus.max, asked.elastic) == ("train", 1, 4, "size")
    assert (asked.batch.size, asked.priority) == (128, 2)
    asked = dry_run("--gpu-type", "a100,h100", "--gpu-memory", "40GB", "--gpus", "2", "--dry-run")
    where = (asked.gpus.types, asked.gpus.memory, asked.gpus.requested)
    assert where == (("a100", "h100"), 40 * 10**9, 2)
    asked = dry_run("--gpus", "1,2,4", "--dry-run")
    assert (asked.gpus.sizes, asked.gpus.requested, asked.elastic) == ((1, 2, 4), 4, "size")


def test_a_script_that_is_submitted_again_gets_a_new_id(here: Path):
    printed = [call("submit", "train.py", "--state", "live").stdout for _ in range(3)]
    assert printed == ["train\n", "train-2\n", "train-3\n"]
    assert call("submit", "train.py", "--name", "train", "--state", "live").exit_code == 3


def test_what_a_dry_run_prints_can_be_submitted(here: Path):
    shown = call("submit", "train.py", "--gpus", "2", "--relaunch", "--dry-run").stdout
    (here / "jobs.jsonl").write_text(shown)
    assert '"resize":"relaunch"' in shown
    assert call(*SUBMIT).stdout == "train\n"


def test_the_command_line_goes_before_option_lines_of_a_script(here: Path):
    lines = ("--gpus 2 --env A=1  # two", "--env B=2 --name own")
    text = "\n\n".join(["#!/bin/bash", *(f"#PLIANT {line}" for line in lines), "echo", "#PLIANT --hold", ""])
    (here / "job.sh").write_text(text)

    def asked(*words: str, **more: Any) -> Job:
        shown = call("submit", "--dry-run", *words, **more)
        assert shown.exit_code == 0, shown.stderr
        return parse_jobs(shown.stdout.encode(), "shown")[0]

    found = asked("job.sh", "--env", "A=3", "--", "x")
    assert (found.id, found.gpus.requested, found.hold, found.command) == ("own", 2, False, ("job.sh", "x"))
    assert found.env == {"A": "3", "B": "2"}
    assert asked("job.sh", "--gpus", "1", "--name", "b").gpus.requested == 1
    assert asked("-", stdin=text.encode()).command == ("/bin/bash", "-c", text, "bash")
    assert asked("-", "--", "x", stdin=b"#!/usr/bin/env -S python3 -u\n").command == (
        *("python3", "-u", "-c", "#!/usr/bin/env -S python3 -u\n", "x"),
    )
    for line, message in (
        ("--gups 2", "job.sh:1: No such option"),
        ("2", 'job.sh:1: "2" is no option'),
        ("--hold x", 'job.sh:1: "x" is no option'),
    ):
        (here / "job.sh").write_text(f"#PLIANT {line}\n")
        refused = call("submit", "job.sh", "--dry-run")
        assert (refused.exit_code, message in refused.stderr) == (3, True)


def test_lines_that_look_like_options_and_are_none_are_named(here: Path):
    lines = ("#SBATCH -N 1", "#SBATCH -J a", "# pliant --gpus 2", "# pliant runs it", "ls", "#PLIANT --hold")
    (here / "job.sh").write_text("\n".join(["#!/bin/bash", *lines, ""]))
    shown = call("submit", "job.sh", "--dry-run", columns=200).stderr.splitlines()
    overlooked = [line.split(" is not read")[0] for line in shown if "is not read" in line]
    assert [line.removeprefix("pliant: ") for line in overlooked] == [
        *("job.sh:2: #SBATCH", "job.sh:4: # pliant", "job.sh:7: #PLIANT"),
    ]


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (("job.sh",), b"#!/bin/bash\r\nls\r\n", "job.sh:1: its lines end as on Windows, which sed"),
        (("./job",), b"#!/usr/bin/perl\r\n", "job:1: its lines end as on Windows"),
        (("-",), b"#!/bin/bash\r\nls\r\n", "<stdin>:1: its lines end as on Windows"),
        (("job",), b"\xef\xbb\xbf#!/bin/sh\n", "job:1: begins with a byte order mark"),
        (("job",), b"#!/usr/bin/env -S nosuch -x\n", "job:1: is for nosuch, which is not there"),
        (("job.sh",), b"#!/opt/nosuch\n", "job.sh:1: is for /opt/nosuch, which is not there"),
        (("job",), b"echo\n", "job: is neither jobs, which begin with {, nor a script"),
        (("-",), b"echo\n", "<stdin>: is neither jobs"),
        (("-",), b"#!/bin/sh\n# \xe9\n", "<stdin>:2: is not UTF-8"),
        (("-",), b"#!/usr/bin/perl\n", "<stdin>: a script from stdin is for sh"),
        (("python job.sh",), b"", "a command for a shell: pliant submit bash -- -c 'python"),
        (("A=1", "--", "./job"), b"", "a command for a shell: pliant submit bash -- -c 'A=1 ./job'"),
        (("bash", "--", "nosuch.sh"), b"", "no such script"),
        (("env", "--", "A=1", "./nosuch"), b"", "./nosuch is not there or not executable"),
    ],
)
def test_a_script_that_would_not_run_is_refused_in_one_line(here: Path, words, text: bytes, message: str):
    name = words[0].removeprefix("./")
    if text and name != "-":
        (here / name).write_bytes(text)
        (here / name).chmod(0o755)
    refused = call("submit", "--state", "live", *words, stdin=text, columns=400)
    assert (refused.exit_code, refused.stdout) == (3, "")
    [line] = [line for line in refused.stderr.splitlines() if "one process" not in line]
    assert message in line


def test_a_sign_of_a_shell_in_a_command_is_named(here: Path):
    (here / "jobs.jsonl").write_text('{"id":"a","gpus":{"requested":1},"command":["echo","1","|","cat"]}\n')
    assert 'no shell reads "|" in its command' in call(*SUBMIT).stderr


def test_what_would_do_nothing_is_said(here: Path):
    (here / "none.jsonl").write_text('{"schema":"pliant.job/1"}\n')
    assert "no job came in" in call("submit", "none.jsonl", "--state", "live").stderr
    refused = call("submit", "train.py", "--gpu-type", "a100,", "--state", "live")
    assert (refused.exit_code, "expected GPU types, as a100" in refused.stderr) == (2, True)
    (here / "job.sh").write_text("echo\n")
    refused = call("submit", "job.sh", "--torchrun", "--gpus", "2", "--state", "live")
    assert (refused.exit_code, "is a script for a shell" in refused.stderr) == (3, True)


def test_a_job_takes_a_small_environment_along_and_hides_secrets(here: Path, monkeypatch: pytest.MonkeyPatch):
    python = here / "own" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")
    for name, value in {
        "TOKEN": "hush",
        "OTHER": "1",
        "LC_ALL": "C",
        "VIRTUAL_ENV": str(here / "own"),
    }.items():
        monkeypatch.setenv(name, value)
    assert call("submit", "train.py", "--env", "X=y", "--secret", "TOKEN", "--state", "live").exit_code == 0
    job = submitted(here)["train"]
    assert job.python == str(python)
    (here / "own" / "pyvenv.cfg").touch()
    (here / "own.py").write_text(f"#!{python}\nprint()\n")
    assert of_submitter(Job(id="a", command=("own.py",)), {}).python == str(python)
    on_path = {"PATH": f"{python.parent}:/bin"}
    assert (active_python(on_path), active_python({"PATH": "/bin"})) == (str(python), None)
    for name, folder in (("VIRTUAL_ENV", here), ("CONDA_PREFIX", here / "gone")):
        with pytest.raises(UsageError, match=f"{name}: .* is not there: unset it, or name a Python"):
            active_python({name: str(folder)})
        program = Job(id="a", command=("bash", "own.sh"), launcher="program")
        assert of_submitter(program, {name: str(folder)}).python is None
    assert {"X": "y", "LC_ALL": "C", "PATH": os.environ["PATH"]}.items() <= job.env.items()
    assert not {"TOKEN", "OTHER"} & job.env.keys()
    kept = here / "live" / "jobs" / "train" / "secrets.json"
    assert (json.loads(kept.read_text()), kept.stat().st_mode & 0o777) == ({"TOKEN": "hush"}, 0o600)
    assert [path for path in here.rglob("*") if path.is_file() and b"hush" in path.read_bytes()] == [kept]
    for _ in range(2):  # without a run a cancelled job leaves nothing, and its id is free
        assert (
            call("submit", "train.py", "--secret", "TOKEN", "--name", "sec", "--state", "live").exit_code == 0
        )
        assert call("cancel", "sec", "--state", "live").exit_code == 0
    assert not (here / "live" / "jobs" / "sec").exists()
    hides = ("submit", "train.py", "--env", "all", "--secret", "TOKEN", "--name", "b")
    assert "hush" not in call(*hides, "--dry-run").stdout
    call(*hides, "--state", "live")
    assert (submitted(here)["b"].env["OTHER"], "TOKEN" in submitted(here)["b"].env) == ("1", False)
    for wrong in (("--env", "GONE"), ("--env", "1=2"), ("--secret", "GONE"), ("--secret", "TOKEN=x")):
        assert call("submit", "train.py", *wrong, "--state", "live").exit_code == 2


def dry_run(*words: str) -> Job:
    shown = call("submit", "train.py", *words)
    assert (shown.exit_code, Path("live").exists()) == (0, False)
    [result] = parse_jobs(shown.stdout.encode(), "shown")
    return result


def submitted(here: Path) -> dict[str, Any]:
    requests = Spool(StateDir(here / "live")).requests()
    return {job.id: job for request in requests for job in request.jobs}


def test_arrays_and_files_of_jobs_with_times_and_a_hold(here: Path) -> None:
    assert call("submit", "train.py", "--array", "0-4:2,7%2", "--state", "live").stdout.split() == [
        *("train-0", "train-2", "train-4", "train-7")
    ]
    assert (
        call("submit", "train.py", "--name", "sum", "--after", "train:any", "--state", "live").exit_code == 0
    )
    assert call("submit", "train.py", "--array", "0", "--state", "live").stdout == "train-2-0\n"
    result = submitted(here)
    assert result["train-7"].array == ArrayPlace(name="train", index=7, limit=2)
    assert result["sum"].after == dict.fromkeys(("train-0", "train-2", "train-4", "train-7"), "any")
    # Jobs of a file are given times and a hold.
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    before = time.time()
    assert call(*SUBMIT, "--begin", "+2h", "--deadline", "12h", "--hold").exit_code == 0
    result = submitted(here)["a"]
    assert 7200 <= result.submit_time - before < 7300
    assert (result.utility.shape, result.utility.target, result.hold) == ("step", pytest.approx(36000), True)


def test_an_array_of_lines_and_its_limit_of_failures(here: Path) -> None:
    (here / "lines.txt").write_text("lr=1\n\n lr=2 x\n")
    options = ("--array", "@lines.txt%1", "--max-failures", "0", "--env", "A=1", "--name", "s")
    assert call("submit", "train.py", *options, "--state", "live").stdout.split() == ["s-1", "s-3"]
    last = submitted(here)["s-3"]
    assert (last.env["PLIANT_ARRAY_LINE"], last.env["A"]) == (" lr=2 x", "1")
    assert last.array == ArrayPlace(name="s", index=3, limit=1, max_failures=0)
    assert call("submit", "train.py", "--max-failures", "0", "--state", "live").exit_code == 2
    assert call("submit", "train.py", "--array", "@gone", "--state", "live").exit_code == 3


def test_times_ahead_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    now_s = datetime(2026, 11, 23, 20, 30, tzinfo=UTC).timestamp()  # 21:30 there
    wanted = {"22:00": 1800, "21:00": 23.5 * 3600, "+2h": 7200, "90": 90, "2026-11-24T06:00": 8.5 * 3600}
    try:
        assert {text: read_ahead(text, now_s) - now_s for text in wanted} == wanted
    finally:
        monkeypatch.undo()
        time.tzset()


NODES = cluster(4, 4)


def asked(*words: str) -> dict:
    return json.loads(call("whatif", "--state", "live", "--json", *words).stdout)


def test_more_nodes_shorten_the_queue_and_nothing_is_written(here: Path):
    state = live_state(here / "live", a_queue(6, (10_000.0,)), NODES)
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
    result = asked("--add-nodes", "1")
    jobs = {each["job"]: each for each in result["jobs"]}
    assert jobs["j0"]["now"]["gpus"] == 4
    assert (jobs["j0"]["delay_seconds"], jobs["j2"]["delay_seconds"]) == (0.0, pytest.approx(-9900, abs=60))
    assert result["mean_jct_seconds"]["then"] < result["mean_jct_seconds"]["now"]
    assert result["errors"]["starts"]["reason"].startswith("no ranges of starts: 0 of 5 past predictions")
    text = call("whatif", "--state", "live", "--add-nodes", "1:gpu")
    assert "and 3 jobs that it does not change (--all shows them)" in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


def test_another_cluster_file_is_taken_as_by_a_reload(here: Path):
    """Node n0, on which j0 runs, goes, and two come: j0 runs on the next one at once, and j1, too."""
    live_state(here / "live", a_queue(6, (10_000.0,)), NODES)
    nodes = [{"name": name, "gpus": 4} for name in ("n1", "n2", "n3")]
    (here / "other.json").write_text(json.dumps({"nodes": nodes}))
    fewer = {**NODES.model_dump(mode="json", by_alias=True, exclude_defaults=True), "nodes": nodes[:1]}
    (here / "fewer.json").write_text(json.dumps(fewer))
    more, less = asked("--cluster", "other.json"), asked("--cluster", "fewer.json")
    assert more["mean_jct_seconds"]["then"] < more["mean_jct_seconds"]["now"]
    assert less["mean_jct_seconds"]["then"] > less["mean_jct_seconds"]["now"]
    (here / "cpus.json").write_text(json.dumps({"nodes": nodes, "slots": "cpu"}))
    wrong = call("whatif", "--state", "live", "--cluster", "cpus.json")
    assert (wrong.exit_code, "cpus.json: /slots" in wrong.stderr) == (2, True), wrong.stderr


def test_a_cancelled_job_cancels_those_that_wait_for_it(here: Path):
    later = job("later", gpus=4, gpu_seconds=400, after={"j0": "ok"})
    live_state(here / "live", [*a_queue(3, (10_000.0,)), later], NODES)
    jobs = {each["job"]: each for each in asked("--cancel", "j0")["jobs"]}
    assert jobs["j2"]["delay_seconds"] == pytest.approx(-9900, abs=60)
    assert (jobs["later"]["now"]["end"], jobs["later"]["then"]["end"]) == ("finished", "cancelled")


def test_without_a_node_its_job_waits(here: Path):
    live_state(here / "live", a_queue(3, (10_000.0,)), NODES)
    jobs = {each["job"]: each for each in asked("--remove-node", "n0")["jobs"]}
    assert jobs["j0"]["delay_seconds"] + jobs["j1"]["delay_seconds"] > 9000
    assert [jobs["j0"][case]["lost_gpu_hours"] > 0 for case in ("now", "then")] == [False, True]
    assert "job j0 loses" in call("drain", "n0", "--now", "--state", "live").stderr
    assert call("whatif", "--state", "live", "--policy", "fair-share").exit_code == 0


def test_ranges_come_from_what_earlier_predictions_were_worth(here: Path):
    live_state(here / "live", a_queue(30, (100.0, 300.0, 4000.0)), NODES, ago_s=5020, lasted_s=5000)
    result = asked("--add-nodes", "1")
    assert result["errors"]["starts"]["comparisons"] >= 5
    assert result["errors"]["starts"]["low"] == pytest.approx(1.0, abs=0.05)
    waiting = [each["then"] for each in result["jobs"] if each["now"]["starts"]]
    assert all(each["starts_between"] for each in waiting)


def test_a_dry_run_predicts_starts_and_delays(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    live_state(here / "live", a_queue(3, (10_000.0,)), NODES)
    fields = {"command": ("train.py",), "gpus": 4, "gpu_seconds": 4000}
    write_jobs([job("new", **fields)], "jobs.jsonl")
    message = call("submit", "jobs.jsonl", "--dry-run", "--state", "live", columns=200)
    assert '"id":"new"' in message.stdout
    assert "new: would start in 2 h 45 min on 4 GPUs, and end in 3 h 2 min" in message.stderr
    assert "no job would be delayed" in message.stderr
    live_state(here / "free", a_queue(1), NODES)
    silent = call("submit", "train.py", "--gpus", "4", "--dry-run", "--state", "free", columns=200)
    assert "train: would start now on 4 GPUs; its end is not known: its work is not known" in silent.stderr
    live_state(here / "full", [job("a", gpus=8)], NODES)
    late = call("submit", "train.py", "--dry-run", "--state", "full", columns=200)
    assert "train: no start is predicted: it waits for jobs of unknown end" in late.stderr
    write_jobs([job("new", priority=5.0, **fields)], "jobs.jsonl")
    live_state(here / "other", a_queue(3, (10_000.0,)), NODES, policy="fair-share")
    early = call("submit", "jobs.jsonl", "--dry-run", "--state", "other", columns=200)
    assert "delayed" in early.stderr
    assert not (here / "live" / "spool").exists() or not list((here / "live" / "spool").glob("*.jsonl"))


def test_a_dry_run_refuses_and_may_have_no_prediction(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    live_state(here / "live", a_queue(1), NODES)
    big = call("submit", "train.py", "--gpus", "9", "--dry-run", "--state", "live", columns=200)
    assert (big.exit_code, "needs 9 GPUs, the cluster has 8" in big.stderr) == (3, True)
    empty = call("submit", "train.py", "--dry-run", "--state", "empty", columns=200)
    assert (empty.exit_code, (here / "empty").exists()) == (0, False)
    assert "no run has begun in empty: nothing can be predicted" in empty.stderr
    submit(here / "empty", [job("a", command=("train.py",))], "jobs", folder=here, now_s=0.0)
    none = call("whatif", "--state", "empty", "--add-nodes", "1")
    assert (none.exit_code, "there is nothing to predict from" in none.stderr) == (2, True)


def test_status_leaves_out_what_ended_a_day_ago_unless_asked(here: Path) -> None:
    state = str(live_state(here / "st", a_queue(2, (100.0, 90_000.0)), cluster(4), lasted_s=100_000.0))
    usual, every = (call("status", "--state", state, *more).stdout for more in ((), ("--all",)))
    assert ("j0" in usual, "j1" in usual, "1 job ended more than a day before: --all" in usual) == (
        *(False, True, True),
    )
    assert ("j0" in every, "--all" in every) == (True, False)
    me = account_name(os.geteuid())
    for chosen in (("-f", "json"), ("--state-is", "finished"), ("--job", "j*"), ("j[01]",), ("--user", me)):
        assert "j0" in call("status", "--state", state, *chosen).stdout
    assert "j0" not in call("status", "--state", state, "--user", "somebody-else").stdout
