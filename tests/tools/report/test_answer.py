import csv
import io
import json
from io import StringIO
from math import log, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.tools.report.expectations import expectations_of
from pliant.tools.report.groups import difference, estimate, groups, jct_difference, t_quantile
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, ReportFormat, render
from pliant.tools.report.rendering.sections import p_text
from pliant.tools.report.rendering.summary import Shown, summary
from pliant.tools.report.rendering.text import readable, readable_slack, span
from pliant.tools.report.report import Report, compare_jcts, make_report, steady, warnings_of, wilcoxon
from tests.builders import cluster, job
from tests.tools.report.runs import ran, story, submit


def run(policy: str, jcts: list[float], unfinished: int = 0, **info: object) -> RunRecord:
    """Jobs of one GPU that arrive together and end after these times."""
    events = [submit(job(f"j{n}"), 10.0) for n in range(len(jcts) + unfinished)]
    events += [event for n, jct_s in enumerate(jcts) for event in ran(f"j{n}", 0.0, jct_s)]
    return story(*events, policy=policy, **info)


def said(*runs: RunRecord, baseline: str | None = None) -> list[str]:
    return [*summary(make_report(runs, baseline=baseline)).answer.sentences]


SLOW = [100.0 + 20 * n for n in range(12)]
"""Mean 210."""


def test_intervals_of_means_and_ratios_by_hand():
    # 2, 4 and 6: variance 4, t = 4.3027 for two degrees of freedom.
    found = estimate([2.0, 4.0, 6.0])
    assert found.mean == 4.0
    assert found.slack == pytest.approx(4.3027 * sqrt(4 / 3))
    assert estimate([2.0]).slack is None
    assert estimate([]) is None
    for pairs in ([], [(0.0, 1.0)], [(1.0, 0.0)]):
        assert difference(pairs) is None
    # Means 2 and 4: deviations 1/2 − 1, 1 − 1, 3/2 − 1; their squares sum to a half.
    found = difference([(1.0, 4.0), (2.0, 4.0), (3.0, 4.0)], independent=True)
    slack = 4.3027 * sqrt(0.5 * 3 / 2) / 3
    assert (found.ratio, found.pairs) == (0.5, 3)
    assert (log(found.low), log(found.high)) == pytest.approx((log(0.5) - slack, log(0.5) + slack))
    # 60 jobs in ten batches of six: jobs that differ only within a batch say that nothing varies.
    found = difference([(1.0, 2.0), (3.0, 2.0)] * 30)
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))
    for degrees, expected in ((1, 12.7062), (4, 2.7764), (40, 2.02108), (200, 1.97190)):
        assert t_quantile(degrees) == pytest.approx(expected, abs=1e-4)


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=12, max_size=80))
def test_an_interval_turns_around_with_the_runs(pairs):
    there, back = difference(pairs), difference([(b, a) for a, b in pairs])
    assert 0 < there.low <= there.ratio <= there.high
    assert (1 / back.high, 1 / back.low) == pytest.approx((there.low, there.high), rel=1e-6)


def test_the_sentence_says_how_far_a_policy_is_from_another():
    fast = [0.7 * jct_s for jct_s in SLOW]
    (one,) = said(run("fifo", SLOW), run("ares", fast), baseline="fifo")
    assert one.startswith("ares: mean JCT 2 min 27 s, 30 % below fifo (95 % interval 30 to 30 %), worst-off ")
    assert one.endswith(" times its fair share.")
    (one,) = said(run("ares", [jct_s / 4 for jct_s in SLOW]), run("fifo", SLOW))
    assert "ares: mean JCT 52.5 s, 75 % below fifo" in one
    (one,) = said(run("fifo", SLOW, unfinished=1), run("ares", [4 * each for each in SLOW]))[:1]
    assert one.startswith("ares: mean JCT 14 min, 4.00 times that of fifo (95 % interval 4.00 to 4.00")
    mixed = [jct_s + (15 if n % 2 else -14) for n, jct_s in enumerate(SLOW)]
    (one,) = said(run("fifo", SLOW), run("las", mixed), baseline="fifo")
    assert "no clear difference from las (95 % interval" in one
    (one,) = said(run("fifo", SLOW[:3]), run("las", [50.0, 60.0, 70.0]))
    assert "las: mean JCT 1 min, 50 % below fifo (3 jobs: too few for an interval)" in one


