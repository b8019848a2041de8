"""Wilcoxon's test of two runs, by hand and on event files."""

from __future__ import annotations

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from pliant.tools.report.report import compare_jcts, steady, wilcoxon
from tests.builders import job
from tests.tools.report.runs import begin, submit

LONG = tuple(range(10, 18))


def run(jcts: dict[str, float], **info: object) -> RunRecord:
    """Jobs that arrive a second apart and take so many seconds."""
    arrivals = {name: float(number) for number, name in enumerate(jcts)}
    return fold(
        [
            begin(**info),
            *(submit(job(name, at=at), 10.0) for name, at in arrivals.items()),
            *(Event(arrivals[name] + jct_s, "finish", name, 0) for name, jct_s in jcts.items()),
        ]
    )


def test_eight_pairs_of_one_sign_by_hand():
    """The least of 2⁸ equally likely sums of ranks: 1/256 on one side, 2/256 on both."""
    longer = [value + number + 1 for number, value in enumerate(LONG)]
    found = wilcoxon(LONG, longer)
    assert found.pairs == 8
    assert found.less == pytest.approx(1 / 256)
    assert found.two_sided == pytest.approx(2 / 256)
    assert found.greater == pytest.approx(1.0)
    turned = wilcoxon(longer, LONG)
    assert (turned.less, turned.greater) == pytest.approx((found.greater, found.less))


def test_equal_values_speak_against_nothing():
    assert wilcoxon(LONG, LONG).two_sided == 1.0


@pytest.mark.parametrize(("left", "right"), [((), ()), ((1.0,), (1.0, 2.0))])
def test_values_without_partners_are_refused(left, right):
    with pytest.raises(UsageError, match="in pairs"):
        wilcoxon(left, right)


def test_jobs_are_paired_by_their_names_and_those_unfinished_left_out():
    fast = {name: 100.0 + number for number, name in enumerate("abcdefgh")}
    slow = {name: 2 * jct_s + number for number, (name, jct_s) in enumerate(reversed(fast.items()))}
    first = run(fast)
    assert compare_jcts(first, run(slow)).less == pytest.approx(1 / 256)
    del slow["h"]
    assert compare_jcts(first, run(slow)).pairs == 7


def test_the_first_jobs_found_the_cluster_empty():
    found = run({f"j{number:02}": 50.0 for number in range(30)})
    assert [each.id for each in steady(found, 0.05)][:2] == ["j02", "j03"], (
        "two of 30 are five per cent, rounded up"
    )
    assert len(steady(found)) == 30
    assert compare_jcts(found, found, 0.05).pairs == 28


def test_runs_of_different_traces_are_not_compared():
    with pytest.raises(UsageError, match="different traces"):
        compare_jcts(run({"a": 1.0}), run({"a": 2.0}, trace_hash="cd" * 32))
