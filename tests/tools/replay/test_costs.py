from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_events, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.replay.costs import Cost, costs_from_events, parse_cost
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
    measured("a", "grow", 3.0),
    measured("a", "resume", 5.0),
    Event(9.5, "progress", "a", samples_done=5.0),
]


def test_a_live_run_gives_the_mean_of_what_it_measured_for_each_model() -> None:
    start, rescale = costs_from_events(LIVE)
    assert (start.of("net"), start.of("mlp")) == (5.0, 2.0)
    assert rescale.of("net") == 4.0


def test_a_model_without_a_measurement_gets_the_mean_over_all() -> None:
    start, rescale = costs_from_events(LIVE)
    assert start.of("other") == 4.0
    assert rescale.of("mlp") == 4.0


def test_where_nothing_was_rescaled_it_costs_what_a_start_costs() -> None:
    _, rescale = costs_from_events(LIVE[:7])
    assert (rescale.of("net"), rescale.of("mlp")) == (5.0, 2.0)


def test_a_run_that_measured_nothing_says_that_nothing_costs_anything() -> None:
    assert costs_from_events(LIVE[:2]) == (Cost(), Cost())


def test_a_simulated_run_says_costs_in_the_changes_themselves() -> None:
    run = [submitted("a", "net"), Event(0.0, "start", "a", 1, overhead_seconds=7.0)]
    assert costs_from_events(run)[0].of("net") == 7.0


def test_costs_are_named_as_seconds_by_model_or_as_a_file(tmp_path: Path) -> None:
    write_events(LIVE, tmp_path / "events.jsonl")
    assert parse_cost("30", "--rescale-cost", first=False) == Cost(30.0)
    assert parse_cost("bert=73,1", "--rescale-cost", first=False) == Cost(1.0, {"bert": 73.0})
    assert parse_cost(str(tmp_path / "events.jsonl"), "--start-cost", first=True).of("net") == 5.0
    assert parse_cost(str(tmp_path / "events.jsonl"), "--rescale-cost", first=False).of("net") == 4.0


@pytest.mark.parametrize("text", ["", "x", "bert=", "-1", "nan", "inf", "1,,2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--start-cost"):
        parse_cost(text, "--start-cost", first=True)


def test_a_missing_event_file_is_bad_input() -> None:
    with pytest.raises(BadInputError, match="no such file"):
        parse_cost("nowhere.jsonl", "--start-cost", first=True)


def test_an_event_file_that_measured_nothing_is_bad_input(tmp_path: Path) -> None:
    write_events(LIVE[:2], tmp_path / "events.jsonl")
    with pytest.raises(BadInputError, match="no measured start or rescale"):
        parse_cost(str(tmp_path / "events.jsonl"), "--start-cost", first=True)


def test_an_event_file_names_one_cost_or_that_of_each_model() -> None:
    assert Cost(30.0).for_models(["a", "b"]) == 30.0
    assert Cost(1.0, {"b": 2.0}).for_models(["b", "a", "b"]) == {"a": 1.0, "b": 2.0}


def test_a_profile_tells_what_starts_and_relaunches_took(tmp_path: Path) -> None:
    path = str(tmp_path / "p.parquet")
    rows = [
        replace(step(1, 8, 0.1), start_seconds=4.0, relaunch_seconds=6.0),
        replace(step(2, 8, 0.1), start_seconds=6.0, relaunch_seconds=9.0),
        replace(step(1, 8, 0.1, model="mlp"), start_seconds=2.0, relaunch_seconds=3.0),
    ]
    write_profile(Profile(tuple(rows)), path)
    assert parse_cost("profile", "--start-cost", first=True, profile=path).by_model == {
        "mlp": 2.0,
        "net": 5.0,
    }
    relaunch = parse_cost("profile", "--rescale-cost", first=False, profile=path)
    assert (relaunch.of("net"), relaunch.of("mlp"), relaunch.of("other")) == (7.5, 3.0, 6.0)


def test_a_profile_without_costs_and_none_at_all_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "p.parquet")
    write_profile(Profile((step(1, 8, 0.1),)), path)
    with pytest.raises(BadInputError, match="has no measured costs: measure with pliant profile --costs"):
        parse_cost("profile", "--rescale-cost", first=False, profile=path)
    for none in (None, "-"):
        with pytest.raises(UsageError, match="--rescale-cost profile: name the profile"):
            parse_cost("profile", "--rescale-cost", first=False, profile=none)
