"""What a worker does about SIGTERM and SIGUSR1."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pliant.tools.run.elastic.membership import agreement
from pliant.tools.run.elastic.membership.agreement import StopSignal
from pliant.tools.run.statedir.contract.plan import ENV_NOTICES

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_without_a_launcher_a_notice_is_a_request_to_stop() -> None:
    stop = StopSignal()
    signal.raise_signal(signal.SIGUSR1)
    assert stop.received


def test_a_notice_waits_for_the_launcher_s_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_NOTICES, "1")
    now = [100.0]
    monkeypatch.setattr(agreement.time, "monotonic", lambda: now[0])
    stop = StopSignal()
    signal.raise_signal(signal.SIGUSR1)
    now[0] += agreement.UNHEARD_S - 1.0
    assert not stop.received
    now[0] += 2.0
    assert stop.received, "the launcher is not there"
    stop.new_plan()
    assert not stop.received, "it was only slow, and says what to do"
    signal.raise_signal(signal.SIGTERM)
    assert stop.received, "Slurm waits no longer"
