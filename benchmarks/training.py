"""The elastic library: loops that train something else in silence, faults that it finds, and what that costs.

``shapes`` runs loops as people write them, on one worker and on several, through changes, a join and a
restart, and compares weights and samples. ``positions`` are those of trainings by other libraries, ``verify``
the time of ``pliant verify``.
"""

from __future__ import annotations

from typing import Final

from benchmarks.parts import library_cpu
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part
from benchmarks.parts.shapes.figures import of_faults, of_shapes
from benchmarks.parts.training_guard import guard_cost
from benchmarks.parts.training_positions import figures as positions
from benchmarks.parts.training_silence import silence_after_a_skip
from benchmarks.parts.training_verify import verify_minutes

MEASURES: Final = ("tools/run/elastic", "integrations")
LEAST_CPU_RATIO: Final = 0.88


def cpu() -> list[Figure]:
    """Processor time of plain loops by the library's, for a small model on samples read one by one."""
    name = "mlp_by_sample"
    found = library_cpu.figures({name: library_cpu.EPOCHS[name]})
    return [Figure(one.name, one.value, one.unit, LEAST_CPU_RATIO, at_least=True) for one in found]


PARTS: Final[dict[str, Part]] = {
    "guard": guard_cost,
    "faults": of_faults,
    "shapes": of_shapes,
    "cpu": cpu,
    "positions": positions,
    "silence": silence_after_a_skip,
    "verify": verify_minutes,
}


def smallest() -> list[Figure]:
    """One shape on two workers."""
    return of_shapes(("classifier",), ("two workers",))
