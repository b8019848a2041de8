"""Workers that are slower than the others of their job: who is named, and how a job leaves such a slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.schemas.cluster import StragglerRule
from pliant.schemas.io import write_cluster
from pliant.tools.run.service import rules
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.rules import StepParts, StragglerWatch
from pliant.tools.run.service.run import run_and_follow
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.contract.plan import Member, Plan, Progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.job_status import status_of
from pliant.tools.run.watch.status import Watcher
from pliant.tools.schedule.decide import Question
from tests.tools.run.site import Site
from tests.tools.run.test_follow import end_all, nothing, story


def parts(*own_s: float, share: int = 8) -> list[StepParts]:
    return [StepParts("a", share, {f"n0/{index}": each for index, each in enumerate(own_s)})]


def watching(**rule: Any) -> StragglerWatch:
    return StragglerWatch(StragglerRule(slower=1.5, for_seconds=60.0, **rule))


def named(
    watch: StragglerWatch, now_s: float, *own_s: float, share: int = 8
) -> list[tuple[str, float, float]]:
    found = watch.look(parts(*own_s, share=share), now_s)
    return [(each.slot, round(each.times, 2), each.for_s) for each in found]


def test_a_worker_is_named_once_it_was_slow_for_long_enough() -> None:
    watch = watching()
    assert named(watch, 0.0, 0.1, 0.1, 0.2) == []
    assert named(watch, 50.0, 0.1, 0.1, 0.13) == [], "above halfway back: it goes on to count"
    assert named(watch, 60.0, 0.1, 0.1, 0.2) == [("n0/2", 2.0, 60.0)]
    assert named(watch, 70.0, 0.1, 0.1, 0.2) == []
    assert [each.slot for each in watch.named] == ["n0/2"]


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        ([(1.0, 1.5)], [("n0/1", 1.5, 60.0)]),  # at the limit of the rule
        ([(1.0, 1.0, 1.49)], []),
        ([(0.1, 0.1, 0.1), (0.4, 0.4, 0.4)], []),  # all of them become slower
    ],
)
def test_workers_are_compared_with_their_peers(
    looks: list[tuple[float, ...]], last: list[tuple[str, float, float]]
) -> None:
    watch = watching()
    assert [named(watch, now_s, *own_s) for now_s, own_s in enumerate(looks)] == [[]] * len(looks)
    assert named(watch, len(looks) + 59.0, *looks[-1]) == last


def test_a_break_starts_the_count_again_and_ends_what_was_named() -> None:
    watch = watching()
    assert named(watch, 0.0, 0.1, 0.2) == []
    assert named(watch, 50.0, 0.1, 0.1) == []
    assert named(watch, 60.0, 0.1, 0.2) == []
    assert named(watch, 120.0, 0.1, 0.2) == [("n0/1", 2.0, 60.0)]
    assert named(watch, 130.0, 0.1, 0.14) == [], "between the two ends of the rule"
    assert named(watch, 140.0, 0.1, 0.12) == [("n0/1", 1.2, 0.0)]
    assert watch.named == []


def test_a_worker_is_named_again_after_its_job_changed_its_slots() -> None:
    """The log has forgotten by then that it was slow."""
    watch = watching()
    fast = dict.fromkeys(("n0/0", "n2/0", "n2/1"), 0.1)
    for now_s in (0.0, 60.0):
        found = watch.look([StepParts("a", 8, {**fast, "n0/1": 0.2, "n1/0": 0.2})], now_s)
    assert [each.slot for each in found] == ["n0/1", "n1/0"] == [each.slot for each in watch.named]
    moved = StepParts("a", 8, {**fast, "n0/2": 0.1, "n1/0": 0.2})
    assert (watch.look([moved], 65.0), watch.named) == ([], [])
    assert [each.slot for each in watch.look([moved], 125.0)] == ["n1/0"]


def test_the_message_names_peers_and_past() -> None:
    watch = watching()
    watch.look(parts(0.1, 0.11), 0.0)
    watch.look(parts(0.1, 0.25), 10.0)
    (found,) = watch.look(parts(0.1, 0.25), 70.0)
    assert found.words == (
        "the worker on n0/1 has needed 2.5 times as long as its peers for 1 min: "
        "0.25 s of a step, and took 0.11 s before"
    )


def test_a_single_worker_is_compared_with_its_own_past() -> None:
    watch = watching()
    assert named(watch, 0.0, 0.1) == []
    assert named(watch, 10.0, 0.2, share=16) == [], "of a larger share that says nothing"
    assert named(watch, 20.0, 0.4, share=16) == []
    assert named(watch, 80.0, 0.4, share=16) == [("n0/0", 2.0, 60.0)]
    assert not watch.named[0].has_peers


def plan(workers: int) -> Plan:
    members = tuple(Member(slot=f"n0/{i}", node="n0", address="h", worker=i) for i in range(workers))
    return Plan(job="a", generation=2, attempt=1, members=members)


def progress(own: tuple[float, ...] | None, batch: int, generation: int = 2) -> Progress:
    about = {"job": "a", "attempt": 1, "gpus": 2, "step": 9, "epoch": 0, "samples_done": 72.0}
    return Progress.model_validate(
        {**about, "generation": generation, "global_batch": batch, "own_seconds": own}
    )


def test_only_alike_shares_under_one_plan_are_compared() -> None:
    found = StepParts.of(plan(2), progress((0.1, 0.2), 8))
    assert found == StepParts("a", 4, {"n0/0": 0.1, "n0/1": 0.2})
    assert StepParts.of(plan(2), progress((0.1, 0.2), 21)) is not None, "10 and 11 samples"
    assert StepParts.of(plan(2), progress((0.1, 0.2), 9)) is None, "4 and 5 samples"
    assert StepParts.of(plan(2), progress(None, 8)) is None
    assert StepParts.of(plan(2), progress((0.1, 0.2), 8, generation=1)) is None
    assert StepParts.of(plan(3), progress((0.1, 0.2), 9)) is None


@pytest.mark.parametrize("wrong", [{"slower": 1.0}, {"for_seconds": 0.0}, {"then": "kill"}])
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StragglerRule.model_validate(wrong)


SLOW_ON_A_SLOT = """
import json, os, pathlib, time, torch
from pliant.tools.run import elastic

