"""A loop that is left in the background says whether it began."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.tools.run.service.run import in_background


def gives_up(_ready: Callable[[], None]) -> int:
    return 75


@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN])
def test_how_a_loop_ended_that_could_not_begin_is_known_whatever_is_done_about_sigchld(
    tmp_path: Path, handling: signal.Handlers
) -> None:
    """Whoever starts the command may have it ignore SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, handling)
    try:
        started = in_background(gives_up, tmp_path / "run.log")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert started.failed == 75
