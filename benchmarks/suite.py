"""The test suite itself: its time on a bare machine, failures there and on a busy one, and faults it finds.

``python -m benchmarks.suite PART…`` measures some of the parts alone and renews their rows. ``bare`` and
``rough`` run ``make test`` twice each, under the conditions of .ci/bare and .ci/rough. ``mutants`` plants the
faults of parts/mutants.json one at a time, and compares the share that the tests find with the share that
they found at the commits named there. ``demo`` times ``make demo`` from clean clones of an early commit and
this.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts import mutants, parted
from benchmarks.parts.figure import ROOT, Figure, NotMeasurableError, renew
from benchmarks.parts.parted import Part
from benchmarks.parts.wheel import replays_from_wheel

NAME: Final = "suite"
MEASURES: Final = ("tests", "Makefile", ".ci")
RUNS: Final = 2
_FAILED: Final = re.compile(r"(\d+) (?:failed|errors?)\b")
_TIMES: Final = "suite-times.json"
_DEMO_BEFORE: Final = "28a5757cde5b0042ae69845b9a227a8d5ac92651"
_MEASURED: Final = (
    "make .venv/.installed && exec .venv/bin/python -m benchmarks.parts.cpu_of_all {times} make test"
)
"""Installs first, so that the times are those of the tests."""


def lines() -> list[Figure]:
    """Lines of test code."""
    files = subprocess.run(
        ["git", "ls-files", "tests/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    count = sum(len((ROOT / path).read_text().splitlines()) for path in files if (ROOT / path).exists())
    return [Figure("test_lines", float(count), "lines", 60_000.0)]


def bare() -> list[Figure]:
    """Mean time of ``make test`` on a bare machine, and all failures."""
    runs = [_run(".ci/bare") for _ in range(RUNS)]
    return [
        Figure("suite_core_minutes", sum(cpu for _, cpu, _ in runs) / RUNS / 60, "min", 15.0),
        Figure("suite_wall_minutes_two_cores", sum(wall for *_, wall in runs) / RUNS / 60, "min", 8.0),
        Figure("suite_failures_bare", float(sum(failed for failed, *_ in runs)), "tests", 0.0),
    ]


def rough() -> list[Figure]:
    """Failures of ``make test`` on a busy, oddly set-up machine."""
    return [
        Figure("suite_failures_rough", float(sum(_run(".ci/rough")[0] for _ in range(RUNS))), "tests", 0.0)
    ]


def _run(conditions: str) -> tuple[int, float, float]:
    """Failed tests (at least one where the command fails), processor and wall seconds."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # noqa: S103 - another account writes into it
        times = Path(folder, _TIMES)
        done = subprocess.run(
            [conditions, "bash", "-c", _MEASURED.format(times=times)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        sys.stderr.write(done.stdout[-3_000:])
        if not times.exists():
            raise NotMeasurableError(f"{conditions} make test did not begin (exit {done.returncode})")
        measured = json.loads(times.read_text())
    summary = done.stdout.rstrip().rpartition("\n")[2] if done.returncode == 0 else done.stdout
    failed = sum(int(count) for count in _FAILED.findall(summary))
    return failed or int(done.returncode != 0), measured["cpu_s"], measured["wall_s"]


def faults() -> list[Figure]:
    """The share of planted faults that the tests find, over that at the commits at which they were tried."""
    drawn = mutants.recorded()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "main")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        rows = mutants.killed(clone, drawn)
    pairs = [
        (mutant.killed_before, row["killed"])
        for mutant, row in zip(drawn, rows, strict=True)
        if row["killed"] is not None
    ]
    now, then = sum(after for _, after in pairs), sum(bool(before) for before, _ in pairs)
    return [
        Figure("mutants_killed_over_before", now / then, "ratio", 1.0, at_least=True),
        Figure("mutants_killed", float(now), "faults"),
        Figure("mutants_planted", float(len(pairs)), "faults"),
    ]


def ci() -> list[Figure]:
    """Wall time of .ci/run."""
    begun = time.monotonic()
    subprocess.run(
        ["bash", ".ci/run"], cwd=ROOT, check=True, stdout=sys.stderr, env=os.environ | {"CI": "true"}
    )
    return [Figure("ci_minutes", (time.monotonic() - begun) / 60, "min", 20.0)]


def demo() -> list[Figure]:
    """Wall time of ``make demo`` from a clean clone, over that of an early commit."""
    old, new = _demo_s(_DEMO_BEFORE), _demo_s("HEAD")
    return [Figure("demo_over_before", new / old, "ratio", 0.5), Figure("demo_minutes", new / 60, "min")]


def _demo_s(commit: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", str(ROOT), folder], check=True)
        subprocess.run(["git", "checkout", "-q", commit], cwd=folder, check=True)
        begun = time.monotonic()
        subprocess.run(["make", "demo"], cwd=folder, check=True, stdout=sys.stderr)
        return time.monotonic() - begun


def wheel() -> list[Figure]:
    """Whether a built wheel, installed into an empty environment, replays the demo."""
    with tempfile.TemporaryDirectory() as folder:
        replays = replays_from_wheel(Path(folder)).returncode == 0
    return [Figure("wheel_installs_and_replays", float(replays), "of 1", 1.0, at_least=True)]


PARTS: Final[dict[str, Part]] = {
    "lines": lines,
    "bare": bare,
    "rough": rough,
    "mutants": faults,
    "ci": ci,
    "demo": demo,
    "wheel": wheel,
}


def figures() -> list[Figure]:
    """All parts, one after the other."""
    return parted.measured(NAME, PARTS)


def smallest() -> list[Figure]:
    """The lines; the other parts run the suite itself."""
    return lines()


record = renew


def main(words: Sequence[str]) -> int:
    """Measure some of the parts."""
    return parted.main(NAME, PARTS, __doc__, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
