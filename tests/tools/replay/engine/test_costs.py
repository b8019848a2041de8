from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_events, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.replay.engine.costs import Cost, MeasuredCosts, costs_from_events, parse_costs
from tests.tools.profile.rows_builder import step


def submitted(job_id: str, model: str) -> Event:
    return Event(0.0, "submit", job_id, detail={"job": {"id": job_id, "model": model}})


def measured(job_id: str, after: str, seconds: float) -> Event:
    return Event(9.0, "progress", job_id, overhead_seconds=seconds, detail={"after": after, "attempt": 1})


LIVE = [
    submitted("a", "net"),
    submitted("b", "net"),
    submitted("c", "mlp"),
    Event(1.0, "start", "a", 1),
    measured("a", "start", 4.0),
    measured("b", "start", 6.0),
    measured("c", "start", 2.0),
    measured("a", "grow", 0.75),
    measured("a", "shrink", 0.25),
    measured("a", "resume", 7.0),
    Event(9.5, "progress", "a", samples_done=5.0),
]


def test_a_live_run_gives_the_mean_for_each_model_and_the_mean_over_all_for_others() -> None:
    found = costs_from_events(LIVE)
    assert (found.start.of("net"), found.start.of("mlp"), found.start.of("other")) == (5.0, 2.0, 4.0)
    assert (found.rescale.of("net"), found.rescale.of("mlp"), found.resume.of("net")) == (0.5, 0.5, 7.0)


def test_what_was_not_measured_costs_what_is_most_like_it() -> None:
    found = costs_from_events(LIVE[:7])
    assert found.start == found.resume == found.rescale == Cost(4.0, {"mlp": 2.0, "net": 5.0})
    shrunk = costs_from_events([LIVE[0], measured("a", "shrink", 0.25)])
    assert shrunk.start == shrunk.resume == Cost(0.25, {"net": 0.25})


def test_a_start_bears_the_end_of_its_job_too() -> None:
    ends = [
        Event(20.0, "checkpoint", "a", overhead_seconds=0.5, detail={"attempt": 1}),
        Event(21.5, "finish", "a", 0),
        Event(30.0, "progress", "b", samples_done=5.0, detail={"attempt": 2}),
        Event(32.5, "finish", "b", 0),
    ]
    found = costs_from_events([*LIVE, *ends])
    assert (found.start.of("net"), found.start.of("mlp")) == (5.0 + 2.0, 2.0)
    assert found.start.of("other") == 4.0 + 2.0, "the median of all ends, as the mean of all starts"
    assert (found.rescale.of("net"), found.resume.of("net")) == (0.5, 7.0)
    starts_only = costs_from_events([*LIVE[:7], *ends])
    assert (starts_only.start.of("net"), starts_only.resume.of("net")) == (7.0, 5.0), "ends are borne once"


def test_the_time_for_which_a_job_waited_to_resume_is_none_of_its_end() -> None:
    """Its last workers reported nothing before they ended."""
    waited = [
        Event(20.0, "progress", "a", samples_done=5.0, detail={"attempt": 1}),
        Event(25.0, "preempt", "a", 0),
        Event(5000.0, "resume", "a", 1),
        Event(5003.0, "finish", "a", 0),
    ]
    assert costs_from_events([*LIVE, *waited]).start == costs_from_events(LIVE).start


def test_a_run_that_measured_nothing_says_that_nothing_costs_anything() -> None:
    assert costs_from_events(LIVE[:2]) == MeasuredCosts(Cost(), Cost(), Cost())


def test_a_simulated_run_says_costs_in_the_changes_themselves() -> None:
    run = [submitted("a", "net"), Event(0.0, "start", "a", 1, overhead_seconds=7.0)]
    assert costs_from_events(run).start.of("net") == 7.0
    trained = [Event(5.0, "progress", "a", samples_done=1.0), Event(9.0, "finish", "a", 0)]
    assert costs_from_events([*run, *trained]).start.of("net") == 7.0, "it has no workers that end"


