"""Markdown whose prose wraps at 100 characters, and everything else stays as it is."""

from __future__ import annotations

from pliant.tools.report.rendering.text import wrapped_prose

WORDS = "twelve chars " * 9
"""117 characters."""


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
