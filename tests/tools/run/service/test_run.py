"""Signals that a run counts, and a loop that is left in the background."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.tools.run.service.run import Interrupts, in_background


def gives_up(_ready: Callable[[], None]) -> int:
    return 75


@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN])
def test_how_a_loop_ended_that_could_not_begin_is_known_whatever_is_done_about_sigchld(
    tmp_path: Path, handling: signal.Handlers
) -> None:
    """A parent process may have it ignore SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, handling)
    try:
        started = in_background(gives_up, tmp_path / "run.log")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert started.failed == 75


def test_a_signal_is_noted_and_raises_nothing() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert interrupts.received == [signal.SIGINT, signal.SIGTERM]


def test_who_ignores_a_signal_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received == []
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
