"""The study of policies on the home grounds of others, small enough for a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.rivals import today
from experiments.rivals.figures import facts
from experiments.rivals.grounds import grounds
from pliant.tools.schedule.registry import BUILT_IN


def ground(by_deadline: bool, **values: float) -> dict[str, object]:
    name = "met" if by_deadline else "mean_jct_s"
    rest = {"mean_jct_s": 1.0, "p99_jct_s": 2.0, "makespan_s": 3.0}
    replays = {policy.replace("_", "-"): {**rest, name: value} for policy, value in values.items()}
    return {
        "title": "there",
        "home": "fifo",
        "by_deadline": by_deadline,
        "published": {},
        "replays": replays,
        "varied": {"costs nothing": replays},
    }


@pytest.mark.parametrize(
    ("by_deadline", "home", "other", "ours", "ahead"),
    [
        (True, 0.5, 0.6, 0.7, True),
        (True, 0.9, 0.6, 0.7, False),
        (True, 0.1, 0.2, 0.2, False),
        (False, 30.0, 20.0, 10.0, True),
        (False, 30.0, 20.0, 19.9, False),
        (False, 5.0, 20.0, 10.0, False),
    ],
)
def test_ahead_is_better_than_all_others_by_over_a_percent(
    by_deadline: bool, home: float, other: float, ours: float, ahead: bool
) -> None:
    result = ground(by_deadline, fifo=home, srtf=other, shadow_price=ours)
    assert facts({"grounds": {"a": result}, "today": {}})["ahead"] == (["there"] if ahead else [])


@pytest.mark.services
def test_all_policies_of_the_grounds_are_there(reference_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_DATA", str(reference_data))
    result = grounds()
    assert {policy for each in result.values() for policy in each.policies} <= BUILT_IN.keys()
    assert all(each.home in each.policies and each.published for each in result.values())


HELIOS = """\
job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u,8,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 01:00:00,3600,0
2,u,8,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 01:00:00,2020-04-01 01:10:00,600,3600
"""


def test_recorded_days_are_compared_with_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_DATA", str(tmp_path))
    file = tmp_path / today.DAYS["helios"].file
    file.parent.mkdir(parents=True)
    file.write_text(HELIOS)
    tasks = {name: task for name, task in today.tasks().items() if name.endswith(("recorded", "srtf"))}
    result = today.gathered({name: task() for name, task in tasks.items()})
    replays = result["helios"]["replays"]
    assert not result["acme"]["replays"], "its file is not there"
    assert replays["recorded"]["gpus"] == 8, "as many as were held at a time"
    assert replays["recorded"]["mean_jct_s"] == (3600 + 4200) / 2
    assert replays["srtf"]["mean_jct_s"] == (600 + 4200) / 2, "the short job first"
    message = facts({"grounds": {}, "today": result})
    assert message["today"].keys() == {"Helios, Saturn"}
    assert "acme/trace_seren.csv" in message["absent"]
