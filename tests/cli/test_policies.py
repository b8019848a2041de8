from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cli.console import entry
from pliant.cli.reference import page, policies
from pliant.schemas.text import fitted, flowing, width_of
from pliant.tools.schedule.registry import describe, policy_names
from tests.effort import examples

NAMES = policy_names()


@settings(max_examples=examples(25))
@given(st.integers(40, 200))
def test_no_line_of_policies_is_wider_than_the_terminal(width: int) -> None:
    longest = max(map(len, NAMES))
    for name in NAMES:
        listed = entry(name, describe(name).summary, longest, width)
        reported = fitted(page(describe(name)), width)
        assert max(map(width_of, [*listed, *reported])) <= width
        assert "".join("".join(listed).split()) == "".join(f"{name}{describe(name).summary}".split())
        assert "".join("".join(reported).split()) == "".join("".join(page(describe(name))).split())


def test_the_paragraphs_of_a_policy_fill_the_terminal() -> None:
    text = "First\nline.\n\nmost, least: what\nit means.\n- an item\n  and more\n\n    code\n    stays"
    shown = "First line.\n\nmost, least: what it means.\n- an item and more\n\n    code\n    stays"
    assert flowing(text) == shown


def test_a_pipe_gets_one_line_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    policies()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
