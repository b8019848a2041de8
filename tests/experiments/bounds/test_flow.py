"""The dual bound of the sum of JCTs, and how near a schedule comes to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.bounds.covers import BoundJob, Cover, concave_hull, covers_of
from experiments.bounds.flow import flow_bound
from experiments.bounds.fluid import Parts, fluid_jct_s
from tests.effort import examples


def test_the_bound_and_the_fluid_schedule_by_hand() -> None:
    job = BoundJob(5.0, (Cover(np.array([0.0, 1.0, 1.8, 1.5]), 9.0),))
    assert flow_bound([job], 3) == pytest.approx(9 / 1.8)

    # On one machine the least sum of JCTs is known; the bound comes within three per cent.
    work = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0]
    jobs = [BoundJob(0.0, (Cover(np.arange(5.0), each),)) for each in work]
    least = float(np.cumsum(work).mean()) / 4
    assert 0.97 * least <= flow_bound(jobs, 4) <= least * (1 + 1e-9)

    # Half of the work runs on one GPU only: four times the GPUs do not make it four times as fast.
    rates = np.array([[0.0, 1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    assert flow_bound([BoundJob(0.0, covers_of(rates, [8.0, 8.0]))], 4) == pytest.approx(8 + 2)
    sizes, heights = concave_hull(np.array([0.0, 0.0, 3.0, 2.0, 4.0, 1.0]))
    assert (sizes.tolist(), heights.tolist()) == ([0, 2, 4], [0.0, 3.0, 4.0])
    # Shorter jobs come first and parts follow one another.
    # On 2 GPUs the first trains 2 of its 8, the second its 4 until 3 s, then the first its other 6.
    assert fluid_jct_s([0.0, 1.0], [one_part(8.0), one_part(4.0)], 2) == pytest.approx((6.0 + 2.0) / 2)

    # A part that does not scale takes one GPU, so that both jobs train it at once.
    work = Parts(np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 2.0]]), np.array([3.0, 4.0]))
    assert work.after().tolist() == [[np.inf, 4.0, 2.0], [0.0, 0.0, 0.0]]
    assert fluid_jct_s([0.0], [work], 2) == pytest.approx(3.0 + 2.0)
    assert fluid_jct_s([0.0, 0.0], [work, work], 2) == pytest.approx(3.0 + (2.0 + 4.0) / 2)


LINEAR = np.arange(3.0)


def one_part(work: float) -> Parts:
    return Parts(LINEAR[None, :], np.array([work]))


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.1, 30.0)), min_size=1, max_size=6))
def test_it_is_never_below_the_bound(jobs: list[tuple[float, float]]) -> None:
    rates = np.array([[0.0, 1.0, 1.0, 1.0, 1.0], np.arange(5.0) ** 0.7])
    releases_s, works = [at for at, _ in jobs], [Parts(rates, np.array([0.5, each])) for _, each in jobs]
    bound_s = flow_bound(
        [BoundJob(at, covers_of(rates, work.work)) for at, work in zip(releases_s, works, strict=True)],
        4,
        cells=12,
        rounds=12,
    )
    assert bound_s <= fluid_jct_s(releases_s, works, 4) * (1 + 1e-9)
