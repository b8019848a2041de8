"""How long ``pliant verify`` takes for each script of the recipes, and whether all of them pass."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Final

from benchmarks.parts.figure import ROOT, Figure

LIMIT_MINUTES: Final = 3.0


def verify_minutes() -> list[Figure]:
    """The time of the slowest script, and the part of them of which all is kept."""
    minutes, kept = dict[str, float](), 0
    for script in sorted((ROOT / "examples" / "after").glob("*.py")):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pliant.cli", "verify", str(script)]
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        minutes[script.stem] = (time.monotonic() - began_s) / 60
        kept += done.returncode == 0
        sys.stderr.write(done.stdout)
    rows = [Figure(f"verify_minutes_{name}", found, "min", LIMIT_MINUTES) for name, found in minutes.items()]
    rows.append(Figure("verify_minutes", max(minutes.values()), "min", LIMIT_MINUTES))
    return [*rows, Figure("verify_kept", kept / len(minutes), "scripts", 1.0, at_least=True)]