def test_the_sentence_of_runs_that_do_not_compare():
    (one,) = said(run("fifo", SLOW, unfinished=2))
    assert one.startswith("fifo: mean JCT 3 min 30 s (12 of 14 jobs finished), ")
    assert said(run("fifo", [], unfinished=2)) == ["fifo: none of 2 jobs finished."]
    (one,) = said(run("fifo", SLOW), run("oasis", [1.0] * 11, unfinished=1))
    times = "200 times that of oasis over the 11 jobs that finished in both"
    assert one.startswith(f"fifo: mean JCT 3 min 30 s, {times}")
    found = said(run("fifo", SLOW), run("ares", SLOW, trace_hash="cd" * 32))
    assert [each.partition(",")[0] for each in found] == [
        "fifo ababab: mean JCT 3 min 30 s",
        "ares cdcdcd: mean JCT 3 min 30 s",
    ]


def test_the_sentence_says_what_no_real_policy_knows_or_may_do(golden_text):
    """Job a is paused under srtf; it may say that it saves."""
    stories = []
    for policy, knew, more in (("srtf", True, {}), ("las", False, {}), ("srtf", True, {"preemptible": True})):
        paused = [Event(0, "start", "a", 1), Event(1, "preempt", "a", 0), Event(2, "resume", "a", 1)]
        events = [submit(job("a", **more), 4.0), *paused, Event(5, "finish", "a", 0)]
        stories.append(story(*events, policy=policy, knew_work=knew))
    alone = [told for each in stories for told in said(each)]
    golden_text("\n".join(alone))
    assert "could pause" not in said(story(*events, policy="las"))[0]


def workloads() -> list[RunRecord]:
    """Two loads of two seeds each on two clusters; ares takes half as long where the load is high."""
    return [
        run(
            policy,
            [jct_s / 2 if (policy, load) == ("ares", "high") else jct_s] * 4,
            trace=f"{load}-t{seed}",
            trace_hash=f"{seed}{number}" * 32,
            nodes=cluster(gpus),
        )
        for policy in ("fifo", "ares")
        for number, (load, jct_s) in enumerate((("low", 20.0), ("high", 80.0)))
        for seed in range(2)
        for gpus in (4, 8)
    ]


def test_nothing_is_pooled_but_seeds():
    report = make_report(workloads(), baseline="fifo")
    assert warnings_of(report) == ()
    columns = {each.label: each for each in groups(report)}
    assert sorted(columns) == [
        f"{policy} {load} on {gpus} GPUs"
        for policy in ("ares", "fifo")
        for load in ("high", "low")
        for gpus in (4, 8)
    ]
    assert {each.units_text() for each in columns.values()} == {"2 traces"}
    means = {name: each.value("mean_jct_s") for name, each in columns.items()}
    assert (means["ares high on 4 GPUs"], means["fifo low on 8 GPUs"]) == (40.0, 20.0)
    found = summary(report)
    against = next(row for row in found.table.rows if "against" in row[0])
    changes = dict(zip(found.table.headers, against, strict=True))
    assert changes[""] == "… against fifo"
    assert [changes[f"ares {load} on 8 GPUs"] for load in ("low", "high")] == ["0.00 %", "−50 %"]
    assert len(found.answer.sentences) == 4  # one for each workload and cluster
    document = json.loads(render(report, "json", Extras()))
    bases = {each["name"]: each["mean_jct"] and each["mean_jct"]["of"] for each in document["groups"]}
    assert bases["ares high on 8 GPUs"] == "fifo high on 8 GPUs"


def swept() -> list[RunRecord]:
    """Under ares seeds 0 to 2 take 80, 90 and 100 s, under fifo always 100 s."""
    ares = [run("ares", [80.0 + 10 * seed] * 4, seed=seed) for seed in range(3)]
    return [*ares, *(run("fifo", [100.0] * 4, seed=seed) for seed in range(3))]


