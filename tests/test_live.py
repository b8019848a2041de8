"""Live runs from Python: what the commands do, to the end of real jobs."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import as_completed
from pathlib import Path

import pytest

import pliant
from pliant.schemas.errors import JobsFailedError, UsageError
from pliant.schemas.io import write_cluster
from tests.builders import cluster


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory with a loop, and scripts beside it."""
    monkeypatch.chdir(tmp_path)
    write_cluster(cluster(1, 1, slots="cpu"), "cluster.json")
    Path("good.py").write_text("import sys; print('hello', *sys.argv[1:])\n")
    Path("bad.py").write_text("raise SystemExit(7)\n")
    Path("slow.py").write_text("import time; time.sleep(600)\n")
    options = ("--follow", "--state", "live", "--policy", "fifo", "--cluster", "cluster.json")
    command = [sys.executable, "-m", "pliant.cli", "run", *options, "--retries", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as loop:
        yield tmp_path / "live"
        if left := pliant.cluster("live").jobs():
            left.cancel()
            left.wait(60)
        loop.send_signal(signal.SIGTERM)


def test_jobs_are_submitted_waited_for_read_and_cancelled(live: Path) -> None:
    good = pliant.submit(["good.py", "world"], state=live)
    bad, slow = pliant.submit("bad.py", state=live), pliant.submit("slow.py", state=live, user="ada")
    assert (good.ids, bad.ids, slow.ids) == (("good",), ("bad",), ("slow",))
    assert pliant.submit("good.py", state=live).ids == ("good-2",)
    futures = {job.future(): job.id for job in (good[0], bad[0])}
    ends = {futures[done]: done.exception() for done in as_completed(futures, timeout=120)}
    assert ends["good"] is None
    assert isinstance(ends["bad"], JobsFailedError)
    assert good.log().endswith("\nhello world\n")
    assert [end.phase for end in good.result()] == ["finished"]
    with pytest.raises(TimeoutError, match=r"not ended after 0\.1 s: slow"):
        slow.wait(0.1)
    run = pliant.cluster(live)
    assert "slow" in [job.id for job in run.jobs()]
    slow.cancel()
    assert (run.job("slow").wait(60).phase, slow[0].done(), slow[0].state) == ("cancelled", True, "cancelled")
    assert {job.id for job in run.jobs(ended=True)} == {"good", "good-2", "bad", "slow"}
    assert sum(each.node.gpus for each in run.nodes()) == 2


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLIANT_STATE", raising=False)
    with pytest.raises(UsageError, match="name the state directory: state=…, or PLIANT_STATE"):
        pliant.cluster()
    with pytest.raises(UsageError, match="gpus: fields are for a script"):
        pliant.submit([{"id": "a"}], state="nowhere", gpus=2)
