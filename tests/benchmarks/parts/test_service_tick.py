"""The benchmark of the loop measures gangs that train, and counts what an hour leaves in the log."""

from __future__ import annotations

from benchmarks.parts.service_tick import figures, log_bytes


def test_every_figure_is_measured_and_has_its_limit() -> None:
    measured = {row.name: row for row in figures(few=1, many=3, seconds=1.0)}
    assert {name: (row.limit, row.at_least) for name, row in measured.items() if row.limit is not None} == {
        "tick_cpu_ms_per_gang": (0.2, False),
        "gangs_at_half_a_core": (200, True),
        "log_bytes_per_job_hour": (20_000, False),
    }
    assert (measured["tick_cpu_ms_per_gang"].value or 0.0) > 0.0


def test_an_hour_of_training_keeps_to_what_the_log_may_grow_by() -> None:
    assert log_bytes().holds