def test_a_sweep_is_a_column_a_policy_or_one_for_each_run():
    # Mean 90 and variance 100 over three seeds: 4.3027 · √(100 / 3) = 24.8.
    found = summary(make_report(swept(), baseline="fifo"))
    assert found.table.headers == ("", "fifo", "ares")
    rows = {row[0]: row[1:] for row in found.table.rows}
    assert rows["JCT, mean"] == ("1 min 40 s", "* 1 min 30 s ± 25 s")
    assert rows["… against fifo"] == ("", "−10 %")
    assert "over 3 seeds)" in found.answer.sentences[0]
    assert "means over 3 seeds; ±: half of the 95 % interval" in found.table.notes
    report = make_report(swept())
    assert len(groups(report, each_run=True)) == 6
    assert "ares seed=2" in summary(report, Shown(each_run=True)).table.headers


def test_runs_of_a_sweep_are_divided_by_the_run_of_their_seed():
    made = make_report(swept(), baseline="fifo")
    rows = list(csv.DictReader(StringIO(render(made, "csv", Extras()))))
    ratios = {row["run"]: float(row["mean_jct_s_ratio"]) for row in rows}
    assert [ratios[f"ares seed={seed}"] for seed in range(3)] == pytest.approx([0.8, 0.9, 1.0])
    assert all(ratio == 1 for name, ratio in ratios.items() if name.startswith("fifo"))
    relative = {each.policy: each.value for each in expectations_of(made).figures if each.over}
    assert relative["ares seed=0"] == pytest.approx(0.8)


def test_which_runs_are_seeds_of_one_another():
    runs = [
        run("ares", [jct_s], trace_hash=trace * 32, seed=seed)
        for trace, seed, jct_s in (("ab", 0, 10.0), ("ab", 1, 20.0), ("cd", 0, 45.0))
    ]
    (group,) = groups(make_report(runs))
    found = group.estimate("mean_jct_s")
    assert (found.mean, found.count, group.units_text()) == (30.0, 2, "2 traces")
    assert len(groups(make_report([run("fifo", SLOW), run("fifo", SLOW)]))) == 2
    assert len(groups(make_report([run("fifo", SLOW, seed=seed) for seed in (0, 0, 1)]))) == 3


def test_each_seed_is_compared_with_its_own():
    # Twice as fast under each: that is sure, however far the seeds are apart.
    ares = [run("ares", [jct_s], seed=seed) for seed, jct_s in enumerate((10.0, 40.0, 90.0))]
    fifo = [run("fifo", [jct_s], seed=seed) for seed, jct_s in enumerate((20.0, 80.0, 180.0))]
    base, group = groups(make_report([*fifo, *ares]))
    found = jct_difference(group, base)
    assert (found.ratio, found.low, found.high, found.pairs) == pytest.approx((0.5, 0.5, 0.5, 3))
    one, several = groups(make_report([run("las", [85.0] * 4, seed=0), *swept()[:3]]))
    there, back = jct_difference(one, several), jct_difference(several, one)
    assert (there.pairs, there.ratio * back.ratio) == (back.pairs, pytest.approx(1.0))


@pytest.mark.parametrize(
    "worlds",
    [
        [{"profile_hash": "ab" * 32}, {"profile_hash": "cd" * 32}],
        [{"rescale_cost_s": {"net": 1.0}}, {"rescale_cost_s": {"net": 600.0}}],
        [{"start_cost_s": {"net": 1.0}}, {"start_cost_s": {"net": 2.0}}],
        [{"resume_cost_s": {"net": 1.0}}, {}],
    ],
)
def test_runs_in_different_worlds_are_no_seeds_of_each_other(worlds):
    of_seeds = [run("fifo", SLOW, seed=seed, **world) for seed, world in enumerate(worlds)]
    assert len(groups(make_report(of_seeds))) == 2
    hashes = ("ab" * 32, "cd" * 32)
    of_traces = [run("fifo", SLOW, trace_hash=t, **world) for t, world in zip(hashes, worlds, strict=True)]
    assert len(groups(make_report(of_traces))) == 1 + ("resume_cost_s" in worlds[0])


