"""One figure of a benchmark, and the file it is written to."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from pliant.tools.report.expectation import Expectation

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value; ``holds`` says whether it keeps to ``limit`` (None: there is none)."""

    name: str
    value: float | None
    unit: str
    limit: float | None = None
    at_least: bool = False
    """The limit is a lower one; else an upper one."""
    low: float | None = None
    """A lower limit besides the upper one."""

    def row(self, command: str) -> dict[str, object]:
        """What results/NAME.json holds for it."""
        columns = asdict(self)
        del columns["at_least"]
        if self.low is None:
            del columns["low"]
        return {**columns, "holds": self.holds, "command": command}

    @property
    def holds(self) -> bool | None:
        """Whether the value keeps to its limit; None: it has none."""
        high = None if self.at_least else self.limit
        expected = Expectation(low=self.limit if self.at_least else self.low, high=high)
        return None if self.limit is None else expected.holds(self.value)


def machine() -> dict[str, object]:
    """The machine that figures come from."""
    import psutil

    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("pliant", "numpy", "pyarrow", "pydantic", "torch")},
    }


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def write(name: str, figures: Sequence[Figure]) -> Path:
    """Write results/NAME.json and, beside it, the machine that it was measured on."""
    return _write(name, [figure.row(_command(name)) for figure in figures])


def renew(name: str, figures: Sequence[Figure]) -> Path:
    """Write some figures of a benchmark, measured alone; the others stay as they are, in their order."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else []
    rows = {row["name"]: row for row in before}
    return _write(name, [*(rows | {one.name: one.row(_command(name)) for one in figures}).values()])


def _command(name: str) -> str:
    return f"make bench NAME={name}"


def _write(name: str, rows: Sequence[dict[str, object]]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / f"{name}.machine.json").write_text(json.dumps(machine(), indent=1) + "\n")
    return path
