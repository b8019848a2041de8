from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.text import Column, cut_to_width, one_line, text_table, width_of, wrapped

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
widths = st.integers(20, 200)


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,:]\d+)*", text)


@given(texts)
def test_one_line_acts_on_no_terminal(text: str) -> None:
    assert one_line(text).isprintable()


def test_text_is_cut_between_words() -> None:
    assert cut_to_width("waits for 2 GPUs; 3 jobs are ahead", 20) == "waits for 2 GPUs; 3…"
    assert cut_to_width("waits for 2 GPUs", 16) == "waits for 2 GPUs"
    assert cut_to_width("experiment-123456789", 13) == "experiment-…"


@given(texts.map(one_line), widths)
def test_cut_text_fits_and_its_numbers_are_those_of_the_text(text: str, width: int) -> None:
    cut = cut_to_width(text, width)
    assert width_of(cut) <= width
    assert numbers(text)[: len(numbers(cut))] == numbers(cut)


def test_lines_are_broken_between_words_and_long_words_not_within_numbers() -> None:
    assert wrapped("one two three", 8, indent="  ") == ["one two", "  three"]
    assert wrapped("trace-aaaaaaaaaaaaaa-12345678", 22) == ["trace-aaaaaaaaaaaaaa-", "12345678"]
    assert wrapped("", 8) == [""]


@given(texts.map(one_line), widths)
def test_lines_fit_and_hold_all_of_the_text(text: str, width: int) -> None:
    lines = wrapped(text, width, indent="  ")
    if max(map(len, numbers(text)), default=0) < width - 2:
        assert max(map(width_of, lines)) <= width
        assert numbers(" ".join(lines)) == numbers(text)
    assert "".join("".join(lines).split()) == "".join(text.split())


COLUMNS = (Column("job"), Column("GPUs", 2, right=True), Column("progress", 3), Column("why", 1, least=10))
ROWS = (("resnet", "16", "30 %", "waits for 2 GPUs; 3 jobs are ahead"), ("b", "4", "100 %", ""))


def test_a_table_without_a_width_leaves_nothing_out() -> None:
    assert text_table(COLUMNS, ROWS) == (
        "job     GPUs  progress  why\n"
        "resnet    16  30 %      waits for 2 GPUs; 3 jobs are ahead\n"
        "b          4  100 %\n"
    )


def test_text_is_cut_before_a_column_is_left_out() -> None:
    assert text_table(COLUMNS, ROWS, 44).splitlines()[1] == "resnet    16  30 %      waits for 2 GPUs; 3…"


def test_columns_are_left_out_by_rank() -> None:
    assert text_table(COLUMNS, ROWS, 30).splitlines()[1] == "resnet    16  waits for 2…"
    assert text_table(COLUMNS, ROWS, 20).splitlines()[1] == "resnet  waits for 2…"
    assert text_table(COLUMNS, ROWS, 12).splitlines() == ["job", "resnet", "b"]


@given(st.lists(st.tuples(texts, texts, texts, texts), max_size=5), widths)
def test_no_line_of_a_table_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    lines = text_table(COLUMNS, rows, width).splitlines()
    assert len(lines) == 1 + len(rows)
    assert max(map(width_of, lines)) <= width