def test_documents_have_groups_and_long_rows():
    found = json.loads(render(make_report(swept(), baseline="fifo"), "json", Extras()))
    assert found["answer"][0].startswith("ares: mean JCT 1 min 30 s")
    fifo, ares = found["groups"]
    assert (fifo["mean_jct"], ares["runs"]) == (None, ["ares seed=0", "ares seed=1", "ares seed=2"])
    assert ares["figures"]["mean_jct_s"]["mean"] == 90.0
    assert (ares["mean_jct"]["of"], ares["mean_jct"]["ratio"], ares["mean_jct"]["pairs"]) == ("fifo", 0.9, 3)
    rows = list(csv.DictReader(StringIO(render(make_report(swept()), "csv-long", Extras()))))
    jcts = {(row["group"], row["seed"]): row["value"] for row in rows if row["metric"] == "mean_jct_s"}
    assert jcts["ares", "1"] == "90.0"
    assert len(jcts) == 6
    assert not any(row["metric"] == "total_utility" for row in rows)


def preempted(cost_s: float) -> RunRecord:
    events = [submit(job("a"), 10.0), *ran("a", 0, 5)[:1]]
    for at in (1, 2, 3):
        events += [Event(at, "preempt", "a", 0), Event(at + 0.5, "resume", "a", 1, overhead_seconds=cost_s)]
    return story(*events, Event(15, "finish", "a", 0), policy="las")


def test_notes_of_runs_are_said_once():
    told = "its 3 preemptions a job cost no time in this replay: state --rescale-cost and --start-cost"
    assert told in make_report([preempted(0.0)]).runs[0].caveats
    assert not any("cost no time" in text for text in make_report([preempted(1.0)]).runs[0].caveats)
    report = make_report([run("fifo", SLOW, unfinished=1), run("las", SLOW, unfinished=1)])
    text = render(report, "table", Extras())
    assert text.count("1 unfinished of 13 jobs") == 1
    assert "pliant 0.1.0" not in text
    assert "pliant 0.1.0" in render(report, "table", Extras(shown=Shown(verbose=True)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (3.417, "3.42 s"), (59.96, "1 min"), (545, "9 min 5 s"), (3599.7, "1 h")),
        *((8040, "2 h 14 min"), (98_040, "27 h 14 min"), (734_400, "204 h"), (8_000_000, "92 d 14 h")),
        *((-65_457, "−18 h 11 min"), (-0.0, "0 s"), (5.34e-4, "0 s")),
    ],
)
def test_times_read(seconds, text):
    assert span(seconds) == text


@given(st.floats(1e-3, 1e9))
def test_a_time_keeps_at_least_about_three_digits(seconds):
    lengths = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    parts = span(seconds).replace(",", "").split()
    found = sum(float(n) * lengths[unit] for n, unit in zip(parts[::2], parts[1::2], strict=True))
    assert found == pytest.approx(seconds, rel=0.0051)


def test_numbers_have_three_digits_and_their_unit():
    assert readable(0.31249, "percent") == "31.2 %"
    assert readable(33.645, "ratio") == "33.6"
    assert readable(99.96, "ratio") == "100"
    assert readable(12_345.6, "ratio") == "12,346"
    assert readable(None, "time") == "–"
    assert readable_slack(186, "time") == "3.1 min"


LONG = tuple(range(10, 18))


def named_run(jcts: dict[str, float], **info: object) -> RunRecord:
    """Jobs that arrive a second apart and take so many seconds."""
    arrivals = {name: float(number) for number, name in enumerate(jcts)}
    ends = (Event(arrivals[name] + jct_s, "finish", name, 0) for name, jct_s in jcts.items())
    return story(*(submit(job(name, at=at), 10.0) for name, at in arrivals.items()), *ends, **info)


