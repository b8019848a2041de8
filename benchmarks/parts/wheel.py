"""A wheel, built from this checkout and installed into an empty environment, as the README says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import ROOT

_LEFT_OUT: Final = (".*", "build", "dist", "demo", "site", "*.egg-info", "__pycache__")
"""Of the checkout: what is not part of the sources."""


def replays_from_wheel(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build, install and run ``pliant demo --replay``, all in ``folder``.

    :raises subprocess.CalledProcessError: the wheel cannot be built or installed.
    """
    source, environment = folder / "source", folder / "venv"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", "dist", ".", folder=source)
    (wheel,) = (source / "dist").glob("pliant-*.whl")
    _run(sys.executable, "-m", "venv", str(environment), folder=folder)
    python = str(environment / "bin" / "python")
    constraints = str(source / "constraints.txt")
    _run(python, *pip, "install", "--no-compile", "-c", constraints, str(wheel), folder=folder)
    shutil.rmtree(source)
    return subprocess.run(
        [str(environment / "bin" / "pliant"), "demo", "--replay", "demo"],
        cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _run(*words: str, folder: Path) -> None:
    subprocess.run(words, cwd=folder, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
