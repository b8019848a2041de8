import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from pliant.cli.common import command
from tests import leftovers


@pytest.mark.parametrize("time", ["first", "second"])
def test_environment_and_signals_are_restored_after_each_test(time: str) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    command(lambda: None)()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert os.environ.pop("PATH")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def test_what_a_test_leaves_behind_is_named_and_undone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(leftovers, "DYING_S", 0.1)
    before, folder, end = leftovers.Surroundings.now(), Path.cwd(), threading.Event()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    proxy = weakref.proxy(set())  # all that is known is gone through, also what refers to nothing any more
    assert before.left_behind() == [f"process {child.pid}: {sys.executable} -c input()"]
    assert child.returncode == -signal.SIGKILL
    del proxy
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.chdir(tmp_path)
    assert before.left_behind() == ["a handler of SIGUSR1: 1", f"the working directory {tmp_path}"]
    assert (signal.getsignal(signal.SIGUSR1), Path.cwd()) == (handler, folder)
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    assert before.left_behind() == ["thread forgotten"]
    end.set()
    thread.join()
    assert before.left_behind() == []


def test_a_limit_that_a_test_leaves_behind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leftovers.Surroundings.now()
    now = {**before.limits, "RLIMIT_CPU": (60, 61)}
    monkeypatch.setattr(leftovers, "_limits", lambda: now)
    assert before.left_behind() == ["a limit RLIMIT_CPU: (60, 61)"]
