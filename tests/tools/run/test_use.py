"""What jobs use of their slots, as the keepers of their processes see it, and the rule about idle ones."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from pliant.schemas.cluster import IdleRule, StragglerRule
from pliant.schemas.io import write_cluster
from pliant.tools.run.backends import use as measuring
from pliant.tools.run.backends.use import GpuMeter, TreeMeter
from pliant.tools.run.service import rules
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.rules import IdleWatch, StragglerWatch
from pliant.tools.run.service.run import run_and_follow
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.presence import UnitUse, use_of
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.job_page import job_page
from pliant.tools.run.watch.job_status import status_of
from pliant.tools.run.watch.status import Watcher
from pliant.tools.run.watch.top import UseMeter
from tests.tools.run.site import Site, until
from tests.tools.run.test_follow import Step, ask, begin, end_all, nothing, phase, story, trains

BURNS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[psutil.Process]:
    """A process that sleeps; its child uses a CPU."""
    with subprocess.Popen([sys.executable, "-c", BURNS]) as process:
        until(lambda: psutil.Process(process.pid).children())
        (child,) = psutil.Process(process.pid).children()
        yield child
        child.kill()
        process.kill()


def test_the_whole_tree_is_measured_and_what_has_ended_still_counts(
    tmp_path: Path, family: psutil.Process
) -> None:
    attempt = AttemptDir(tmp_path)
    meter = TreeMeter(str(attempt.use(0)))
    began_s = time.monotonic()
    meter.look()
    assert use_of(attempt, [0]) is None, "one look shows no speed"

    def used_s() -> float:
        meter.look()
        found = use_of(attempt, [0])
        return 0.0 if found is None else found.cpus * (time.monotonic() - began_s)

    until(lambda: used_s() > 0.3)
    before = used_s()
    family.kill()
    until(lambda: family.status() == psutil.STATUS_ZOMBIE)
    assert used_s() >= before - 0.1
    found = use_of(attempt, [0])
    assert found is not None
    assert found.memory > 1 << 20
    assert (found.gpus, found.gpu_memory) == (None, None)


class Driver:
    """A stand-in for the library of NVML: it fills what it is pointed at."""

    def __init__(self, *busy: int, lost: int = 0) -> None:
        self._busy, self._lost = busy, lost

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0 if index.value < len(self._busy) else 2

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = int(uuid.removeprefix(b"GPU-")) + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu = self._busy[handle.value - 1]
        return self._lost

    def nvmlDeviceGetMemoryInfo(self, _handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.used = 1 << 30
        return 0


@pytest.mark.parametrize(
    ("names", "driver", "found"),
    [
        (["0", "1"], Driver(50, 100), (1.5, 2 << 30)),
        (["GPU-1"], Driver(50, 100), (1.0, 1 << 30)),
        (["0", "7"], Driver(50, 100), (None, None)),  # one is unknown: half the truth would look idle
        (["0"], Driver(50, lost=15), (None, None)),
        ([], Driver(50), (None, None)),
    ],
)
def test_gpus_are_asked_through_nvml(
    names: list[str], driver: Driver, found: tuple[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(**{**vars(ctypes), "CDLL": lambda _name: driver})
    monkeypatch.setattr(measuring, "ctypes", fake)
    assert GpuMeter(names).look() == found


def test_without_a_driver_nothing_is_said_of_gpus() -> None:
    assert GpuMeter(["0"], "libno-such-driver.so.1").look() == (None, None)


@pytest.mark.parametrize(
    "said", [b"", b"{", b"[]", b'{"cpus": -1}', b'{"cpus": 1e999, "memory": 1, "gpus": null}', b"9" * 9999]
)
def test_what_makes_no_sense_is_not_known(tmp_path: Path, said: bytes) -> None:
    attempt = AttemptDir(tmp_path)
    attempt.use(0).write_bytes(said)
    assert use_of(attempt, [0]) is None
    attempt.use(0).unlink()
    os.mkfifo(attempt.use(0))
    assert use_of(attempt, [0]) is None


def test_half_of_the_slots_busy_is_half() -> None:
    assert UnitUse(1.0, 1).of_slots(2, gpus=False) == 0.5
    assert UnitUse(1.0, 1, gpus=0.5).of_slots(2, gpus=True) == 0.25
    assert UnitUse(1.0, 1).of_slots(2, gpus=True) is None


def test_a_job_is_idle_after_the_whole_time_without_a_break_and_named_once() -> None:
    watch = IdleWatch(IdleRule(below=0.1, for_seconds=60.0))

    def named(now_s: float, **used: float | None) -> list[tuple[str, float]]:
        return [(found.job_id, found.for_s) for found in watch.look(used, now_s)]

    assert named(0.0, a=0.0, b=0.05, c=None) == []
    assert named(50.0, a=0.5, b=0.02, c=None) == []
    assert named(60.0, a=0.0, b=0.0, c=None) == [("b", 60.0)]
    assert named(70.0, a=0.0, b=0.0, c=None) == []
    assert named(110.0, a=0.0, b=0.3, c=None) == [("b", 0.0)], "busy again; a began to count at 60"
    assert named(120.0, a=0.0) == [("a", 60.0)]


def test_the_most_that_an_idle_job_used_is_told() -> None:
    watch = IdleWatch(IdleRule(below=0.1, for_seconds=60.0))
    assert [watch.look({"a": used}, now_s) for used, now_s in ((0.01, 0.0), (0.07, 30.0))] == [[], []]
    (found,) = watch.look({"a": 0.02}, 60.0)
    assert found.words == "it has used 7 % of its slots or less for 1 min"


@pytest.mark.parametrize(
    ("watch", "seconds"),
    [
        (IdleWatch(IdleRule(below=0.1, for_seconds=60.0)), 10.0),
        (StragglerWatch(StragglerRule(slower=1.5, for_seconds=60.0)), 5.0),
    ],
)
def test_the_rules_are_looked_at_from_the_first_turn_on_and_not_in_each(
    watch: IdleWatch | StragglerWatch, seconds: float
) -> None:
    turns = (100.0, 100.0 + seconds - 0.1, 100.0 + seconds, 101.0 + seconds)
    assert [watch.is_due(now_s) for now_s in turns] == [True, False, True, False]


def test_a_job_that_runs_elsewhere_than_before_is_idle_after_the_whole_time_there() -> None:
    """The log has forgotten by then that it was: it is named again."""
    watch = IdleWatch(IdleRule(below=0.1, for_seconds=60.0))

    def named(now_s: float, **where: str) -> list[tuple[str, float]]:
        found = watch.look(dict.fromkeys(where, 0.0), now_s, where)
        return [(each.job_id, each.for_s) for each in found]

    assert named(0.0, a="n0", b="n1", c="n2") == []
    assert named(50.0, a="n0", b="n2", c="n2") == []
    assert named(60.0, a="n0", b="n2", c="n2") == [("a", 60.0), ("c", 60.0)]
    assert named(70.0, a="n1", b="n2", c="n2") == []
    assert named(110.0, a="n1", b="n2", c="n2") == [("b", 60.0)]
    assert named(130.0, a="n1", b="n2", c="n2") == [("a", 60.0)]


@pytest.mark.parametrize("wrong", [{"below": 0.0}, {"below": 1.5}, {"for_seconds": 0.0}, {"then": "kill"}])
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        IdleRule.model_validate({"below": 0.1, "for_seconds": 60.0, **wrong})


def follow_with_a_rule(site: Site, monkeypatch: pytest.MonkeyPatch, then: str, *steps: Step) -> None:
    """A run in which every job is idle."""
    monkeypatch.setattr(rules, "IDLE_LOOK_S", 0.05)
    monkeypatch.setattr(Executor, "used", lambda self: dict.fromkeys(self.gangs, 0.01))
    rule = IdleRule.model_validate({"below": 0.1, "for_seconds": 0.3, "then": then})
    site.cluster = site.cluster.model_copy(update={"idle": rule})
    write_cluster(site.cluster, site.folder / "cluster.json")
    assert '"pliant.cluster/1.3"' in (site.folder / "cluster.json").read_text()
    run_and_follow(begin(site), story((nothing, lambda: ask(site, "a", samples=1e6, high=2)), *steps))


def why(site: Site) -> str:
    found = Watcher(site.state).look()
    job = status_of(found, "a", found.log.last_s)
    return "" if job is None else job.why


@pytest.mark.usefixtures("plain_python")
def test_an_idle_job_is_named_and_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def idles(log: RunLog) -> bool:
        return trains("a")(log) and log.jobs["a"].idle is not None

    follow_with_a_rule(site, monkeypatch, "warn", (idles, lambda: said.append(why(site))))
    assert said[0].startswith("idle: 1 % of its slots used, as of ")
    warnings = [str((event.detail or {}).get("warning", "")) for event in site.events()]
    assert sum(text.startswith("it has used 1 % of its slots or less for ") for text in warnings) == 1
    assert site.story() == ["submit a", "start a 2"]
    end_all(site, "a")


@pytest.mark.usefixtures("plain_python")
def test_an_idle_job_gives_up_what_it_can_and_does_not_grow_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrunk(log: RunLog) -> bool:
        return trains("a")(log) and log.jobs["a"].gpus == 1

    later: list[Callable[[RunLog], bool]] = [lambda log: log.jobs["a"].idle is not None]
    follow_with_a_rule(site, monkeypatch, "shrink", (shrunk, int), (later[0], int))
    assert site.story() == ["submit a", "start a 2", "shrink a 1"]
    assert "shrunk by the rule about idle jobs: it has used 1 % of its slots or less for " in why(site)
    end_all(site, "a")


@pytest.mark.usefixtures("plain_python")
def test_an_idle_job_saves_and_is_ended_with_the_reason(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_with_a_rule(site, monkeypatch, "end", (phase("a", "cancelled"), int))
    assert site.story() == ["submit a", "start a 2", "cancel a 0"]
    assert why(site).startswith("ended by the rule about idle jobs: it has used 1 % of its slots")
    end_all(site)
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0


@pytest.mark.usefixtures("plain_python")
def test_top_shows_what_a_running_job_uses(site: Site) -> None:
    seen: list[float] = []

    pages: list[str] = []

    def measured(_log: RunLog) -> bool:
        _, uses = UseMeter(site.state).look()
        seen.extend(use.busy for use in uses if use.busy is not None)
        return bool(seen)

    def look() -> None:
        found = Watcher(site.state).look()
        job = status_of(found, "a", found.log.last_s)
        assert job is not None
        pages.append(job_page(job, found, [], [], found.log.last_s, state=site.state))

    spins = "while True: pass"
    run_and_follow(
        begin(site),
        story((nothing, lambda: ask(site, "a", text=spins, elastic="none", work=None)), (measured, look)),
    )
    assert 0.0 < seen[0] <= 1.0
    assert re.search(r"^uses +\d+ % of its slots over the last minute, \d", pages[0], re.MULTILINE)
    end_all(site, "a")
