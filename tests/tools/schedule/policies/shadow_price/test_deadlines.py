"""What shadow-price makes of deadlines and utilities. Cases worked out by hand; a change costs 30 s."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job, Utility
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.policies.shadow_price import policy as module
from pliant.tools.schedule.policies.shadow_price.deadlines import with_deadlines
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, decided, job, opened, sizes
from tests.effort import examples
from tests.tools.schedule.policies.started import started

SOFT = {"shape": "sigmoid", "target": 1200.0, "decay": 0.05, "value": 10.0}


def _job(name: str, samples: float, **more: object) -> Job:
    return job(name, **{"low": 1, "high": 4, "work": {"samples": samples}, **more})


def _due(name: str, samples: float, target_s: float, value: float = 1.0, **more: object) -> Job:
    """A job that is worth a value until a time and nothing later; a sample takes a GPU-second."""
    return _job(name, samples, utility={"shape": "step", "target": target_s, "value": value}, **more)


def _held(*jobs: Job, **parameters: float) -> Session:
    return started(ShadowPrice(**parameters), cluster(4), *jobs)


def _decided(*jobs: Job) -> dict[str, int]:
    return sizes(_held(*jobs))


def test_a_job_that_is_due_comes_before_a_shorter_one():
    assert _decided(_job("long", 4000), _job("short", 1000)) == {"short": 4}
    assert _decided(_due("long", 4000, 1100), _job("short", 1000)) == {"long": 4}


@pytest.mark.parametrize(("target_s", "gpus"), [(1430, 4), (1500, 3), (2150, 2), (4300, 1)])
def test_it_gets_the_fewest_gpus_that_end_it_in_time(target_s: float, gpus: int):
    """4000 s on one GPU, 30 s to start, 90 s for another change; the rest goes to the shorter job."""
    result = _decided(_due("long", 4000, target_s), _job("short", 100))
    assert result == ({"long": gpus, "short": 4 - gpus} if gpus < 4 else {"long": 4})


@pytest.mark.parametrize(
    ("jobs", "gpus"),
    [
        pytest.param([_due("less", 1000, 400), _due("more", 1100, 350)], {"less": 4}, id="of less GPU time"),
        pytest.param(
            [_due("less", 1000, 400), _due("more", 1100, 350, value=1.2)],
            {"more": 4},
            id="that earns more for its GPU time",
        ),
        pytest.param(
            [_due("later", 2000, 1000), _due("sooner", 1600, 480)], {"sooner": 4}, id="due first, of two"
        ),
        pytest.param(
            [_due("late", 1000, 10), _job("rigid", 1e5, low=None, high=None, gpus=3)],
            {"late": 1, "rigid": 3},
            id="a late one takes what is idle",
        ),
        pytest.param(
            [_due("less", 1000, 400), _due("first", 1100, 400, priority=1.0)],
            {"first": 4},
            id="of equal deadlines the class above",
        ),
        pytest.param([_job("soft", 4000, utility=SOFT), _job("short", 1000)], {"soft": 4}, id="a soft one"),
        pytest.param(
            [_job("soft", 4000, utility=SOFT | {"decay": 0.0005}), _due("hard", 2000, 600, value=5.0)],
            {"hard": 4},
            id="a soft one that loses little by an end 500 s later, beside one that loses all",
        ),
    ],
)
def test_the_job_that_earns_most_is_saved(jobs: list[Job], gpus: dict[str, int]):
    assert _decided(*jobs) == gpus


def test_passed_deadlines_come_last_and_none_stated_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, long = _due("late", 100, 10), _job("long", 1e5)
    held = _held(late, long)
    assert sizes(held) == {"long": 4}
    assert "comes last" in held.explain(0.0)["late"].reason

    held = _held(late, long, grace=1.0, grace_s=60.0)
    assert any("late" in decided(held, 60.0 * minute) for minute in range(40))

    held = _held(_due("long", 4000, 2150), _job("short", 100))
    assert "is to end within 36 min, with 2 GPUs or fewer at a time" in held.explain(0.0)["long"].reason

    # Two workers fit the cluster, not eight: the job that is due leaves none for the other.
    fills = {"high": 8, "resources": {"worker": {"cpu": 8.0}}}
    nodes = Cluster(nodes=tuple(Node(name=name, gpus=4, cpus=8) for name in ("n0", "n1")))
    jobs = _due("due", 2000, 1100, **fills), _job("short", 100, **fills)
    assert decided(opened(ShadowPrice(), nodes, *jobs), 0.0) == {"due": 2}
    monkeypatch.setattr(module, "with_deadlines", lambda *_: pytest.fail("looked for deadlines"))
    flat = {"shape": "sigmoid", "value": 3.0, "target": 50.0}
    jobs = [_job("a", 4000, utility={"value": 7.0}), _job("b", 1000, utility=flat)]
    jobs.append(job("c", low=1, high=4, utility={"shape": "step", "target": 100.0}))
    assert _decided(*jobs) == _decided(*(each.model_copy(update={"utility": Utility()}) for each in jobs))


_DUE = st.tuples(st.floats(10, 1e5), st.floats(1, 1e5), st.floats(0.1, 10), st.integers(1, 4))


@settings(max_examples=examples(60))
@given(st.lists(_DUE, min_size=1, max_size=8), st.integers(0, 3))
def test_a_plan_saves_or_gives_up_each_job_on_the_gpus_there_are(drawn: list[tuple], others: int):
    jobs = [
        _due(f"d{number}", samples, target_s, value, low=low, gpus=low)
        for number, (samples, target_s, value, low) in enumerate(drawn)
    ]
    jobs += [_job(f"o{number}", 1000) for number in range(others)]
    held, seen = opened(ShadowPrice(), cluster(4), *jobs), []

    def noted(*asked: object) -> object:
        seen.append((asked[0], with_deadlines(*asked)[2]))
        return with_deadlines(*asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "with_deadlines", noted)
        for time_s in (0.0, 60.0):
            held.decide(time_s)
    for members, plan in seen:
        rows = [*plan.given_up, *(each.row for each in plan.saved)]
        assert sorted(rows) == [row for row, each in enumerate(members.jobs) if each.id.startswith("d")]
        assert sum(members.sizes[each.now] for each in plan.saved) <= 4
        for each in plan.saved:
            longest_s = each.deadline_s - (0.0 if members is seen[0][0] else 60.0)
            assert members.whole[each.row, each.most] * longest_s >= members.left[each.row] * (1 - 1e-6)
    assert sum(sizes(held).values()) <= 4


@pytest.mark.parametrize("own", [{"gpus": 4}, {"low": 1, "high": 4}])
def test_a_running_job_that_is_in_time_where_it_is_goes_on(own: dict[str, int]):
    """It ends after 1,030 s where it is; after a change, it would end 30 s later, past its time."""
    due = job("due", **own, work={"samples": 4000}, utility={"shape": "step", "target": 1040})
    other = job("other", **own, work={"samples": 1000})
    world = SimulatedCluster(start_cost=Cost(30.0), rescale_cost=Cost(30.0))
    done = replay(inputs([due, other], cluster(4)), Run("shadow-price", simulated=world))
    assert [each.time for each in done.log.events() if (each.event, each.job) == ("finish", "due")] == [1030]


def test_a_job_that_does_nothing_where_it_is_has_to_move():
    """Three jobs of two GPUs on two nodes of three: no job trains across nodes."""
    apart = TimedSteps(lambda _model, _gpus, place, batch: batch / sum(place) if len(place) == 1 else None)
    due = {"gpus": 2, "work": {"samples": 1e4}, "utility": {"shape": "step", "target": 1e5}}
    held = opened(ShadowPrice(), cluster(3, 3), *(job(f"j{n}", **due) for n in range(3)), throughput=apart)
    for time_s in (0.0, 60.0, 120.0):
        held.decide(time_s)
    assert sum(state.gpus for state in held.jobs.values()) >= 4


@pytest.mark.parametrize("utility", [{"decay": 1e-310}, {"value": 5e-324, "decay": 1.0}])
def test_utilities_that_hardly_differ_are_read_as_they_are(utility: dict[str, float]):
    soft = _job("soft", 100, utility={"shape": "sigmoid", "target": 9, **utility})
    assert _decided(soft) == {"soft": 4}


def test_a_job_that_is_given_up_takes_gpus_that_are_idle():
    """Its weight beside theirs is below what a sum of floating point numbers keeps."""
    first = [job(f"h{n}", priority=2, work={"samples": 1e6 + n}) for n in range(20)]
    second = job("m", gpus=4, priority=1, work={"samples": 1e6})
    late = job("late", gpus=2, work={"samples": 1e6}, utility={"shape": "step", "target": 1.0})
    held = opened(ShadowPrice(grace=None), cluster(22), *first, second, late)
    assert decided(held, 0.0)["late"] == 2
