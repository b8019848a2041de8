import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_metrics
from pliant.schemas.metrics import RUN_ROWS, ReportedRun
from pliant.schemas.text import width_of
from pliant.tools.report.comparisons import compare_runs
from pliant.tools.report.expectations import Expectations, check_expectations
from pliant.tools.report.figures.plots import jct_plot
from pliant.tools.report.read_run import fold
from pliant.tools.report.rendering import sections
from pliant.tools.report.rendering.output import Extras, document, render
from pliant.tools.report.rendering.page import page, page_data, stretches
from pliant.tools.report.rendering.summary import Shown
from pliant.tools.report.rendering.text import drawn, terms_text, wrapped_prose
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.effort import examples
from tests.tools.report.runs import begin, check_golden, first_come, ran, shared, story, submit


@pytest.fixture(scope="module")
def report():
    runs = [fold(first_come(), "out/fifo.parquet"), fold(shared(), "out/ares.parquet")]
    return make_report(runs, baseline="fifo")


@pytest.fixture(scope="module")
def one_run():
    return make_report([fold(shared(simulated=False, profile_hash="cd" * 32))])


@pytest.mark.parametrize(
    ("name", "form", "extras"),
    [
        ("table.txt", "table", Extras()),
        ("all.txt", "table", Extras(jobs=True, shown=Shown(all_rows=True, explain=True, verbose=True))),
        ("report.md", "md", Extras()),
        ("runs.csv", "csv", Extras()),
        ("jobs.csv", "csv", Extras(jobs=True)),
    ],
)
def test_two_policies_side_by_side_in_each_form(report, name, form, extras):
    check_golden(name, render(report, form, extras))


def test_a_simulated_run_beside_the_measured_one(one_run):
    twin = fold(shared())
    extras = Extras(compared=compare_runs(one_run.runs[0].run, twin), simulated=twin)
    check_golden("compared.md", render(one_run, "md", extras))
    rows = list(csv.DictReader(StringIO(render(one_run, "csv", extras))))
    assert [(row["job"], row["ratio"]) for row in rows] == [("a", "1.0"), ("b", "1.0"), ("c", "1.0")]


def test_the_metrics_document_is_read_back(one_run, tmp_path):
    text = render(one_run, "json", Extras())
    (tmp_path / "metrics.json").write_text(text)
    assert read_metrics(tmp_path / "metrics.json") == document(one_run)
    found = json.loads(text)
    (run,) = found["runs"]
    assert {*run, "step_times", "teams"} == set(ReportedRun.model_fields)
    assert (found["baseline"], found["expectations"], run["ratios"], run["jobs"]) == (None,) * 4


def test_the_document_has_ratios_jobs_and_expected_figures(report):
    figures = [
        {"policy": "ares", "over": "fifo", "metric": "mean_jct_s", "value": 0.9, "tolerance": 0.1},
        {"policy": "fifo", "metric": "mean_jct_s", "high": 100.0},
    ]
    expected = Expectations.model_validate_json(json.dumps({"figures": figures}))
    extras = Extras(jobs=True, checked=check_expectations(report, expected))
    found = json.loads(render(report, "json", extras))
    fifo, ares = found["runs"]
    assert (found["baseline"], fifo["run"], ares["run"]) == ("fifo", "fifo", "ares")
    assert (fifo["ratios"]["mean_jct_s"], ares["ratios"]["mean_jct_s"]) == (1.0, 154 / 175)
    assert "gps_bound_s" not in ares["ratios"]
    outcomes = [(row["job"], row["outcome"]) for row in fifo["jobs"]]
    assert outcomes == [("a", "finished"), ("b", "finished"), ("c", "unfinished")]
    assert (fifo["jobs"][0]["jct_s"], fifo["jobs"][2]["jct_s"]) == (120.0, None)
    assert fifo["caveats"] == ["1 unfinished of 3 jobs: in no JCT and no FTF"]
    holds, fails = found["expectations"]
    assert (holds["over"], holds["found"], holds["holds"]) == ("fifo", 154 / 175, True)
    names = ("value", "low", "high", "found", "holds")
    assert [fails[name] for name in names] == [None, None, 100.0, 175.0, False]


