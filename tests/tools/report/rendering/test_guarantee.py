"""What a policy promises against GPS, beside the jobs for which it did not hold."""

from __future__ import annotations

from pliant.schemas.event import Event
from pliant.tools.report.fairness import Reference
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.sections import guarantee_section
from pliant.tools.report.report import make_report
from tests.builders import job
from tests.tools.report.runs import begin, submit

TITLE = "What the policy promises against GPS"


def longest_first(
    samples: tuple[float, ...] = (16.0, 8.0, 8.0), gps_delay: float | None = 0.125
) -> RunRecord:
    """Jobs j0, j1, … from time 0 on all four GPUs, one after another."""
    bounds = None if gps_delay is None else {"gps_delay": gps_delay}
    events, now = [begin(policy="mine", bounds=bounds)], 0.0
    work = {f"j{number}": each for number, each in enumerate(samples)}
    events += [submit(job(name, gpus=4, low=1), each) for name, each in work.items()]
    for name, each in work.items():
        events += [Event(now, "start", name, 4), Event(now + each / 4, "finish", name, 0)]
        now += each / 4
    return fold(events)


def test_bound_worst_delay_and_the_jobs_past_it():
    # in GPS j1 and j2 end at 6 s, here at 6 and 8; an eighth of the 8 s in which all GPUs are held is allowed
    section = guarantee_section(make_report([longest_first()]))
    assert section.rows == (("mine", "1 s", "2 s", "114.3", "1", "3", "j2 2 s"),)


def test_of_many_jobs_the_latest_are_named():
    falling = tuple(40.0 * left for left in range(12, 0, -1))
    section = guarantee_section(make_report([longest_first(falling, gps_delay=0.0)]))
    *_, past, of, named = section.rows[0]
    assert (past, of) == ("6", "12")
    assert named.split(", ")[0].startswith("j11 ")
    assert named.split(", ")[5:] == ["1 more"]


def test_a_policy_that_promises_nothing_has_no_row():
    report = make_report([longest_first(gps_delay=None), longest_first()])
    assert [row[0] for row in guarantee_section(report).rows] == [report.runs[1].label]


def test_the_report_shows_it_against_gps_alone():
    def text(reference: Reference) -> str:
        return render(make_report([longest_first()], reference=reference), "md", Extras())

    assert TITLE in text("gps")
    assert TITLE not in text("fair-share")
