import resource
import subprocess

import pytest

from benchmarks import replay_speed, report, scale, service
from benchmarks.parts import decisions_at_scale, service_tick, sweep_cost, training_job
from tests.benchmarks import in_process


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are called in this process, and nothing is measured for longer than it takes to run once."""
    monkeypatch.setattr(subprocess, "run", in_process.run)
    monkeypatch.setattr(resource, "getrusage", in_process.used())
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)  # it would end this process later
    monkeypatch.setattr(scale, "_spent", in_process.spent)
    monkeypatch.setattr(service, "spent", in_process.of_service(service.spent))
    monkeypatch.setattr(sweep_cost, "held", lambda _folder, _workers: sweep_cost.Held(1.0, 1.0))
    monkeypatch.setattr(replay_speed, "_loop_s", lambda: 0.1)
    monkeypatch.setattr(service_tick, "HOUR_S", 60.0)
    monkeypatch.setattr(training_job, "SETTLE_S", 0.0)
    monkeypatch.setattr(decisions_at_scale, "ENOUGH_S", 0.0)
    monkeypatch.setattr(report, "_interactive_s", lambda _page, _visits: None)