@pytest.mark.parametrize(
    ("form", "message"), [("json", "--simulated: use --format csv"), ("csv", "either --jobs or --simulated")]
)
def test_a_form_has_no_place_for_all_that_can_be_asked_for(one_run, form, message):
    with pytest.raises(UsageError, match=message):
        render(one_run, form, Extras(jobs=True, simulated=one_run.runs[0].run))


def test_odd_names_in_tables_and_plots_of_characters(report) -> None:
    found = make_report([fold(first_come(policy="<b>[red]|x"))])
    assert r"<b>[red]\|x" in render(found, "md", Extras())
    assert "<b>[red]|x" in render(found, "table", Extras())
    alone = make_report([fold(first_come(), "out/fifo.parquet")], baseline="fifo")
    assert "in brackets" not in render(alone, "table", Extras())
    # A plot of characters names every run.
    drawn = jct_plot(report, 60)
    assert "● fifo   + ares" in drawn
    assert "JCT, s" in drawn
    assert drawn.count("●") > 5
    assert "\x1b" not in drawn
    assert jct_plot(make_report([fold(first_come()[:2])]), 60) == ""


def test_numbers_keep_digits_and_tables_are_split() -> None:
    for seconds, unit in ((599, sections.SECONDS), (3600, sections.MINUTES), (36_000, sections.HOURS)):
        assert sections.time_unit([None, seconds]) == unit
    texts = {(-0.0001, 2): "0.00", (-1.5, 1): "-1.5", (1234.5, 1): "1,234.5", (None, 1): "–"}
    assert {stated: sections.number(*stated) for stated in texts} == texts
    ratios = {1.5: "1.50", 0.1: "0.10", 0.00417: "0.0042", 3.21e-5: "3.2e-05", 0.0: "0.00", 1234: "1,234.00"}
    assert {value: sections.ratio_text(value) for value in ratios} == ratios
    # Tables are split and terms take one line.
    for metric in RUN_ROWS.values():
        assert len(terms_text({metric.title: metric.meaning}).splitlines()) == 1
    runs = [fold(first_come(policy=name), f"out/{name}.parquet") for name in ("fifo", "las", "srtf", "sjf")]
    text = render(make_report(runs), "table", Extras(), width=60)
    assert text.count("JCT, 99th percentile") == 2
    assert text.count("3 jobs on 4 GPUs, simulated") == 1
    row = ("a long name " * 4, "another one " * 4, "1,234.00 (0.88×)")
    lines = drawn(sections.Section("", ("run", "policy", "figure"), (row,), 2, (), 2), 40).splitlines()
    assert sum(row[-1] in line for line in lines) == 1


widths = st.integers(40, 200)
names = st.text("abc-[] ü模", min_size=1, max_size=60)
shown = st.builds(Shown, st.booleans(), st.booleans(), st.booleans(), st.booleans())


@given(st.lists(names, min_size=1, max_size=4, unique=True), widths, shown)
@settings(max_examples=examples(10), deadline=None)
def test_a_report_fits_the_terminal_with_any_names(names: list[str], width: int, shown: Shown) -> None:
    runs = [fold(first_come(policy=name), f"out/{at}.parquet") for at, name in enumerate(names)]
    report = make_report([*runs, fold(shared(), "out/ares.parquet")], baseline="ares")
    text = render(report, "table", Extras(jobs=True, shown=shown), width=width) + jct_plot(report, width)
    assert max(map(width_of, text.splitlines())) <= width
    assert all(cell in text for cell in ("1.643", "230.00", "0.2500", "2.5000", "2 min 55 s"))


WORDS = "twelve chars " * 9


