"""Signals that a run counts, and a loop that is left in the background."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.tools.run.service.run import Interrupts, in_background


@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_end_of_a_loop_that_cannot_begin_is_known(tmp_path: Path, handling: signal.Handlers) -> None:
    """A parent process may have it ignore SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, handling)
    try:
        started = in_background(lambda _ready: 75, tmp_path / "run.log")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert started.failed == 75


def test_what_a_loop_in_the_background_printed_is_known(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("an older message\n")

    def explain(_ready: Callable[[], None]) -> int:
        os.write(2, b"its cluster is gone\n")
        return 1

    assert in_background(explain, log).said == "its cluster is gone\n"


def test_a_loop_in_the_background_holds_no_pipe_open(tmp_path: Path) -> None:
    """Who waits for the end of a pipe would wait for the end of the service."""

    def look(ready: Callable[[], None]) -> int:
        os.dup2(os.pipe()[0], 0)
        ready()
        ready()
        for descriptor in (0, 1):
            os.write(2, os.readlink(f"/proc/self/fd/{descriptor}").encode() + b"\n")
        os.write(2, b"a session of its own\n" if os.getsid(0) == os.getpid() else b"")
        return 0

    log = tmp_path / "run.log"
    started = in_background(look, log)
    assert started.failed is None
    os.waitpid(started.pid, 0)
    assert log.read_text().splitlines() == [os.devnull, os.devnull, "a session of its own"]


def test_signals_are_noted_and_an_ignored_one_stays_ignored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupts() as interrupts:
        for number in numbers:
            signal.raise_signal(number)
    assert interrupts.received == [*numbers]
    assert [signal.getsignal(number) for number in numbers] == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received == []
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])
