import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pliant.schemas.errors import JobsFailedError
from pliant.tools.profile.measuring import launch as launching
from pliant.tools.profile.measuring.launch import Script, environment, failure, launch
from pliant.tools.profile.measuring.request import ENV_PROFILE, LaunchOutcome, MeasurementRequest, Point
from pliant.tools.profile.torchrun.start import NO_STORE, RUN_TORCHRUN, standalone, torchrun, workers_of
from pliant.tools.run import progress
from tests.tools.run.site import until

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3\nKeyError: 7\n'


def test_the_command_and_environment_of_workers() -> None:
    assert torchrun(("train.py", "--depth", "3"), 2, standalone("127.0.0.1"), Path("logs")) == (
        *(sys.executable, "-P", RUN_TORCHRUN),
        *("--nnodes=1", "--rdzv-backend=one-node", "--rdzv-endpoint=none", "--rdzv-id=pliant"),
        *("--local-addr=127.0.0.1", "--nproc-per-node=2", "--max-restarts", "0"),
        *("--log-dir", "logs", "--redirects", "3", "--", "train.py", "--depth", "3"),
    )
    own = ("torchrun", "--nproc-per-node=gpu", "train.py")
    inside = ("podman", "run", "image", *torchrun(own, 3, (), Path("logs"), "python3", by_module=True))
    assert [workers_of(argv) for argv in (inside, own, ("torchrun", "--nproc-per-node=2", "x"))] == [3, 1, 1]
    # The environment of workers.
    script = Script("net", ("train.py",), env={"A": "1", "CUDA_VISIBLE_DEVICES": "0"}, slots="cpu")
    found = environment(script, Path("request.json"))
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert (found["A"], found[progress.ENV_PROFILE], found[ENV_PROFILE]) == ("1", *["request.json"] * 2)
    # GPU workers keep their threads and devices.
    found = environment(Script("net", ("train.py",), slots="gpu"), Path("request.json"))
    assert found == {"PYTHONUNBUFFERED": "1", **NO_STORE, ENV_PROFILE: "request.json"}


def test_a_failure_names_model_gang_and_batch_or_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(TRACE)
    outcome = LaunchOutcome(current=Point(local_batch=32))
    assert failure(Script("net", ()), 2, 1, outcome, tmp_path) == (
        'measuring model "net" on 2 workers: the script failed at local batch 32: KeyError: 7'
    )
    # A script without the library is named with what to do.
    text = failure(Script("net", ()), 1, 0, None, tmp_path)
    assert "ended without serving the measurement" in text
    assert "elastic.init()" in text


LOSES_ITS_WORKER = """
import os, pathlib, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(f"{worker.pid} {'RANK' in os.environ}")
os.kill(os.getpid(), 9)
"""


def test_a_worker_whose_torchrun_was_killed_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    argv = (sys.executable, "-c", LOSES_ITS_WORKER, str(tmp_path / "pid"))
    monkeypatch.setattr(launching, "torchrun", lambda *_: argv)
    with pytest.raises(JobsFailedError):
        launch(Script("net", ("train.py",)), 1, MeasurementRequest(result=""), lambda _: None)
    pid, foreign = (tmp_path / "pid").read_text().split()
    assert foreign == "False"
    until(lambda: is_gone(int(pid)))


def test_a_worker_changed_in_place_is_alone_without_torchrun(tmp_path: Path) -> None:
    own = Script("net", ("train.py",), str(tmp_path), by_torchrun=False)
    says = 'raise SystemExit("WORLD_SIZE is " + os.environ["WORLD_SIZE"] * ("MASTER_ADDR" not in os.environ))'
    for code, words in (
        (says, "WORLD_SIZE is 1"),
        ("os.kill(os.getpid(), 9)", "killed by signal 9, nothing on stderr"),
    ):
        (tmp_path / "train.py").write_text(f"import os\n{code}")
        with pytest.raises(JobsFailedError, match=f'"net" on 1 worker: the script failed: {words}$'):
            launch(own, 1, MeasurementRequest(result=""), lambda _: None)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


TWO_RANKS = """
import argparse, os, pathlib, psutil, time, torch, torch.distributed as dist
options = argparse.ArgumentParser(allow_abbrev=False)
options.add_argument("--n", type=int)
options.add_argument("--kill", type=int)
options = options.parse_args()
dist.init_process_group("gloo")
total = torch.tensor([options.n])
dist.all_reduce(total)
listens = [c.laddr for c in psutil.Process(os.getppid()).net_connections("inet") if c.status == "LISTEN"]
print(int(total), listens, flush=True)
done = pathlib.Path("logs/done")
if os.environ["RANK"] == "0":
    done.touch()
    time.sleep(600)
while not done.exists():
    time.sleep(0.01)
os.kill(os.getpid(), options.kill)
"""


@pytest.mark.torch
def test_torchrun_ends_as_the_worker_that_failed_first(tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    script.write_text(TWO_RANKS)
    command = (str(script), "--n", "128", "--kill", str(int(signal.SIGKILL)))
    argv = torchrun(command, 2, standalone("127.0.0.1"), tmp_path / "logs")
    env = {**os.environ, **NO_STORE, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.read_text() for path in tmp_path.rglob("stdout.log")] == ["256 []\n"] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.py", "logs"}


def test_a_relaunch_is_a_checkpoint_leaving_and_a_start() -> None:
    outcome = LaunchOutcome(done=True, first_step_s=105.0, left_s=200.0, checkpoint_s=0.5)
    ended = launching._timed(outcome, 100.0, 201.5)
    assert (ended.start_s, ended.relaunch_s) == (5.0, 0.5 + 1.5 + 5.0)
    assert launching._timed(outcome.model_copy(update={"checkpoint_s": None}), 100.0, 201.5).start_s is None
