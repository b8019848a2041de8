"""The table of delay-bound.md: what the bound costs and how much of its time the tightest job takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pliant.tools.report.rendering.text import markdown_table

_RESULTS: Final = Path(__file__).parents[1] / "benchmarks" / "results" / "shadow_price.json"
_ROWS: Final = {
    "fixed_w6": "Pollux 6",
    "fixed_w1": "Pollux 1",
    "fixed_philly1": "Philly",
    "fixed_saturn1": "Saturn",
}
"""Workloads with fixed batches: names in the benchmark and on the page. With free batches all cost 0 %."""
_HEAD: Final = (
    "",
    *("mean JCT, default grace", "tightest job", "past it"),
    *("mean JCT, tight", "tightest job", "past it"),
)


def bound_table() -> str:
    """The table, its numbers from the committed results."""
    values = {row["name"]: row["value"] for row in json.loads(_RESULTS.read_bytes())}
    rows = [
        (name, *_figures(values, f"sp_bound_{key}"), *_figures(values, f"sp_bound_{key}_tight"))
        for key, name in _ROWS.items()
    ]
    return markdown_table(_HEAD, rows, 1)


def _figures(values: Mapping[str, float], name: str) -> tuple[str, str, str]:
    price, used, past = (values[f"{name}_{figure}"] for figure in ("price", "used", "jobs_past"))
    change = round(100 * (price - 1), 1) + 0.0  # no minus before a zero
    return f"{change:+.1f} %", f"{100 * used:.0f} %", f"{past:g}"
