from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.parts import busy_suite
from benchmarks.parts.busy_suite import failures_beside_others

ALONE = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "/")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process that computes beside them: how failures are counted does not depend on more."""
    monkeypatch.setattr(busy_suite, "busy", partial(busy_suite.busy, 1))


def test_failed_and_broken_tests_count_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert False\n"
        "def test_never_set_up(broken): pass\n"
    )
    assert failures_beside_others([str(tmp_path)], ALONE) == 2
    named = capsys.readouterr().err
    assert "test_wrong" in named
    assert "test_never_set_up" in named
    assert "test_right" not in named


def test_where_no_test_has_run_nothing_is_said_to_hold(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no test"):
        failures_beside_others([str(tmp_path)], ALONE)