def test_costs_are_named_as_seconds_by_model_or_as_a_file(tmp_path: Path) -> None:
    events = str(tmp_path / "events.jsonl")
    write_events(LIVE, events)
    assert parse_costs(None, "30", None, None)[1] == Cost(30.0)
    assert parse_costs(None, "bert=73,1", None, None)[1] == Cost(1.0, {"bert": 73.0})
    assert parse_costs(None, "bert=2m,30s", None, None)[1] == Cost(30.0, {"bert": 120.0})
    start, rescale, _ = parse_costs(events, events, None, None)
    assert start is not None
    assert rescale is not None
    assert (start.of("net"), rescale.of("net")) == (5.0, 0.5)


def test_a_resume_costs_what_is_stated_or_what_the_source_of_the_rescales_measured(tmp_path: Path) -> None:
    events = str(tmp_path / "events.jsonl")
    write_events(LIVE, events)
    assert parse_costs(None, None, None, None) == (None, None, None)
    assert parse_costs("1", "2", None, None) == (Cost(1.0), Cost(2.0), None)
    assert parse_costs("1", "2", "3", None) == (Cost(1.0), Cost(2.0), Cost(3.0))
    start, rescale, resume = parse_costs(None, events, None, None)
    assert (start, rescale, resume) == (None, Cost(0.5, {"net": 0.5}), Cost(7.0, {"net": 7.0}))
    assert parse_costs(None, events, "8", None)[2] == Cost(8.0)


@pytest.mark.parametrize("text", ["", "x", "bert=", "=5", "-1", "nan", "inf", "1,,2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--start-cost"):
        parse_costs(text, None, None, None)


def test_an_event_file_that_is_missing_or_measured_nothing_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        parse_costs("nowhere.jsonl", None, None, None)
    write_events(LIVE[:2], tmp_path / "events.jsonl")
    with pytest.raises(BadInputError, match="no measured start or rescale"):
        parse_costs(str(tmp_path / "events.jsonl"), None, None, None)


def test_an_event_file_names_one_cost_or_that_of_each_model() -> None:
    assert Cost(30.0).for_models(["a", "b"]) == 30.0
    assert Cost(1.0, {"b": 2.0}).for_models(["b", "a", "b"]) == {"a": 1.0, "b": 2.0}


def test_a_profile_tells_what_starts_relaunches_and_changes_in_place_took(tmp_path: Path) -> None:
    path = str(tmp_path / "p.parquet")
    rows = [
        replace(step(1, 8, 0.1), start_seconds=4.0, relaunch_seconds=6.0),
        replace(step(2, 8, 0.1), start_seconds=6.0, relaunch_seconds=9.0, rescale_seconds=0.25),
        replace(step(3, 8, 0.1), start_seconds=5.0, relaunch_seconds=7.5, rescale_seconds=0.75),
        replace(step(1, 8, 0.1, model="mlp"), start_seconds=2.0, relaunch_seconds=3.0),
    ]
    write_profile(Profile(tuple(rows)), path)
    start, rescale, resume = parse_costs("profile", "profile", None, path)
    assert start is not None
    assert start.by_model == {"mlp": 2.0, "net": 5.0}
    assert rescale == Cost(4.0 / 3, {"mlp": 3.0, "net": 0.5}), "the mlp was only measured alone: a relaunch"
    assert resume == Cost(6.375, {"mlp": 3.0, "net": 7.5})


def test_where_no_change_in_place_was_measured_a_rescale_is_a_relaunch(tmp_path: Path) -> None:
    path = str(tmp_path / "p.parquet")
    write_profile(Profile((replace(step(1, 8, 0.1), start_seconds=4.0, relaunch_seconds=6.0),)), path)
    assert parse_costs(None, "profile", None, path)[1] == Cost(6.0, {"net": 6.0})


def test_a_profile_without_costs_and_none_at_all_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "p.parquet")
    write_profile(Profile((step(1, 8, 0.1),)), path)
    with pytest.raises(BadInputError, match="has no measured costs: measure with pliant profile --costs"):
        parse_costs(None, "profile", None, path)
    for none in (None, "-"):
        with pytest.raises(UsageError, match="--rescale-cost profile: name the profile"):
            parse_costs(None, "profile", None, none)
