"""Two jobs on the same slots: real processes on this machine, and backends that cannot have that."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.cluster import Sharing
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, read_schedule, write_schedule
from pliant.tools.run.service.inputs import Prepared
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.statedir.log.consistency import fit_together
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.schedule.decide import Question, decide
from tests.builders import job
from tests.tools.run.simulated.world import POLICIES, World
from tests.tools.run.site import Site

TOGETHER = Sharing(unmeasured="together", speed=0.8)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Jobs a and b on one slot, which wait for a gate."""
    found = Site(tmp_path, slots=1)
    found.cluster = found.cluster.model_copy(update={"sharing": TOGETHER})
    for name in "ab":
        found.job(name, "--gate", found.gate, samples=50)
    return found


def schedule(site: Site) -> str:
    """Both start on the one slot."""
    found = decide(site.jobs, site.cluster, None, Question("lucid"))
    (first,) = found.allocations
    pair = [first.model_copy(update={"job": me, "beside": you}) for me, you in ("ab", "ba")]
    path = site.folder / "schedule.json"
    write_schedule(found.model_copy(update={"allocations": tuple(pair), "waiting": ()}), path)
    return str(path)


@pytest.mark.usefixtures("plain_python")
def test_two_jobs_train_on_one_slot_at_the_same_time(site: Site) -> None:
    def view(log: RunLog, now_s: float) -> None:
        if {job_id for job_id, each in log.jobs.items() if each.samples_done > 0} == {"a", "b"}:
            site.gate.touch()

    log, _ = run_until_done(replace(site.options(), schedule=schedule(site)), view)
    assert {each.phase for each in log.jobs.values()} == {"finished"}
    plans = [json.loads((site.state / "jobs" / name / "plan.json").read_text()) for name in "ab"]
    assert [[member["slot"] for member in plan["members"]] for plan in plans] == [["n0/0"], ["n0/0"]]
    starts = {event.job: event.detail for event in site.events() if event.event == "start"}
    assert {job_id: (detail or {}).get("beside") for job_id, detail in starts.items()} == {"a": "b", "b": "a"}


def test_a_schedule_with_jobs_that_share_goes_through_its_file(site: Site) -> None:
    found = read_schedule(schedule(site))
    assert found.minor == 3
    assert '"pliant.schedule/1.3"' in (site.folder / "schedule.json").read_text()
    assert [given.beside for given in found.allocations] == ["b", "a"]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"beside": None}, "expected a job that holds the same GPUs"),
        ({"placement": []}, "expected the same GPUs"),
    ],
)
def test_a_schedule_whose_jobs_disagree_on_sharing_is_refused(
    site: Site, change: dict[str, object], wrong: str
) -> None:
    path = Path(schedule(site))
    found = json.loads(path.read_text())
    found["allocations"][1] |= change
    path.write_text(json.dumps(found))
    with pytest.raises(BadInputError, match=wrong):
        read_schedule(path)


def test_a_backend_that_gives_a_slot_to_one_job_refuses_such_a_schedule(site: Site, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.nodes.shares_slots = False
    options = replace(site.options(), schedule=schedule(site), backend="slurm")
    with pytest.raises(BadInputError, match="slurm gives a GPU to one job"):
        Prepared.read(options, lambda *_: world.nodes, resume=False)
    world.close()


def test_on_such_a_backend_a_policy_that_packs_gives_each_job_slots_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, POLICIES.index("lucid"))
    world.nodes.shares_slots = False
    try:
        for number in (41, 41, 41, 41):
            world.submit(number)
        with caplog.at_level(logging.WARNING, "pliant"):
            world.settle()
        world.check()
        events = read_events(world.dirs.events)
    finally:
        world.close()
    assert 'policy "lucid" packs jobs, and this backend gives a GPU to one: none share' in caplog.text
    assert not any("beside" in (event.detail or {}) for event in events)


def test_a_repair_leaves_jobs_that_share_where_they_are() -> None:
    place = (("n0", 1),)
    jobs = [submit_event(job(name), 10.0, {"samples": 1000.0}) for name in "abc"]
    log = [
        *jobs,
        Event(11.0, "start", "a", gpus=1, placement=place),
        Event(12.0, "start", "b", gpus=1, placement=place, detail={"beside": "a"}),
        Event(13.0, "finish", "a", gpus=0, placement=()),
        Event(14.0, "start", "c", gpus=1, placement=place, detail={"beside": "b"}),
    ]
    kept, said = fit_together(log, {"n0": 1})
    assert (list(kept), said) == (log, [])
    without = [event for event in log if event.job != "c" and event.event != "finish"]
    other = Event(15.0, "start", "c", gpus=1, placement=place)
    kept, said = fit_together([*without, jobs[2], other], {"n0": 1})
    lost = [event.job for event in kept if event.event == "requeue"]
    assert lost == ["a", "b"], "no job has room beside them"
