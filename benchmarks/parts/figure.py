"""One figure of a benchmark, and the file it is written to."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from experiments.harness.data import missing
from pliant.tools.report.expectations import Expectation

RESULTS = Path(__file__).parents[1] / "results"
ROOT = Path(__file__).parents[2]


class NotMeasurableError(Exception):
    """What a benchmark needs is not on this machine; its record stays as it is."""


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
        **_gpu(),
    }


def _gpu() -> dict[str, str]:
    from pliant.schemas.errors import ServiceMissingError
    from pliant.tools.run.backends.host import list_gpus

    try:
        found = list_gpus()
    except ServiceMissingError:
        return {}
    return {"gpu": f"{found.gpus[0].model}, driver {found.driver}"} if found.gpus else {}


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def write(name: str, figures: Sequence[Figure]) -> Path:
    """Write results/NAME.json and, beside it, the machine that it was measured on."""
    return _write(name, [figure.row(_command(name)) for figure in figures], machine())


def renew(name: str, figures: Sequence[Figure]) -> Path:
    """Write some figures of a benchmark, measured alone; the others stay as they are, in their order.

    The machine beside them stays the one that it was until this one has more of the figures; a figure of any
    other machine names it in its row.
    """
    path, beside = RESULTS / f"{name}.json", RESULTS / f"{name}.machine.json"
    before = json.loads(path.read_text()) if path.exists() else []
    here = machine()
    there = json.loads(beside.read_text()) if beside.exists() else None
    mine, usual = _label(here), "unknown" if there is None else _label(there)
    rows = {row["name"]: row | {"machine": row.get("machine", usual)} for row in before}
    rows |= {one.name: one.row(_command(name)) | {"machine": mine} for one in figures}
    labels = [row["machine"] for row in rows.values()]
    if there is None or labels.count(mine) > labels.count(usual):
        there, usual = here, mine
    kept = [
        {key: value for key, value in row.items() if (key, value) != ("machine", usual)}
        for row in rows.values()
    ]
    return _write(name, kept, there)


def _label(about: Mapping[str, object]) -> str:
    """What a machine is called in a row: its GPU, or else its processor."""
    return str(about.get("gpu") or f"{about['cores']} cores of {about['cpu']}")


def newer_commits(name: str, paths: Sequence[str]) -> list[str]:
    """Commits to these paths since the figures of a benchmark were recorded, newest first.

    Empty where figures were never recorded, or are recorded again and not committed yet.

    :param paths: what the benchmark measures, below the repository's root.
    :raises NotMeasurableError: there is no history to look at.
    """
    record = str(RESULTS / f"{name}.json")
    if not Path(record).exists() or _git("status", "--porcelain", "--", record):
        return []
    recorded = _git("log", "-1", "--format=%H", "--", record)
    return _git("log", "--format=%h %cs %s", f"{recorded[0]}..HEAD", "--", *paths) if recorded else []


def need_data(*names: str) -> None:
    """Check that folders of published data are there.

    :raises NotMeasurableError: some are not.
    """
    if absent := missing(names):
        folders = " and no ".join(map(str, absent))
        raise NotMeasurableError(f"no {folders} (PLIANT_DATA names the folder of published data)")


def _git(*words: str) -> list[str]:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotMeasurableError("there is no git history here") from error
    return done.stdout.splitlines()


def _command(name: str) -> str:
    return "make gpu-check" if name == "gpu" else f"make bench NAME={name}"


def _write(name: str, rows: Sequence[dict[str, object]], where: Mapping[str, object]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / f"{name}.machine.json").write_text(json.dumps(where, indent=1) + "\n")
    return path
