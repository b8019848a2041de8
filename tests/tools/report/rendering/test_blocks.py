"""Tables of a report on terminals of any width."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.text import narrowest, one_line, width_of
from pliant.tools.report.read_run import fold
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.rendering.sections import Section, number
from pliant.tools.report.rendering.terminal_plot import jct_plot
from pliant.tools.report.rendering.text import drawn
from pliant.tools.report.report import make_report
from tests.tools.report.runs import first_come, shared

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
@settings(deadline=None)
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_broken(section: Section, width: int) -> None:
    text = drawn(section, width)
    assert all(width_of(line) <= width for line in text.splitlines())
    for row in section.rows:
        assert all(cell in text for cell in row[section.text_columns :])


@given(
    st.lists(st.text("abc-[] ü模", min_size=1, max_size=60), min_size=1, max_size=4, unique=True),
    widths,
)
@settings(max_examples=15, deadline=None)
def test_a_report_fits_the_terminal_whatever_its_policies_are_called(names: list[str], width: int) -> None:
    runs = [fold(first_come(policy=name), f"out/{at}.parquet") for at, name in enumerate(names)]
    report = make_report([*runs, fold(shared(), "out/ares.parquet")], baseline="ares")
    text = render(report, "table", Extras(jobs=True), width=width) + jct_plot(report, width)
    assert max(map(width_of, text.splitlines())) <= width
    cells = ("1.643", "230.00", "0.2500", "2.5000", "175.00 (1.14×)")
    assert all(cell in text for cell in cells)


def test_runs_that_do_not_fit_beside_each_other_stand_in_blocks_of_all_rows() -> None:
    runs = [fold(first_come(policy=name), f"out/{name}.parquet") for name in ("fifo", "las", "srtf", "sjf")]
    text = render(make_report(runs), "table", Extras(), width=60)
    assert text.count("JCT, median") == 2
    assert len(text.split("Runs")) == 2