def test_prose_is_wrapped_and_code_is_left_alone():
    text = f"short\n\n{WORDS.strip()}\nand its end.\n"
    first, *rest = wrapped_prose(text).splitlines()[2:]
    assert len(first) <= 100
    assert " ".join([first, *rest]) == f"{WORDS}and its end."
    assert wrapped_prose("left\nas it is\n") == "left\nas it is\n"
    told = wrapped_prose(f"- {WORDS}\n  end\n- next\nalpha: {WORDS}\nbeta: short\n").splitlines()
    begun = [line.partition("e")[0] for line in told]
    assert begun == ["- tw", "  chars tw", "- n", "alpha: tw", "tw", "b"]
    lines = ["# " + WORDS, "| " + WORDS, "    " + WORDS, "```", WORDS, "- " + WORDS, "```", "![" + WORDS]
    text = "\n".join(lines)
    assert wrapped_prose(text) == text


EVIL = "</script><script>document.title='x'</script><!--"


class Page(HTMLParser):
    """Elements of a page: which are open at the end, what they load, and ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loaded, self.ids, self.tags = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.loaded += [found[name] for name in ("src", "href") if not found.get(name, "#").startswith("#")]
        if tag not in ("meta", "link", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_the_same_again_and_loads_nothing(report):
    text = render(report, "html", Extras())
    found = Page(text)
    assert (found.open, found.loaded) == ([], [])
    assert len(set(found.ids)) == len(found.ids)
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|fetch\(", text)
    # The best value of a row is marked and spoken, and tables have captions and scopes.
    (row,) = re.findall(r'<tr><th scope="row">jobs finished</th>.*?</tr>', text)[:1]
    assert row.count('class="best"') == 1
    assert row.index("2 of 3") < row.index("★") < row.index("3 of 3")
    assert '<span class="unseen"> best</span>' in row
    assert "↑ higher" in row
    count = {name: sum(tag == name for tag, _ in found.tags) for name in ("table", "caption")}
    assert count["table"] == count["caption"]
    scopes = [attrs.get("scope") for tag, attrs in found.tags if tag == "th"]
    assert {"row", "col"} == set(scopes)
    boxes = [attrs for _, attrs in found.tags if "scroll" in attrs.get("class", "")]
    assert boxes
    assert all(attrs.get("tabindex") == "0" and attrs.get("aria-label") for attrs in boxes)
    made = [render(make_report([fold(shared())]), "html", Extras(command="pliant report x")) for _ in "12"]
    assert made[0] == made[1]
    assert "pliant report x" in made[0]
    # One in which no job finished is a page, too.
    text = page(make_report([story(submit(job("a"), 4.0))]))
    assert Page(text).open == []
    assert "none of 1 job finished" in text


def test_a_page_has_no_column_of_dashes_and_says_a_caveat_once():
    """Twelve jobs of unknown work have no FTF; all of them are much faster under ares."""
    runs = []
    for policy, least_s in (("fifo", 100), ("ares", 10)):
        jobs = [(f"j{n}", least_s + n) for n in range(12)]
        events = [event for name, end_s in jobs for event in (submit(job(name)), *ran(name, 0, end_s))]
        runs.append(story(*sorted(events, key=lambda event: event.time), policy=policy))
    made = make_report(runs)
    text = page(made)
    assert "<td>&lt; 0.001</td>" in text
    assert text.count("12 finished jobs have no FTF") == 1
    fairness = text.partition("<h2>Fairness</h2>")[2].partition("</section>")[0]
    assert "FTF, mean" not in fairness


def test_seeds_of_a_policy_are_a_column_with_an_interval():
    seeds = [fold(shared(seed=seed)) for seed in (0, 1)]
    last = [event for event in shared(seed=2) if event.time < 214]
    later = [*last, Event(260, "finish", "a", 0, samples_done=480.0)]
    text = page(make_report([*seeds, fold(later)]))
    assert re.search(r'<tr><th scope="row">JCT, mean</th><td>[^<]* ± [^<]*</td>', text)
    assert "means over 3 seeds" in text.lower()


@pytest.mark.parametrize("field", ["id", "model", "user"])
def test_what_a_file_says_cannot_break_the_page(field):
    spec = job("a") if field == "id" else job("a", **{field: EVIL})
    run = fold([begin(policy=EVIL), submit(spec, 4.0), *ran("a", 0, 4)], EVIL)
    if field == "id":  # a file cannot hold it; a page must not care
        run.jobs[0].id = EVIL
    text = page(make_report([run]))
    found = Page(text)
    assert found.open == []
    assert sum(tag == "script" for tag, _ in found.tags) == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert EVIL in json.dumps(data)


def test_the_data_hold_what_each_job_had_with_batch_and_stall(report):
    run = story(
        submit(job("a", gpus=2, low=1, elastic="size+batch"), 100.0),
        Event(0, "start", "a", 2, global_batch=64, overhead_seconds=3.0),
        Event(10, "grow", "a", 4, global_batch=128),
        Event(20, "finish", "a", 0),
    )
    found = json.loads(page_data(make_report([run])))
    (drawn,) = found["runs"]
    tick = drawn["tick"]
    count, *flat = drawn["held"]
    assert count == 2
    for at, shown in ((0, (0, 10, 2, "64", 3)), (5, (0, 10, 4, "128", 0))):
        gap, length, gpus, batch, stall = flat[at : at + 5]
        words = found["words"][batch]
        assert (gap * tick, length * tick, gpus, words, stall * tick) == pytest.approx(shown)
    # Runs of one trace share what their jobs are.
    found = json.loads(page_data(report))
    assert [each["trace"] for each in found["runs"]] == [0, 0]
    assert [each["id"] for each in found["traces"]] == [["a", "b", "c"]]


def test_too_many_changes_are_joined_and_keep_their_gpu_time():
    changes = [Event(at, "grow" if at % 2 else "shrink", "a", 2 if at % 2 else 1) for at in range(1, 1000)]
    start, end = ran("a", 0, 1000)
    run = story(submit(job("a", low=1, high=4), 5000.0), start, *changes, end)
    (every,), grain_s = stretches(run.jobs, 1000.0, most=2000)
    (joined,), coarse_s = stretches(run.jobs, 1000.0, most=50)
    assert (len(every), grain_s) == (1000, 0.0)
    assert len(joined) <= 50
    assert coarse_s >= 1000 / 50
    work = [sum(each.gpus * (each.end_s - each.start_s) for each in own) for own in (every, joined)]
    assert work[0] == pytest.approx(work[1])
    assert all(left.end_s <= right.start_s for left, right in pairwise(joined))
    data = json.loads(page_data(make_report([run]), most=50))
    assert data["runs"][0]["grain"] > 0


def test_users_dates_hashes_and_residuals_where_stated(report) -> None:
    specs = [job(name, user=user, labels={"team": "vision"}) for name, user in (("a", "eva"), ("b", ""))]
    events = [event for spec in specs for event in (submit(spec, 4.0), *ran(spec.id, 0, 4))]
    text = page(make_report([story(*sorted(events, key=lambda event: event.time), nodes=cluster(4))]))
    assert "<h2>Users</h2>" in text
    assert '<th scope="row">eva</th>' in text
    assert '<th scope="row">not stated</th>' in text
    assert "Teams (label team)" in text
    assert "<h2>Users</h2>" not in page(report)
    # Dates and hashes are stated where a log has them.
    start = 1_700_000_000.0
    run = fold([begin(at=start), submit(job("a", at=start), 4.0), *ran("a", start, start + 4)])
    assert "2023-11-14 22:13:20 UTC" in page(make_report([run]))
    assert " UTC" not in page(report)
    run = replace(report.runs[0].run, sha256="ef" * 32)
    text = page(make_report([run]))
    assert "ab" * 32 in text
    assert "ef" * 32 in text
    # A profile has residuals and other runs are named.
    step = sections.ProfiledStep("bert", "t4", "2", 8, 1, 0.5, 0.01, 0.0, 0.6)
    extras = Extras(profile=sections.GivenProfile("p.parquet", "12" * 32, (step,)))
    text = render(report, "html", extras)
    assert "+20.0" in text
    assert "p.parquet is not the profile of 2 runs of 2" in text
    assert "20.0" in render(report, "md", extras)
