import ctypes
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pliant.schemas.cluster import IdleRule, StragglerRule
from pliant.schemas.io import write_cluster
from pliant.tools.run.backends import resource_usage as measuring
from pliant.tools.run.backends.resource_usage import GpuMeter, TreeMeter
from pliant.tools.run.service import rules
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.job_rules import JobRules
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.rules import IdleWatch, StepParts, Straggler, StragglerWatch
from pliant.tools.run.service.run import run_and_follow
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir
from pliant.tools.run.statedir.contract.liveness import UnitUse, use_of, whole_use_of
from pliant.tools.run.statedir.contract.plan import Member, Plan, Progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.job_page import job_page
from pliant.tools.run.watch.job_status import JobStatus, status_of
from pliant.tools.run.watch.status import Watcher
from pliant.tools.run.watch.top import UseMeter
from pliant.tools.schedule.decide import Question
from tests.leftovers import started
from tests.tools.run.site import Site, until
from tests.tools.run.test_follow import ask, begin, end_all, nothing, story
from tests.tools.run.test_training import ELASTIC

RULE = IdleRule(below=0.1, for_seconds=60.0)
BURNS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(600)
"""


def test_the_whole_tree_counts_and_so_does_what_has_ended(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    attempt = job.attempt(1)
    attempt.path.mkdir(parents=True)
    with started([sys.executable, "-c", BURNS]):
        own = psutil.Process()
        until(lambda: any(child.children() for child in own.children()))
        (family,) = (grandchild for child in own.children() for grandchild in child.children())
        meter = TreeMeter(str(attempt.use(0)))
        meter.look()
        assert use_of(attempt, [0]) is None, "one look shows no speed"

        def used_s() -> float:
            meter.look()
            found = use_of(attempt, [0])
            return 0.0 if found is None else found.cpus * (meter._points[-1][0] - meter._points[0][0])

        until(lambda: used_s() > 0.3)
        before = used_s()
        family.kill()
        until(lambda: family.status() == psutil.STATUS_ZOMBIE)
        assert used_s() >= before - 0.1
    found = use_of(attempt, [0])
    assert found is not None
    assert found.memory > 1 << 20
    assert (found.gpus, found.gpu_memory) == (None, None)
    (whole,) = whole_use_of(job)
    assert whole.cpu_s > 0.2
    assert (whole.gpu_s, whole.gpu_memory_s) == (None, None)


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
        memory._obj.used, memory._obj.total = 1 << 30, 1 << 31
        return 0


@pytest.mark.parametrize(
    ("names", "driver", "found"),
    [
        (["0", "1"], Driver(50, 100), (1.5, 2 << 30, 1.0)),
        (["GPU-1"], Driver(50, 100), (1.0, 1 << 30, 0.5)),
        (["0", "7"], Driver(50, 100), (None, None, None)),  # one is unknown: half the truth would look idle
        (["0"], Driver(50, lost=15), (None, None, None)),
        ([], Driver(50), (None, None, None)),
        (["0"], None, (None, None, None)),  # no driver
    ],
)
def test_gpus_are_asked_through_nvml(names, driver, found, monkeypatch: pytest.MonkeyPatch) -> None:
    if driver is None:
        assert GpuMeter(names, "libno-such-driver.so.1").look() == found
        return
    fake = SimpleNamespace(**{**vars(ctypes), "CDLL": lambda _name: driver})
    monkeypatch.setattr(measuring, "ctypes", fake)
    assert GpuMeter(names).look() == found


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


def test_a_job_is_idle_after_the_whole_time_in_one_place() -> None:
    assert UnitUse(1.0, 1).of_slots(2, gpus=False) == 0.5
    assert UnitUse(1.0, 1, gpus=0.5).of_slots(2, gpus=True) == 0.25
    assert UnitUse(1.0, 1).of_slots(2, gpus=True) is None
    # A job is idle after the whole time and named once.
    watch = IdleWatch(RULE)
    looks = {
        0.0: ({"a": 0.01, "b": 0.05, "c": None}, []),
        50.0: ({"a": 0.5, "b": 0.02, "c": None}, []),
        60.0: ({"a": 0.07, "b": 0.0, "c": None}, [("b", 60.0)]),
        70.0: ({"a": 0.0, "b": 0.0, "c": None}, []),
        110.0: ({"a": 0.0, "b": 0.3, "c": None}, [("b", 0.0)]),  # busy again; a began to count at 60
        120.0: ({"a": 0.02}, [("a", 60.0)]),
    }
    for now_s, (used, named) in looks.items():
        found = watch.look(used, now_s)
        assert [(each.job_id, each.for_s) for each in found] == named
    assert found[0].words == "it has used 7 % of its slots or less for 1 min", "the most that it used"

    # The log has forgotten by then that it was: it is named again.
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
    [(IdleWatch(RULE), 10.0), (StragglerWatch(StragglerRule(slower=1.5, for_seconds=60.0)), 5.0)],
)
def test_rules_are_looked_at_now_and_then(watch: IdleWatch | StragglerWatch, seconds: float) -> None:
    turns = (100.0, 100.0 + seconds - 0.1, 100.0 + seconds, 101.0 + seconds)
    assert [watch.is_due(now_s) for now_s in turns] == [True, False, True, False]


IDLE = "it has used 1 % of its slots or less for "


def status(site: Site) -> JobStatus:
    found = Watcher(site.state).look()
    job = status_of(found, "a", found.log.last_s)
    assert job is not None
    return job


def warnings(site: Site) -> list[str]:
    details = (event.detail or {} for event in site.events())
    return [detail["warning"] for detail in details if "warning" in detail]


@pytest.mark.usefixtures("plain_python")
@pytest.mark.parametrize(
    ("then", "events", "why"),
    [
        ("warn", [], "idle: 1 % of its slots used, as of "),
        ("shrink", ["shrink a 1"], f"shrunk by the rule about idle jobs: {IDLE}"),
        ("end", ["cancel a 0"], f"ended by the rule about idle jobs: {IDLE}"),
    ],
)
def test_an_idle_job_is_named_shrunk_or_ended(site: Site, monkeypatch, then, events, why) -> None:
    monkeypatch.setattr(rules, "IDLE_LOOK_S", 0.05)
    monkeypatch.setattr(JobRules, "used", lambda self: dict.fromkeys(self.executor.gangs, 0.01))
    rule = IdleRule.model_validate({"below": 0.1, "for_seconds": 0.3, "then": then})
    site.cluster = site.cluster.model_copy(update={"idle": rule})
    write_cluster(site.cluster, site.folder / "cluster.json")
    assert '"pliant.cluster/1.3"' in (site.folder / "cluster.json").read_text()
    shown: list[str] = []

    def is_over(log: RunLog) -> bool:
        job = log.jobs.get("a")
        if job is None or then == "end":
            return job is not None and job.phase == "cancelled"
        return job.use.idle is not None and job.samples_done > 0 and (then == "warn" or job.gpus == 1)

    def note() -> None:
        shown.append(status(site).why)

    run_and_follow(
        begin(site), story((nothing, lambda: ask(site, "a", samples=1e6, high=2)), (is_over, note))
    )
    assert why in shown[0]
    assert site.story() == ["submit a", "start a 2", *events]
    if then == "warn":
        (warning,) = warnings(site)
        assert warning.startswith(IDLE)
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
        pages.append(job_page(status(site), found, [], [], found.log.last_s, state=site.state))

    text = "import time\nwhile True:\n    sum(range(10_000))\n    time.sleep(0.01)\n"
    steps = ((nothing, lambda: ask(site, "a", text=text, elastic="none", work=None)), (measured, look))
    run_and_follow(begin(site), story(*steps))
    assert 0.0 < seen[0] <= 1.0
    assert re.search(r"^uses +\d+ % of its slots over the last minute, \d", pages[0], re.MULTILINE)
    end_all(site, "a")


def watching() -> StragglerWatch:
    return StragglerWatch(StragglerRule(slower=1.5, for_seconds=60.0))


def look(watch: StragglerWatch, now_s: float, *own_s: float, share: int = 8) -> list[Straggler]:
    parts = StepParts("a", share, {f"n0/{index}": each for index, each in enumerate(own_s)})
    return list(watch.look([parts], now_s))


def named(
    watch: StragglerWatch, now_s: float, *own_s: float, share: int = 8
) -> list[tuple[str, float, float]]:
    return [(each.slot, round(each.times, 2), each.for_s) for each in look(watch, now_s, *own_s, share=share)]


def test_a_worker_is_named_once_it_was_slow_for_long_enough() -> None:
    watch = watching()
    assert named(watch, 0.0, 0.1, 0.1, 0.2) == []
    assert named(watch, 50.0, 0.1, 0.1, 0.13) == [], "above halfway back: it goes on to count"
    assert named(watch, 60.0, 0.1, 0.1, 0.2) == [("n0/2", 2.0, 60.0)]
    assert named(watch, 70.0, 0.1, 0.1, 0.2) == []
    assert [each.slot for each in watch.named] == ["n0/2"]
    watch = watching()
    assert [look(watch, 0.0, 0.1, 0.11), look(watch, 10.0, 0.1, 0.25)] == [[], []]
    (found,) = look(watch, 70.0, 0.1, 0.25)
    assert found.words == (
        "the worker on n0/1 has needed 2.5 times as long as its peers for 1 min: "
        "0.25 s of a step, and took 0.11 s before"
    )


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        ([(1.0, 1.5)], [("n0/1", 1.5, 60.0)]),  # at the limit of the rule
        ([(1.0, 1.0, 1.49)], []),
        ([(0.1, 0.1, 0.1), (0.4, 0.4, 0.4)], []),  # all of them become slower
    ],
)
def test_workers_are_compared_with_their_peers(looks, last) -> None:
    watch = watching()
    assert [named(watch, now_s, *own_s) for now_s, own_s in enumerate(looks)] == [[]] * len(looks)
    assert named(watch, len(looks) + 59.0, *looks[-1]) == last


def test_a_worker_is_named_again_after_a_break_or_a_change() -> None:
    watch = watching()
    assert named(watch, 0.0, 0.1, 0.2) == []
    assert named(watch, 50.0, 0.1, 0.1) == []
    assert named(watch, 60.0, 0.1, 0.2) == []
    assert named(watch, 120.0, 0.1, 0.2) == [("n0/1", 2.0, 60.0)]
    assert named(watch, 130.0, 0.1, 0.14) == [], "between the two ends of the rule"
    assert named(watch, 140.0, 0.1, 0.12) == [("n0/1", 1.2, 0.0)]
    assert watch.named == []

    # The log has forgotten by then that it was slow.
    watch = watching()
    fast = dict.fromkeys(("n0/0", "n2/0", "n2/1"), 0.1)
    for now_s in (0.0, 60.0):
        found = watch.look([StepParts("a", 8, {**fast, "n0/1": 0.2, "n1/0": 0.2})], now_s)
    assert [each.slot for each in found] == ["n0/1", "n1/0"] == [each.slot for each in watch.named]
    moved = StepParts("a", 8, {**fast, "n0/2": 0.1, "n1/0": 0.2})
    assert (watch.look([moved], 65.0), watch.named) == ([], [])
    assert [each.slot for each in watch.look([moved], 125.0)] == ["n1/0"]


def test_workers_are_compared_with_the_past_or_with_alike_shares() -> None:
    watch = watching()
    assert named(watch, 0.0, 0.1) == []
    assert named(watch, 10.0, 0.2, share=16) == [], "of a larger share that says nothing"
    assert named(watch, 20.0, 0.4, share=16) == []
    assert named(watch, 80.0, 0.4, share=16) == [("n0/0", 2.0, 60.0)]
    assert not watch.named[0].has_peers

    # Only alike shares under one plan are compared.
    def of(workers: int, own: tuple[float, ...] | None, batch: int, generation: int = 2) -> StepParts | None:
        about = {"job": "a", "attempt": 1, "gpus": 2, "step": 9, "epoch": 0, "samples_done": 72.0}
        members = tuple(Member(slot=f"n0/{i}", node="n0", address="h", worker=i) for i in range(workers))
        progress = {**about, "generation": generation, "global_batch": batch, "own_seconds": own}
        plan = Plan(job="a", generation=2, attempt=1, members=members)
        return StepParts.of(plan, Progress.model_validate(progress))

    assert of(2, (0.1, 0.2), 8) == StepParts("a", 4, {"n0/0": 0.1, "n0/1": 0.2})
    assert of(2, (0.1, 0.2), 21) is not None, "10 and 11 samples"
    assert of(2, (0.1, 0.2), 9) is None, "4 and 5 samples"
    assert of(2, None, 8) is None
    assert of(2, (0.1, 0.2), 8, generation=1) is None
    assert of(3, (0.1, 0.2), 9) is None


OWN_SLOT = """
import json, os
slot = os.environ["PLIANT_SLOT"]
if slot == "rank":
    with open(os.environ["PLIANT_JOB_DIR"] + "/plan.json") as plan:
        slot = json.load(plan)["members"][int(os.environ["RANK"])]["slot"]
