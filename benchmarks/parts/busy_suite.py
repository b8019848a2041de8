"""Tests that fail while four other processes compute."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from benchmarks.parts.figure import ROOT

OTHERS: Final = 4
RUN: Final = ("-n", "3", "--dist", "worksteal")
_SPIN: Final = "while True: pass"


@contextlib.contextmanager
def busy(processes: int = OTHERS) -> Iterator[None]:
    """That many processes that compute."""
    there = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in there:
            process.kill()
            process.wait()


def failures_beside_others(tests: Sequence[str] = (), run: Sequence[str] = RUN) -> int:
    """How many tests of the suite fail, or cannot be set up, beside four busy processes; all are named.

    :param tests: those alone; empty: all.
    :raises RuntimeError: no test has run.
    """
    with tempfile.TemporaryDirectory() as folder, busy():
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", *run, f"--junit-xml={report}", *tests]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}")
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - our own file
    if not cases:
        raise RuntimeError(f"no test has run: {done.stdout[-2000:]}")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    for case in failed:
        print(f"failed beside others: {case.get('classname')}::{case.get('name')}", file=sys.stderr)
        for found in case.iter():
            if found.tag in {"failure", "error"}:
                print(found.text, file=sys.stderr)
    return len(failed)