def test_wilcoxons_test_by_hand():
    # The least of 2⁸ equally likely sums of ranks: 1/256 on one side, 2/256 on both.
    longer = [value + number + 1 for number, value in enumerate(LONG)]
    found = wilcoxon(LONG, longer)
    assert found.pairs == 8
    assert found.less == pytest.approx(1 / 256)
    assert found.two_sided == pytest.approx(2 / 256)
    assert found.greater == pytest.approx(1.0)
    turned = wilcoxon(longer, LONG)
    assert (turned.less, turned.greater) == pytest.approx((found.greater, found.less))
    found = wilcoxon(LONG, LONG)
    assert (found.pairs, found.two_sided, found.greater, found.less) == (8, 1.0, 1.0, 1.0)
    for left, right in (((), ()), ((1.0,), (1.0, 2.0))):
        with pytest.raises(UsageError, match="in pairs"):
            wilcoxon(left, right)


def test_pairs_are_of_jobs_that_finished_in_both_runs():
    fast = {name: 100.0 + number for number, name in enumerate("abcdefgh")}
    slow = {name: 2 * jct_s + number for number, (name, jct_s) in enumerate(reversed(fast.items()))}
    first = named_run(fast)
    assert compare_jcts(first, named_run(slow)).less == pytest.approx(1 / 256)
    del slow["h"]
    assert compare_jcts(first, named_run(slow)).pairs == 7
    found = named_run({f"j{number:02}": 50.0 for number in range(30)})
    two_of_30 = [each.id for each in steady(found, 0.05)][:2]
    assert two_of_30 == ["j02", "j03"], "five per cent, rounded up"
    assert len(steady(found)) == 30
    assert compare_jcts(found, found, 0.05).pairs == 28
    with pytest.raises(UsageError, match="different traces"):
        compare_jcts(named_run({"a": 1.0}), named_run({"a": 2.0}, trace_hash="cd" * 32))


def timed_run(policy: str, longer: float = 1.0, jobs: int = 8, **info: Any) -> RunRecord:
    """Jobs that take 100, 101, … seconds, times ``longer``; of eight only so many finish."""
    return run(policy, [longer * (100.0 + n) for n in range(jobs)], 8 - jobs, **info)


def beside(*others: RunRecord) -> Report:
    return make_report([timed_run("fifo"), *others], baseline="fifo")


def shown(report: Report, kind: ReportFormat) -> str:
    return render(report, kind, Extras(shown=Shown(all_rows=True)))


def test_table_document_and_csv_have_the_paired_test() -> None:
    # Eight pairs of one sign: one of 256 sums of ranks, or two.
    text = shown(beside(timed_run("ares", 0.5)), "table")
    assert "Against fifo: mean JCTs and Wilcoxon's signed-rank tests" in text
    (row,) = (line.split() for line in text.splitlines() if line.split()[:2] == ["ares", "8"])
    assert row == ["ares", "8", "jobs", "−50", "%", "0.00781", "1.00000", "0.00391"]
    first, second = json.loads(shown(beside(timed_run("ares", 0.5)), "json"))["runs"]
    assert first["paired"] is None, "the baseline itself"
    assert second["paired"] == pytest.approx(
        {"pairs": 8, "two_sided": 2 / 256, "greater": 1.0, "less": 1 / 256}
    )
    assert second["ratios"]["mean_jct_s"] == 0.5
    fifo, ares = csv.DictReader(io.StringIO(shown(beside(timed_run("ares", 2.0)), "csv")))
    assert (fifo["paired_pairs"], ares["paired_pairs"]) == ("", "8")
    assert float(ares["paired_greater"]) == pytest.approx(1 / 256)
    found = [p_text(p) for p in (0.99974, 5.17e-4, 7.55e-10, 0.0)]
    assert found == ["0.99974", "0.00052", "7.5e-10", "0.00000"]


def test_only_runs_beside_a_baseline_of_their_trace_are_paired() -> None:
    report = beside(timed_run("ares", 0.5, jobs=5), timed_run("las", jobs=0))
    assert {label: found.pairs for label, found in report.paired.items()} == {"ares": 5}
    report = beside(timed_run("ares", trace_hash="cd" * 32))
    assert report.paired == {}
    assert "Wilcoxon" not in shown(report, "table")
    assert any("different traces" in warning for warning in report.warnings)
    report = make_report([timed_run("fifo"), timed_run("ares")])
    assert report.paired == {}
    assert "Wilcoxon" not in shown(report, "md")