"""
SLOW_ON_A_SLOT = OWN_SLOT + ELASTIC.replace(
    "        optimizer.zero_grad()",
    "        time.sleep(0.2 if slot == 'n0/1' else 0.02)\n        optimizer.zero_grad()",
)


@pytest.mark.torch
def test_a_slow_worker_is_named_and_left_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "STRAGGLERS_LOOK_S", 0.2)
    site, cluster = Site(tmp_path, 3), tmp_path / "cluster.json"
    rule = StragglerRule(slower=2.0, for_seconds=0.5)
    site.cluster = site.cluster.model_copy(update={"stragglers": rule})
    write_cluster(site.cluster, cluster)
    assert '"pliant.cluster/1.3"' in cluster.read_text()
    site.job("a", 100_000, 0.0, text=SLOW_ON_A_SLOT, samples=1e9, low=2, high=2, gpus=2)
    site.job("b", "--gate", site.gate, elastic="size")
    submit(site.state, site.jobs, "jobs", folder=site.folder, now_s=0.0)
    options = RunOptions(site.state, question=Question("fifo"), cluster=str(cluster))
    why: list[str] = []

    def note() -> None:
        why.append(status(site).why)

    def named(log: RunLog) -> bool:
        return "a" in log.jobs and bool(log.jobs["a"].use.stragglers)

    def trains_elsewhere(log: RunLog) -> bool:
        return log.jobs["a"].use.straggled == "n0/1" and log.jobs["a"].attempt.change is None

    run_and_follow(options, story((named, note), (nothing, site.gate.touch), (trains_elsewhere, note)))
    assert [line for line in site.story() if not line.startswith("submit")] == [
        *("start a 2", "start b 1", "finish b 0", "move a 2", "slot_down None")
    ]
    assert "slow worker: n0/1 needs " in why[0]
    assert sum(text.startswith("the worker on n0/1 has needed ") for text in warnings(site)) == 1
    for part in ("the worker on n0/1 has needed ", "times as long as its peers", "it goes on on n0/2"):
        assert part in why[1]
    plan = read_plan(StateDir(site.state).job("a"))
    assert plan is not None
    assert [member.slot for member in plan.members] == ["n0/0", "n0/2"]
    assert list(site.log().out_of_service(site.log().last_s)) == ["n0/1"]
    assert not StateDir(site.state).job("a").attempt(2).path.exists(), "it was launched again"
    (cost,) = [each for each in site.events() if (each.detail or {}).get("after") == "move"]
    assert (cost.detail or {})["mechanism"] == "in place"
    end_all(site, "a")
