import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pliant.tools.profile.torchrun.run_torchrun import run, stay_on_interface
from pliant.tools.profile.torchrun.start import NO_STORE, child_environment, standalone, torchrun
from pliant.tools.run.statedir.contract.plan import Plan, Progress
from tests.tools.run.site import until

pytestmark = pytest.mark.torch
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SEVERAL = ("--nnodes=2", "--node-rank=1", "--rdzv-backend=static", "--local-addr=10.0.0.2", "--", "train.py")
ONE = ("--nnodes=1", "--rdzv-backend=one-node", "--local-addr=10.0.0.2", "--", "--rdzv-backend", "static")


@pytest.fixture(autouse=True)
def _two_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "lo": [SimpleNamespace(address="127.0.0.1")],
        "eth0": [SimpleNamespace(address="192.168.0.2")],
        "ib0": [SimpleNamespace(address="fe80::1%ib0"), SimpleNamespace(address="10.0.0.2")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_on_several_nodes_workers_stay_on_interface_of_address(monkeypatch):
    stay_on_interface(SEVERAL)
    assert [os.environ[name] for name in VARIABLES] == ["ib0", "=ib0"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # what the job has chosen stays
    stay_on_interface(SEVERAL)
    assert [os.environ[name] for name in VARIABLES] == ["eth0", "=ib0"]


@pytest.mark.parametrize("words", [ONE, (*SEVERAL[:3], "--local-addr=10.0.0.3")])
def test_on_one_node_or_at_an_unknown_address_nothing_is_set(words: tuple[str, ...]) -> None:
    stay_on_interface(words)
    assert not os.environ.keys() & set(VARIABLES)


def test_the_loopback_interface_is_refused_on_several_nodes(monkeypatch, capsys):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    stay_on_interface(ONE)
    monkeypatch.setattr(sys, "argv", ["run_torchrun.py", *SEVERAL])
    assert run() == 1
    assert "unset it, or name the interface of 10.0.0.2" in capsys.readouterr().err


REPORTS = """
import pathlib, sys, time
from pliant.tools.run.progress import TrainingProgress

progress, step = TrainingProgress(), 0
pathlib.Path(f"listens-{progress.rank}").touch()
while True:
    time.sleep(0.01)
    step += 1
    if progress.step(step):
        progress.saved(step)
        sys.exit()
"""


def test_a_notice_reaches_workers_which_save_and_end_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REPORTS)
    plan = Plan(job="a", generation=1, attempt=1, members=())
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    (tmp_path / "stop").touch()
    report = tmp_path / "progress.json"
    paths = {"PLIANT_PROGRESS": str(report), "PLIANT_STOP": str(tmp_path / "stop")}
    argv = torchrun(("train.py",), 2, standalone("127.0.0.1"), tmp_path / "logs")
    env = child_environment(os.environ, {**NO_STORE, **paths})
    with subprocess.Popen(argv, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL) as process:
        until(lambda: report.exists() and all((tmp_path / f"listens-{rank}").exists() for rank in (0, 1)))
        process.send_signal(signal.SIGUSR1)
        assert process.wait() == 0
    found = Progress.model_validate_json(report.read_bytes())
    assert (found.ended, found.gpus) == ("stopped", 2)
    assert found.checkpoint is not None
    assert found.checkpoint.step == found.step == int((tmp_path / "stop").read_text())
