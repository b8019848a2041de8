"""How far a profile that was measured beside four busy processes is off, and whether it says so.

The error is that of the throughput model on the profile's own rows of several workers, each held out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.parts.busy import busy
from benchmarks.parts.figure import ROOT, Figure
from pliant.schemas.io import read_profile

JOBS: Final = ROOT / "examples" / "jobs.jsonl"
CLUSTER: Final = ROOT / "examples" / "cluster.json"
MODELS: Final = ("char_transformer", "autoencoder")
"""Those of the examples that train on two workers."""
LIMIT: Final = 0.1


def figures(models: Sequence[str] = MODELS, more: Sequence[str] = ()) -> list[Figure]:
    """Profile the examples beside busy processes.

    :param more: further options of ``pliant profile``.
    """
    with tempfile.TemporaryDirectory() as folder, busy():
        out = Path(folder) / "profile.parquet"
        chosen = [word for model in models for word in ("--model", model)]
        command = [sys.executable, "-m", "pliant.cli", "profile", str(JOBS), "--cluster", str(CLUSTER)]
        done = subprocess.run(
            [*command, *chosen, *more, "-o", str(out)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows = read_profile(out).rows
    errors = [abs(row.model_error) for row in rows if row.model_error is not None]
    off = median(errors) if errors else None
    unsaid = off is not None and off > LIMIT and "warning: the model is" not in done.stderr
    return [
        Figure("profile_step_error_median_disturbed", off, "fraction", LIMIT),
        Figure("profile_step_error_unsaid", float(unsaid), "profiles", 0.0),
    ]