folder = pathlib.Path(os.environ["PLIANT_JOB_DIR"])
slot = os.environ["PLIANT_SLOT"]
if slot == "rank":
    slot = json.loads((folder / "plan.json").read_text())["members"][int(os.environ["RANK"])]["slot"]
job = elastic.init(batch_size=8)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
for epoch in job.epochs(100000):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        time.sleep(0.2 if slot == "n0/1" else 0.02)
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
"""


@pytest.mark.torch
def test_a_slow_worker_is_named_and_left_once_a_slot_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job trains meanwhile, and goes on in place."""
    monkeypatch.setattr(rules, "STRAGGLERS_LOOK_S", 0.2)
    site, cluster = Site(tmp_path, 3), tmp_path / "cluster.json"
    rule = StragglerRule(slower=2.0, for_seconds=0.5)
    site.cluster = site.cluster.model_copy(update={"stragglers": rule})
    write_cluster(site.cluster, cluster)
    assert '"pliant.cluster/1.3"' in cluster.read_text()
    site.job("a", text=SLOW_ON_A_SLOT, samples=1e9, low=2, high=2, gpus=2)
    site.job("b", "--gate", site.gate, elastic="size")
    submit(site.state, site.jobs, "jobs", folder=site.folder, now_s=0.0)
    options = RunOptions(site.state, question=Question("fifo"), cluster=str(cluster))
    why: list[str] = []

    def note() -> None:
        found = Watcher(site.state).look()
        job = status_of(found, "a", found.log.last_s)
        why.append("" if job is None else job.why)

    def named(log: RunLog) -> bool:
        return "a" in log.jobs and bool(log.jobs["a"].stragglers)

    def trains_elsewhere(log: RunLog) -> bool:
        return log.jobs["a"].straggled == "n0/1" and log.jobs["a"].change is None

    run_and_follow(options, story((named, note), (nothing, site.gate.touch), (trains_elsewhere, note)))
    assert [line for line in site.story() if not line.startswith("submit")] == [
        *("start a 2", "start b 1", "finish b 0", "move a 2", "slot_down None"),
    ]
    assert "slow worker: n0/1 needs " in why[0]
    warnings = [str((event.detail or {}).get("warning", "")) for event in site.events()]
    assert sum(text.startswith("the worker on n0/1 has needed ") for text in warnings) == 1
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
