"""What jobs use of their slots, as the keepers of their processes see it, and the rule about idle ones."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
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
from tests.leftovers import started
from tests.tools.run.site import Site, until
from tests.tools.run.test_follow import ask, begin, end_all, nothing, story

RULE = IdleRule(below=0.1, for_seconds=60.0)
BURNS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(600)
"""


def test_the_whole_tree_counts_and_so_does_what_has_ended(tmp_path: Path) -> None:
    """A process that sleeps; its child uses a CPU."""
    attempt = AttemptDir(tmp_path)
    with started([sys.executable, "-c", BURNS]):
        own = psutil.Process()
        until(lambda: any(child.children() for child in own.children()))
        (family,) = (grandchild for child in own.children() for grandchild in child.children())
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
def test_a_report_of_use_that_makes_no_sense_is_not_known(tmp_path: Path, said: bytes) -> None:
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


def idle(watch: IdleWatch, now_s: float, **used: float | None) -> list[tuple[str, float]]:
    return [(each.job_id, each.for_s) for each in watch.look(used, now_s)]


def test_a_job_is_idle_after_the_whole_time_and_named_once() -> None:
    watch = IdleWatch(RULE)
    assert idle(watch, 0.0, a=0.0, b=0.05, c=None) == []
    assert idle(watch, 50.0, a=0.5, b=0.02, c=None) == []
    assert idle(watch, 60.0, a=0.0, b=0.0, c=None) == [("b", 60.0)]
    assert idle(watch, 70.0, a=0.0, b=0.0, c=None) == []
    assert idle(watch, 110.0, a=0.0, b=0.3, c=None) == [("b", 0.0)], "busy again; a began to count at 60"
    assert idle(watch, 120.0, a=0.0) == [("a", 60.0)]


def test_the_message_has_the_most_that_an_idle_job_used() -> None:
    watch = IdleWatch(RULE)
    assert [idle(watch, now_s, a=used) for used, now_s in ((0.01, 0.0), (0.07, 30.0))] == [[], []]
    (found,) = watch.look({"a": 0.02}, 60.0)
    assert found.words == "it has used 7 % of its slots or less for 1 min"


def test_a_job_that_moved_is_idle_after_the_whole_time_there() -> None:
    """The log has forgotten by then that it was: it is named again."""
    watch = IdleWatch(RULE)
    looks = {
        0.0: (("n0", "n1", "n2"), []),
        50.0: (("n0", "n2", "n2"), []),
        60.0: (("n0", "n2", "n2"), [("a", 60.0), ("c", 60.0)]),
        70.0: (("n1", "n2", "n2"), []),
        110.0: (("n1", "n2", "n2"), [("b", 60.0)]),
        130.0: (("n1", "n2", "n2"), [("a", 60.0)]),
    }
    for now_s, (nodes, named) in looks.items():
        found = watch.look(dict.fromkeys("abc", 0.0), now_s, dict(zip("abc", nodes, strict=True)))
        assert [(each.job_id, each.for_s) for each in found] == named


@pytest.mark.parametrize(
    ("watch", "seconds"),
    [
        (IdleWatch(RULE), 10.0),
        (StragglerWatch(StragglerRule(slower=1.5, for_seconds=60.0)), 5.0),
    ],
)
def test_rules_are_looked_at_in_the_first_turn_and_not_in_each(
    watch: IdleWatch | StragglerWatch, seconds: float
) -> None:
    turns = (100.0, 100.0 + seconds - 0.1, 100.0 + seconds, 101.0 + seconds)
    assert [watch.is_due(now_s) for now_s in turns] == [True, False, True, False]


@pytest.mark.parametrize("wrong", [{"below": 0.0}, {"below": 1.5}, {"for_seconds": 0.0}, {"then": "kill"}])
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        IdleRule.model_validate({"below": 0.1, "for_seconds": 60.0, **wrong})


IDLE = "it has used 1 % of its slots or less for "


@pytest.mark.usefixtures("plain_python")
@pytest.mark.parametrize(
    ("then", "events", "why"),
    [
        ("warn", [], "idle: 1 % of its slots used, as of "),
        ("shrink", ["shrink a 1"], f"shrunk by the rule about idle jobs: {IDLE}"),
        ("end", ["cancel a 0"], f"ended by the rule about idle jobs: {IDLE}"),
    ],
)
def test_an_idle_job_is_named_shrunk_or_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch, then: str, events: list[str], why: str
) -> None:
    monkeypatch.setattr(rules, "IDLE_LOOK_S", 0.05)
    monkeypatch.setattr(Executor, "used", lambda self: dict.fromkeys(self.gangs, 0.01))
    rule = IdleRule.model_validate({"below": 0.1, "for_seconds": 0.3, "then": then})
    site.cluster = site.cluster.model_copy(update={"idle": rule})
    write_cluster(site.cluster, site.folder / "cluster.json")
    assert '"pliant.cluster/1.3"' in (site.folder / "cluster.json").read_text()
    shown: list[str] = []

    def is_over(log: RunLog) -> bool:
        job = log.jobs.get("a")
        if job is None or then == "end":
            return job is not None and job.phase == "cancelled"
        return job.idle is not None and job.samples_done > 0 and (then == "warn" or job.gpus == 1)

    def note() -> None:
        found = Watcher(site.state).look()
        job = status_of(found, "a", found.log.last_s)
        shown.append("" if job is None else job.why)

    run_and_follow(
        begin(site), story((nothing, lambda: ask(site, "a", samples=1e6, high=2)), (is_over, note))
    )
    assert why in shown[0]
    assert site.story() == ["submit a", "start a 2", *events]
    if then == "warn":
        warnings = [str((each.detail or {}).get("warning", "")) for each in site.events()]
        assert [text.startswith(IDLE) for text in warnings if text] == [True]
    end_all(site, *(() if then == "end" else ("a",)))
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0, "it saved"


@pytest.mark.usefixtures("plain_python")
def test_top_and_the_page_of_a_job_show_what_it_uses(site: Site) -> None:
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

    spins = {"text": "while True: pass", "elastic": "none", "work": None}
    run_and_follow(begin(site), story((nothing, lambda: ask(site, "a", **spins)), (measured, look)))
    assert 0.0 < seen[0] <= 1.0
    assert re.search(r"^uses +\d+ % of its slots over the last minute, \d", pages[0], re.MULTILINE)
    end_all(site, "a")
