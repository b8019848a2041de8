"""A script that gives up in its training, under the real command: its exit code tells it from a break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.run.site import Site
from tests.tools.run.test_training import ELASTIC, pliant_run, train

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("leave", "code", "end"), [("sys.exit('diverged')", 5, "fail a 0"), ("break", 0, "finish a 0")]
)
def test_giving_up_is_a_failure_and_a_break_is_an_end(
    tmp_path: Path, leave: str, code: int, end: str
) -> None:
    site = Site(tmp_path)
    train(site, "a", f"{ELASTIC}    {leave}\n", (3, 0.0), samples=3 * 64)
    words = ("--state", site.state, "--retries", "0")
    with pliant_run(site, site.schedule("fair-share"), *words) as run:
        _, errors = run.communicate()
    assert run.returncode == code, errors
    assert site.of("a")[-1] == end
