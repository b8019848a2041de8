"""Whichever lines of a log are lost, what is left folds to one state that its cluster has room for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.events import LOG_HEADER, sealed_lines
from pliant.schemas.file_io.json_lines import FIRST
from pliant.tools.run.statedir.failures import UNTIL_RESUMED_S
from pliant.tools.run.statedir.log.events import finish_event, submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.repair import fit_together, read_each, repair
from pliant.tools.run.statedir.log.snapshot import renew_snapshot
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.withheld import node_of
from tests.builders import job
from tests.tools.run.stories import NODES, Story, rebuilding

NODE_GPUS = {node.name: node.gpus for node in NODES.expanded()}
N0, N1 = ("n0", 4), ("n1", 4)


def holds(at: float, name: EventName, job_id: str, *where: tuple[str, int], beside: str = "") -> Event:
    detail = {"beside": beside} if beside else None
    return Event(at, name, job_id, gpus=sum(count for _, count in where), placement=where, detail=detail)


def down(at: float, node: str) -> Event:
    return Event(at, "node_down", detail={"node": node, "reason": "gone"})


def out(at: float, slot: str, seconds: float) -> Event:
    return Event(at, "slot_down", detail={"slot": slot, "seconds": seconds, "by": "a", "reason": "died"})


JOBS = [submit_event(job(name, gpus=4, low=1, high=8), 0.0) for name in "abc"]


def repaired(*events: Event) -> tuple[RunLog, list[str]]:
    kept, said = fit_together([*JOBS, *events], NODE_GPUS)
    return fold(kept), said


def gpus_of_jobs(log: RunLog) -> dict[str, int]:
    return {job_id: found.gpus for job_id, found in log.jobs.items() if found.gpus}


def assert_fits_together(events: Sequence[Event]) -> None:
    kept, _ = fit_together(events, NODE_GPUS)
    assert fit_together(kept, NODE_GPUS) == (kept, []), "it is as it should be now"
    log, policy = fold(kept), make_policy("fifo")
    session = session_from_events(kept, policy, NODES, throughput_for(None, NODES))
    assert {job_id: found.placement for job_id, found in log.active.items()} == {
        job_id: found.placement for job_id, found in session.jobs.items()
    }, "status, the next run and its policy see the same"
    assert log.out_of_service(log.last_s).keys() == session.withheld.out_of_service.keys()
    taken = Counter[str](node_of(slot) for slot in log.out_of_service(log.last_s))
    for job_id, found in log.active.items():
        if found.beside is None or job_id < found.beside:
            taken.update(dict(found.placement))
        assert not log.down.keys() & dict(found.placement).keys()
    assert all(count <= NODE_GPUS[name] for name, count in taken.items())


def a_day() -> list[Event]:
    """Two jobs share GPUs and part, a node goes and comes, slots fail: as a service writes it."""
    return [
        replace(Story(1).events[0], time=0.0),
        *JOBS,
        *(holds(1, "start", "a", N0), holds(1, "start", "b", N1)),
        *(holds(2, "preempt", "b"), holds(2, "grow", "a", N0, N1)),
        holds(3, "shrink", "a", N0),
        down(3, "n1"),
        holds(4, "resume", "b", N0, beside="a"),
        holds(5, "move", "a", N0, beside="b"),
        finish_event("a", 6, 1, 9.0),
        holds(7, "shrink", "b", ("n0", 3)),
        out(7, "n0/3", 60.0),
        Event(8, "node_up", detail={"node": "n1"}),
        holds(9, "start", "c", N1),
        holds(10, "shrink", "c", ("n1", 2)),
        *(out(10, "n1/2", UNTIL_RESUMED_S), out(10, "n1/3", 600.0)),
        Event(11, "slot_up", "c", detail={"slot": "n1/3"}),
        holds(12, "grow", "c", ("n1", 3)),
        *(holds(75, "shrink", "c", ("n1", 1)), holds(75, "grow", "b", N0)),
        *(holds(76, "move", "b", ("n1", 1)), holds(76, "grow", "c", N0)),
    ]


def test_nothing_is_changed_where_nothing_is_lost() -> None:
    for events in (a_day(), Story(3).go_on(80), Story(4, linked=True).go_on(80)):
        assert fit_together(events, NODE_GPUS) == (events, [])
        assert_fits_together(events)


def test_whichever_two_lines_are_lost_no_gpu_is_given_to_two_jobs() -> None:
    events = a_day()
    for lost in combinations(range(1, len(events)), 2):
        assert_fits_together([event for at, event in enumerate(events) if at not in lost])


@pytest.mark.parametrize("seed", range(8))
def test_however_many_lines_are_lost_all_who_read_the_rest_see_the_same(seed: int) -> None:
    rng = random.Random(seed)
    events = Story(seed, linked=seed % 2 > 0).go_on(60)
    for part in (0.02, 0.1, 0.3, 0.6):
        assert_fits_together([events[0], *(event for event in events[1:] if rng.random() > part)])


def test_two_jobs_that_share_count_once_whichever_of_them_changed_last() -> None:
    shared = [holds(1, "start", "a", N0), holds(2, "start", "b", N0, beside="a")]
    for more in ([], [holds(3, "move", "a", N0, beside="b")]):
        log, said = repaired(*shared, *more)
        assert (gpus_of_jobs(log), said) == ({"a": 4, "b": 4}, [])
        log, said = repaired(*shared, *more, holds(4, "start", "c", N0))
        assert gpus_of_jobs(log) == {"c": 4}
        assert [line.partition(":")[0] for line in said] == ["job a", "job b"]


def test_jobs_that_shared_and_have_as_many_gpus_of_their_own_count_twice() -> None:
    half = ("n0", 2)
    apart = [
        *(holds(1, "start", "a", half), holds(2, "start", "b", half, beside="a")),
        holds(3, "move", "b", half),
    ]
    assert gpus_of_jobs(repaired(*apart)[0]) == {"a": 2, "b": 2}
    assert gpus_of_jobs(repaired(*apart, holds(4, "start", "c", half))[0]) == {"b": 2, "c": 2}


def test_a_whole_log_lacks_nothing_though_its_snapshot_is_of_another_version(tmp_path: Path) -> None:
    state = Story(1).write(tmp_path)
    with State(state.path) as held:
        renew_snapshot(state, held.log, rebuilding())
    state.snapshot.write_bytes(state.snapshot.read_bytes().replace(b'"folds_to": "', b'"folds_to": "0'))
    assert repair(state.path) == [f"{state.events} is whole: there is nothing to repair"]


def test_a_job_that_was_on_a_node_as_it_went_down_waits_again_and_others_get_the_rest() -> None:
    log, said = repaired(
        holds(1, "start", "a", N0, ("n1", 2)), holds(1, "start", "b", ("n1", 1)), down(2, "n1")
    )
    assert (gpus_of_jobs(log), log.jobs["a"].phase, log.jobs["b"].phase) == ({}, "preempted", "preempted")
    assert [line.partition(":")[0] for line in said] == ["job a", "job b"]
    log, said = repaired(holds(1, "start", "a", N0), holds(1, "start", "b", N1), down(2, "n1"))
    assert (gpus_of_jobs(log), len(said)) == ({"a": 4}, 1)


def test_a_start_that_there_is_no_room_for_is_named() -> None:
    """The line that says that the node came back is lost."""
    log, said = repaired(down(1, "n1"), holds(2, "start", "a", N1))
    assert (gpus_of_jobs(log), log.jobs["a"].phase) == ({}, "preempted")
    assert said == [
        "job a: the log was repaired: a line about its GPUs is lost; it goes on from its last checkpoint"
    ]


def test_only_jobs_that_are_in_the_way_lose_their_gpus() -> None:
    log, _ = repaired(
        *(
            holds(1, "start", "a", ("n0", 2)),
            holds(1, "start", "b", ("n0", 2)),
            holds(1, "start", "c", ("n1", 1)),
        ),
        holds(2, "grow", "c", ("n0", 2), ("n1", 1)),
    )
    assert gpus_of_jobs(log) == {"b": 2, "c": 3}, "the first by id, and no more than are needed"


def test_a_slot_stays_out_of_service_until_the_latest_of_its_times_and_no_longer() -> None:
    first = [out(1, "n0/3", 100.0), out(2, "n0/3", 10.0)]
    log, said = repaired(*first, holds(50, "start", "a", N0))
    assert said == ["slot n0/3: the line that put it back into service is lost, and replaced"]
    assert (gpus_of_jobs(log), log.left_out) == ({"a": 4}, {})
    assert repaired(*first, holds(101, "start", "a", N0))[1] == [], "it is back by then"
    assert repaired(*first, holds(50, "start", "a", ("n0", 3)))[1] == []


def test_lines_about_what_does_not_exist_are_named_and_dropped() -> None:
    log, said = repaired(
        *(JOBS[0], down(1, "n9"), out(1, "n9/0", 60.0)),
        Event(1, "slot_down", "z", detail={"slot": "n0/0", "seconds": 60.0, "reason": "died"}),
        holds(2, "start", "y", N0),
        finish_event("y", 3, 1, 9.0),
    )
    assert (log.down, log.left_out, gpus_of_jobs(log), [*log.jobs]) == ({}, {}, {}, ["a", "b", "c"])
    assert said[:3] == [
        "job a: a second submission is dropped",
        "a 'node_down' event of the unknown node n9 is dropped",
        "a 'slot_down' event of the unknown slot n9/0 is dropped",
    ]
    lost = [line for line in said[3:] if "its submission is lost" in line]
    assert [line.partition(":")[0] for line in lost] == ["job y", "job z"]
    assert "its other lines (2) are dropped" in lost[0]


def test_a_line_that_is_there_twice_counts_once_wherever_it_is() -> None:
    events = Story(7).go_on(25)
    lines = (LOG_HEADER + sealed_lines(events, FIRST)[0]).splitlines(keepends=True)
    for at in range(1, len(lines)):
        for again in {at + 1, len(lines)}:
            found = [*read_each(b"".join([*lines[:again], lines[at], *lines[again:]]), "events.jsonl")]
            assert [line.event for line in found if line.event is not None] == events
            assert [line.number for line in found if "twice" in line.wrong] == [again + 1]


@pytest.mark.parametrize("damaged", ["the last line that the snapshot knows", "an earlier one"])
def test_what_was_written_after_the_snapshot_is_not_undone_though_it_happened_at_the_same_time(
    damaged: str, tmp_path: Path
) -> None:
    """A job ends as another one starts; the snapshot knows the start alone, and a line before is damaged."""
    story, now_s = Story(1), Story(1).now_s
    story.events += [
        *(submit_event(job(name, gpus=4), now_s) for name in "ab"),
        holds(now_s, "start", "a", N0),
        holds(now_s, "start", "b", N1),
    ]
    state = story.write(tmp_path)
    with State(state.path) as held:
        renew_snapshot(state, held.log, rebuilding())
        held.record([finish_event("a", now_s, 1, 9.0), Event(now_s, "node_down", detail={"node": "n0"})])
    whole = read_log(state.path)
    lines = state.events.read_bytes().splitlines(keepends=True)
    at = len(story.events) - (damaged == "an earlier one")
    lines[at] = lines[at].replace(b'"event":"start"', b'"event":"grow"')
    state.events.write_bytes(b"".join(lines))
    assert repair(state.path)[0].startswith(f"line {at + 1}: dropped: the line is damaged")
    found = read_log(state.path)
    assert {job_id: (one.phase, one.gpus) for job_id, one in found.jobs.items()} == {
        job_id: (one.phase, one.gpus) for job_id, one in whole.jobs.items()
    }
    assert (found.jobs["a"].phase, [*found.down]) == ("finished", ["n0"])
