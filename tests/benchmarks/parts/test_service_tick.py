from __future__ import annotations

from benchmarks.parts.service_tick import log_bytes


def test_an_hour_of_training_keeps_to_what_the_log_may_grow_by() -> None:
    assert log_bytes().holds
