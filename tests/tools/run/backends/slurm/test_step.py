import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.backends.slurm import step, task
from pliant.tools.run.backends.slurm.task import TooFewGpusError, address_towards, gpus_of, main, on_this_node
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS
from tests.tools.run.site import until

WHERE = {"SLURMD_NODENAME": "n1", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "7", "PATH": "/bin"}


def start(attempt: Path, *argv: str, gpus: str = "none") -> subprocess.Popen[bytes]:
    words = [sys.executable, "-I", "-S", step.__file__, str(attempt), "0", gpus, str(attempt), *argv]
    return subprocess.Popen(words, env={**os.environ, **WHERE})


def code(attempt: Path) -> int:
    return int((attempt / "exit-0").read_text())


def line_in(path: Path) -> str:
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


@pytest.mark.parametrize(
    ("given", "slots", "own"),
    [
        ("0,1,2,3", "1,3", "1,3"),
        ("4,5,6,7", "0", "4"),  # a part of a node whose devices keep their numbers
        ("0,1", "1", "1"),  # the same where they are numbered again
        ("MIG-1/0/0,MIG-1/1/0", "1", "MIG-1/1/0"),
        ("2,3", "slurm", "2,3"),
        ("0,1,2,3", "none", ""),
        ("NoDevFiles", "none", ""),
        (None, "2", "2"),  # Slurm knows of no GPUs: a slot is a number
    ],
)
def test_a_slot_is_a_place_in_slurms_list(given: str | None, slots: str, own: str) -> None:
    visible = {} if given is None else {"CUDA_VISIBLE_DEVICES": given, "ROCR_VISIBLE_DEVICES": given}
    result = step.environment({**WHERE, "SLURM_JWT": "token", **visible}, slots)
    assert result == {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": own}


def test_a_unit_that_lacks_its_gpu_ends_and_says_why(tmp_path, monkeypatch, capfd) -> None:
    for given in ("0,1", "NoDevFiles", ""):
        with pytest.raises(step.NoGpuError, match="slot 2 of n1 has no GPU: Slurm gives the step"):
            step.environment({**WHERE, "CUDA_VISIBLE_DEVICES": given}, "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert start(tmp_path, "true", gpus="1").wait() == 0
    assert capfd.readouterr().err == "pliant: slot 1 of n1 has no GPU: Slurm gives the step 0\n"
    assert code(tmp_path) == 1


def test_a_unit_runs_once_however_often_it_is_started(tmp_path: Path) -> None:
    append = ("sh", "-c", "echo ran >> said; exit 3")
    for _ in range(3):
        assert start(tmp_path, *append).wait() == 0
    assert (tmp_path / "said").read_text() == "ran\n"
    assert code(tmp_path) == 3


def test_an_order_ends_a_unit_with_its_own_signal(tmp_path: Path) -> None:
    script = "trap 'echo saved > saved; exit 0' TERM; echo up > up; while :; do sleep 0.05; done"
    supervisor = start(tmp_path, "sh", "-c", script)
    until((tmp_path / "up").exists)
    supervisor.terminate()  # as Slurm does, which sends it to all processes
    (tmp_path / "orders-0").write_text("term")
    supervisor.wait()
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert code(tmp_path) == 0


def test_a_notice_of_slurm_is_noted_and_ends_no_command(tmp_path: Path) -> None:
    """All processes of a step get it; of an unprepared one it would be the end."""
    supervisor = start(tmp_path, sys.executable, "-c", IGNORES)
    assert line_in(tmp_path / "up") == "1 SIG_IGN"
    (worker,) = psutil.Process(supervisor.pid).children()
    supervisor.send_signal(signal.SIGUSR1)
    worker.send_signal(signal.SIGUSR1)
    until((tmp_path / "unit-0.notice").exists)
    assert not (tmp_path / "unit-0.displaced").exists()
    (tmp_path / "end").touch()
    supervisor.wait()
    assert code(tmp_path) == 0


def test_a_signal_of_slurm_is_noted_and_an_order_is_not(tmp_path: Path) -> None:
    """The command gets the signal of Slurm too, as all processes of a step do."""
    supervisor = start(tmp_path, "sh", "-c", "trap 'exit 7' TERM; echo $$ > up; while :; do sleep 0.05; done")
    command = int(line_in(tmp_path / "up"))
    supervisor.terminate()
    until((tmp_path / "unit-0.displaced").exists)
    os.kill(command, signal.SIGTERM)
    supervisor.wait()
    assert code(tmp_path) == 7
    ordered = tmp_path / "ordered"
    ordered.mkdir()
    (ordered / "orders-0").write_text("term")
    start(ordered, "sh", "-c", f"echo ran > {tmp_path}/ran").wait()
    assert code(ordered) == -15
    assert not (ordered / "unit-0.displaced").exists()
    assert not (tmp_path / "ran").exists(), "it was to end before it was started"


IGNORES = """
import os, pathlib, signal, sys, time
pathlib.Path("up").write_text(f"{os.environ['PLIANT_NOTICES']} {signal.getsignal(signal.SIGUSR1).name}")
while not pathlib.Path("end").exists():
    time.sleep(0.02)
"""


def test_a_task_has_its_share_of_the_gpus() -> None:
    for given, local, wanted, own in (
        ("0,1,2", "0", 1, ["0"]),
        ("0,1,2", "2", 1, ["2"]),
        ("4,5", "1", 2, ["4", "5"]),
        ("MIG-1", "0", 1, ["MIG-1"]),
        ("0,1,2", "0", 2, ["0", "1"]),
        ("0,1", "0", 0, []),
    ):
        assert gpus_of({"CUDA_VISIBLE_DEVICES": given, "SLURM_LOCALID": local}, wanted=wanted) == own


def test_too_few_gpus_end_the_unit_with_the_reason(tmp_path, monkeypatch, capsys) -> None:
    with pytest.raises(TooFewGpusError, match="2 GPUs are needed, Slurm gives the task none"):
        gpus_of({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, wanted=2)
    unit = {"argv": ["true"], "cwd": "/", "env": {"CUDA_VISIBLE_DEVICES": "0,1"}}
    (tmp_path / "launch.json").write_text(json.dumps({"units": [unit]}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for number in ("3", "0"):
        assert synced == []
        monkeypatch.setenv("SLURM_PROCID", number)
        assert main([str(tmp_path)]) == 0
    assert (tmp_path / "exit-0").read_text() == "1\n"
    assert len(synced) == 1, "the code is on disk before it is seen, as that of every unit"
    assert "Slurm gives the task 3" in capsys.readouterr().err


def test_torchruns_that_meet_get_the_address_towards_the_first() -> None:
    meets = ["torchrun", "--nnodes=2", "--master-addr=127.0.0.1", "--local-addr=127.0.0.1", "--", "t.py"]
    assert on_this_node([*meets, "--master-addr=x"], "10.0.0.2", "10.0.0.1") == [
        *("torchrun", "--nnodes=2", "--master-addr=10.0.0.1", "--local-addr=10.0.0.2"),
        *("--", "t.py", "--master-addr=x"),
    ]
    alone = ["torchrun", "--nnodes=1", "--local-addr=127.0.0.1", "--", "t.py", "--master-addr=x"]
    assert on_this_node(alone, "10.0.0.2", "10.0.0.1") == alone
    assert on_this_node(meets, "", "10.0.0.1") == meets
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") == ""
    assert task.ENV_ADDRESS == ENV_ADDRESS
