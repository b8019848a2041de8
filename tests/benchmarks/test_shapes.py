"""Shapes of training loops: some of them in two ways, some planted faults, and what the page says of them."""

from pathlib import Path

import pytest

from benchmarks.parts.shapes import figures
from benchmarks.parts.shapes.table import page_rows, shapes

PAGE = Path(__file__).parents[2] / "docs" / "elastic-library.md"


@pytest.mark.torch
def test_shapes_and_faults() -> None:
    names = ("classifier", "GAN, the painter first", "ignore_index, weighed", "sum")
    found = figures.of_shapes(names, ("two workers", "micro-steps"))
    rows = {one.name: one.value for one in found}
    assert rows["shapes_in_suite"] == 4
    assert rows["silent_wrong"] == 0, "the sum is documented"
    assert rows["token_loss_error"] is not None
    assert rows["token_loss_error"] < 1e-9
    assert figures.of_faults(("one gradient halved",))[0].value == 1.0


def test_the_table_is_whole_and_the_page_shows_it() -> None:
    assert len(shapes()) >= figures.LEAST
    assert {one.decision for one in shapes().values()} == {"right", "refused", "warned", "documented"}
    assert max(len(one.code.splitlines()) for one in shapes().values()) <= 12
    assert set(figures.BY_TOKENS) <= shapes().keys()
    assert "\n".join(page_rows()) in PAGE.read_text()
