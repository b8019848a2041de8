from __future__ import annotations

import csv
import json
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.errors import UsageError
from pliant.schemas.io import read_metrics
from pliant.schemas.metrics import ReportedRun
from pliant.schemas.text import narrowest, one_line, width_of
from pliant.tools.report.comparisons import compare_runs
from pliant.tools.report.expectations import Expectations, check_expectations
from pliant.tools.report.figures.plots import jct_plot
from pliant.tools.report.read_run import fold
from pliant.tools.report.rendering.output import Extras, document, render
from pliant.tools.report.rendering.sections import (
    FIGURES,
    HOURS,
    MINUTES,
    SECONDS,
    Section,
    number,
    ratio_text,
    time_unit,
)
from pliant.tools.report.rendering.summary import MEANING, Shown
from pliant.tools.report.rendering.text import drawn, terms_text, wrapped_prose
from pliant.tools.report.report import make_report
from tests.effort import examples
from tests.tools.report.runs import check_golden, first_come, shared


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
    assert {*json.loads(text)["runs"][0], "step_times", "teams"} == set(ReportedRun.model_fields)


def test_the_metrics_document_has_ratios_jobs_and_expected_figures(report):
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


def test_the_metrics_document_leaves_out_what_was_not_asked_for(one_run):
    found = json.loads(render(one_run, "json", Extras()))
    (run,) = found["runs"]
    assert (found["baseline"], found["expectations"], run["ratios"], run["jobs"]) == (None,) * 4


@pytest.mark.parametrize(
    ("form", "message"), [("json", "--simulated: use --format csv"), ("csv", "either --jobs or --simulated")]
)
def test_a_form_has_no_place_for_all_that_can_be_asked_for(one_run, form, message):
    with pytest.raises(UsageError, match=message):
        render(one_run, form, Extras(jobs=True, simulated=one_run.runs[0].run))


def test_names_cannot_break_a_table():
    found = make_report([fold(first_come(policy="<b>[red]|x"))])
    assert r"<b>[red]\|x" in render(found, "md", Extras())
    assert "<b>[red]|x" in render(found, "table", Extras())


def test_a_plot_of_characters_names_every_run(report):
    drawn = jct_plot(report, 60)
    assert "● fifo   + ares" in drawn
    assert "JCT, s" in drawn
    assert drawn.count("●") > 5
    assert "\x1b" not in drawn


def test_nothing_finished_nothing_plotted():
    assert jct_plot(make_report([fold(first_come()[:2])]), 60) == ""


@pytest.mark.parametrize(("seconds", "unit"), [(599, SECONDS), (3600, MINUTES), (36_000, HOURS)])
def test_times_are_told_in_a_unit_that_reads_well(seconds, unit):
    assert time_unit([None, seconds]) == unit


def test_zero_has_no_sign():
    found = number(-0.0001, 2), number(-1.5, 1), number(1234.5, 1), number(None, 1)
    assert found == ("0.00", "-1.5", "1,234.5", "–")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.50"),
        (0.1, "0.10"),
        (0.00417, "0.0042"),
        (3.21e-5, "3.2e-05"),
        (0.0, "0.00"),
        (1234, "1,234.00"),
    ],
)
def test_a_ratio_keeps_digits_that_say_something(value, text):
    assert ratio_text(value) == text


def test_a_baseline_that_is_the_only_run_has_nothing_beside_it_in_brackets():
    alone = make_report([fold(first_come(), "out/fifo.parquet")], baseline="fifo")
    assert "in brackets" not in render(alone, "table", Extras())


def test_no_report_for_a_pipe_is_wider_than_80_columns(report):
    text = render(report, "table", Extras(jobs=True, shown=Shown(True, True, True, True)))
    assert max(map(width_of, text.splitlines())) <= 80


def test_every_term_is_explained_in_one_line():
    for row in FIGURES:
        assert len(terms_text({row.title: MEANING[row.name]}).splitlines()) == 1


widths = st.integers(40, 200)
words = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    .map(one_line)
    .filter(lambda text: narrowest(text) < 5)
)
figures = st.floats(-1e9, 1e9).map(lambda value: f"{number(value, 2)} (0.88×)")


@st.composite
def sections(draw: st.DrawFn) -> Section:
    keys = draw(st.integers(1, 2))
    text_columns = draw(st.integers(keys, keys + 1))
    columns = draw(st.integers(text_columns, text_columns + 6))
    row = [words] * text_columns + [figures] * (columns - text_columns)
    return Section(
        draw(words),
        tuple(draw(words) for _ in range(columns)),
        tuple(draw(st.lists(st.tuples(*row), max_size=4))),
        text_columns,
        tuple(draw(st.lists(words, max_size=3))),
        keys,
    )


@given(sections(), widths)
@settings(max_examples=examples(50), deadline=None)
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_broken(section: Section, width: int) -> None:
    text = drawn(section, width)
    assert all(width_of(line) <= width for line in text.splitlines())
    for row in section.rows:
        assert all(cell in text for cell in row[section.text_columns :])


names = st.text("abc-[] ü模", min_size=1, max_size=60)


shown = st.builds(Shown, st.booleans(), st.booleans(), st.booleans(), st.booleans())


@given(st.lists(names, min_size=1, max_size=4, unique=True), widths, shown)
@settings(max_examples=examples(10), deadline=None)
def test_a_report_fits_the_terminal_whatever_its_policies_are_called(
    names: list[str], width: int, shown: Shown
) -> None:
    runs = [fold(first_come(policy=name), f"out/{at}.parquet") for at, name in enumerate(names)]
    report = make_report([*runs, fold(shared(), "out/ares.parquet")], baseline="ares")
    text = render(report, "table", Extras(jobs=True, shown=shown), width=width) + jct_plot(report, width)
    assert max(map(width_of, text.splitlines())) <= width
    assert all(cell in text for cell in ("1.643", "230.00", "0.2500", "2.5000", "2 min 55 s"))


def test_runs_that_do_not_fit_beside_each_other_stand_in_blocks_of_all_rows() -> None:
    runs = [fold(first_come(policy=name), f"out/{name}.parquet") for name in ("fifo", "las", "srtf", "sjf")]
    text = render(make_report(runs), "table", Extras(), width=60)
    assert text.count("JCT, 99th percentile") == 2
    assert text.count("3 jobs on 4 GPUs, simulated") == 1


WORDS = "twelve chars " * 9


def test_a_paragraph_with_a_long_line_is_wrapped_as_a_whole():
    text = f"short\n\n{WORDS.strip()}\nand its end.\n"
    first, *rest = wrapped_prose(text).splitlines()[2:]
    assert len(first) <= 100
    assert " ".join([first, *rest]) == f"{WORDS}and its end."
    assert wrapped_prose("left\nas it is\n") == "left\nas it is\n"


def test_an_item_keeps_its_indent_and_a_parameter_its_line():
    told = wrapped_prose(f"- {WORDS}\n  end\n- next\nalpha: {WORDS}\nbeta: short\n").splitlines()
    begun = [line.partition("e")[0] for line in told]
    assert begun == ["- tw", "  chars tw", "- n", "alpha: tw", "tw", "b"]


def test_code_tables_headings_and_figures_are_left_alone():
    lines = ["# " + WORDS, "| " + WORDS, "    " + WORDS, "```", WORDS, "- " + WORDS, "```", "![" + WORDS]
    text = "\n".join(lines)
    assert wrapped_prose(text) == text
