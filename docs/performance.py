"""The page on what takes how long, from the records of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final

RESULTS: Final = Path(__file__).parents[1] / "benchmarks" / "results"
RECORDS: Final = (
    *("replay_speed", "scale", "shadow_price", "cli", "report"),
    *("service", "operate", "sharing", "scripts"),
)
_DASH: Final = "-"
_STEPS: Final = {
    "import": "import Helios's log",
    "fifo": "replay under fifo",
    "tiresias": "replay under tiresias",
    "ares": "replay under ares",
    "report": "report of one replay",
    "acme_import": "as Acme's log: import",
    "acme_fifo": "as Acme's log: replay under fifo",
    "acme_report": "as Acme's log: report",
    "itp_import": "as ITP's log: import",
    "itp_fifo": "as ITP's log: replay under fifo",
    "itp_report": "as ITP's log: report",
}
_FIRST: Final = """How long replays, imports, decisions, commands and the live loop take."""
_LATER: Final = "decision_s_"
_SLOW_S: Final = 10.0
_LEAST_S: Final = 0.01
"""What the clock of the CPU tells apart, and a little more."""
_FEW_JOBS: Final = 1_000
"""Decisions over fewer active jobs are not shown: they are the quickest."""
_QUICK_S: Final = 0.1
"""A policy whose decisions all take no more than this has no row."""
_GROUPS: Final[Sequence[tuple[str, str, Mapping[str, tuple[str, str]]]]] = (
    (
        "## Replays",
        """\
Whole processes, from the files that they read to those that they write. Workload 6 is that of the
Pollux artifact, whose own simulator takes {tiresias:g} units under tiresias, {optimus:g} under optimus and
{pollux:g} under pollux.""",
        {
            "fifo_1m_jobs_units": ("replay_speed", "1,000,000 jobs, 2,048 GPUs, fifo"),
            "peak_mb_fifo_1m": ("replay_speed", "the same: peak memory"),
            "event_us_fifo": ("replay_speed", "the same: an event, without reading and writing"),
            "write_us_per_event": ("replay_speed", "the same: writing an event"),
            "ares_100k_units": ("replay_speed", "100,000 elastic jobs, 2,048 GPUs, ares"),
            "easy_backfill_1m_growth": ("replay_speed", "an event under EASY backfill, as the trace grows"),
            "tiresias_w6_process_units": ("replay_speed", "workload 6, tiresias"),
            "optimus_w6_process_units": ("replay_speed", "workload 6, optimus"),
            "pollux_w6_process_units": ("replay_speed", "workload 6, pollux"),
            "shadow_price_w6_units": (
                "replay_speed",
                "workload 6, shadow-price, files apart",
            ),
        },
    ),
    (
        "## Commands",
        "CPU time, start included.",
        {
            "help_cpu_s_over_python": ("cli", "`pliant --help`, over an empty Python"),
            "schedule_small_cpu_over_imports": (
                "cli",
                "`pliant schedule` of a few jobs, over importing numpy, pyarrow, pydantic and typer",
            ),
            "cli_report_cpu_s": ("cli", "`pliant report` of a small replay"),
            "html_10k_jobs_interactive_s": ("report", "HTML report of 10,000 jobs: until it answers"),
            "report_46k_jobs_over_replay_cpu": ("report", "report of 46,000 jobs, over their replay"),
        },
    ),
    (
        "## A live cluster",
        """\
The service, on simulated workers and on CPU slots. What a change of a training job costs is in
[rescaling.md](rescaling.md).""",
        {
            "tick_cpu_ms_per_gang": ("service", "a tick of `run`, for each gang of workers"),
            "status_100k_events_cpu_s": ("service", "`pliant status` after 100,000 events"),
            "restart_100k_events_cpu_s": ("service", "restart of `run` after 100,000 events"),
            "decision_to_first_step_s": ("operate", "from a decision to the first step"),
            "reconcile_5000_jobs_s": ("operate", "reconciliation of 5,000 Slurm jobs"),
            "authorised_requests_per_s": ("sharing", "requests of other accounts that are authorised"),
            "library_cpu_ratio_mlp_by_sample": (
                "scripts",
                "plain DDP's CPU time over the library's, small model",
            ),
        },
    ),
)


def performance_page() -> str:
    """Units and seconds by topic, each beside its limit, and how decisions grow."""
    from benchmarks.replay_speed import PEERS

    rows = _records()
    parts = [_head(rows)]
    for title, text, named in _GROUPS:
        table = [_row(what, rows.get(record, {}).get(name)) for name, (record, what) in named.items()]
        parts.append(
            f"{title}\n\n{text.format(**PEERS)} {_within(table)}\n\n"
            f"{_table(('what', 'value', 'limit'), table)}"
        )
    parts[2:2] = [*_months(rows["scale"]), _imports(rows["replay_speed"]), _decisions(rows["scale"])]
    return "\n".join(parts)


def _records() -> dict[str, dict[str, Mapping[str, Any]]]:
    found = {}
    for name in RECORDS:
        path = RESULTS / f"{name}.json"
        rows = json.loads(path.read_bytes()) if path.exists() else []
        found[name] = {row["name"]: row for row in rows}
    return found


def _head(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    machine = json.loads((RESULTS / "replay_speed.machine.json").read_bytes())
    unit_s = rows["replay_speed"]["calibration_s"]["value"]
    names = ", ".join(f"`{name}`" for name in RECORDS)
    text = f"""Each value is a row of `benchmarks/results/`, which `make bench NAME=…` writes ({names}),
recorded on {machine["cores"]} cores of {machine["cpu"]}, Python {machine["python"]}. A unit is the CPU time
of a fixed loop that runs beside what is measured, {unit_s:g} s there, so units can be
compared between machines. A dash: not measured, or ended for its time."""
    missed = sum(row["holds"] is False for found in rows.values() for row in found.values())
    text = f"{_FIRST} {text} Of all rows there, {missed} miss their limit."
    return f"# What takes how long\n\n{fill(' '.join(text.split()), 98, break_on_hyphens=False)}\n"


def _row(what: str, row: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if row is None or row["value"] is None:
        return what, _DASH, _DASH
    limit = _DASH if row["limit"] is None else f"{row['limit']:g}"
    return (
        what,
        f"{_rounded(row['value'])} {row['unit']}",
        limit + (" (missed)" if row["holds"] is False else ""),
    )


def _months(rows: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """The section on whole months; none where nothing of it was measured."""
    value = {name: row["value"] for name, row in rows.items()}
    if not any(value.get(f"{step}_units") for step in _STEPS):
        return ()
    table = [
        (what, *(_rounded(value.get(f"{step}_{kind}")) for kind in ("units", "mb", "growth")))
        for step, what in _STEPS.items()
    ]
    name = next(
        (each for each in value if each.startswith("shadow_price_") and each.endswith("_units")), None
    )
    if name is not None:
        jobs = int(name.split("_")[2])
        memory = value[name.replace("_units", "_mb")]
        table.append(
            (f"{jobs:,} of its jobs under shadow-price", _rounded(value[name]), _rounded(memory), _DASH)
        )
    jobs_n = "3,300,000" if "jobs" not in value else f"{value['jobs']:,}"
    text = f"""## Whole months

{jobs_n} jobs of two months on 6,416 GPUs, written in Helios's format at a load of 0.85. Growth:
units over ten times those of a tenth of the jobs.

{_table(("step", "units", "peak MB", "growth"), table)}"""
    return (text,)


def _imports(rows: Mapping[str, Mapping[str, Any]]) -> str:
    table = []
    for name, row in rows.items():
        if name.startswith("import_rows_per_s_"):
            kind = name.removeprefix("import_rows_per_s_")
            over = rows.get(f"{kind}_import_rows_per_s_over_pyarrow")
            table.append((kind.replace("_", "-"), f"{row['value']:,}", _rounded(over and over["value"])))
    return f"""## Imports

Rows a second of CPU time, checks and writing included; over what pyarrow reads of the same single CSV
file (limit 0.2).

{_table(("format", "rows/s", "over pyarrow"), sorted(table))}"""


def _first(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Which first decisions are slow."""
    slow = []
    for name, row in rows.items():
        if name.startswith(f"first_{_LATER}") and row["value"] and row["value"] > _SLOW_S:
            policy, gpus, _, jobs, _ = name.removeprefix(f"first_{_LATER}").split("_")
            slow.append(f"{policy} at {int(gpus):,} / {int(jobs):,} ({_rounded(row['value'])} s)")
    return f" That one takes more than {_SLOW_S:g} s under {', '.join(slow)}." if slow else ""


def _decisions(rows: Mapping[str, Mapping[str, Any]]) -> str:
    cells: dict[str, dict[tuple[int, int], float | None]] = {}
    for name, row in rows.items():
        if name.startswith(_LATER):
            policy, gpus, _, jobs, _ = name.removeprefix(_LATER).split("_")
            cells.setdefault(policy, {})[int(gpus), int(jobs)] = row["value"]
    measured = {size for found in cells.values() for size in found}
    sizes = sorted(size for size in measured if size[1] >= _FEW_JOBS)
    table = []
    quick = sorted(name for name, found in cells.items() if all(map(_is_quick, found.values())))
    for policy, found in sorted(cells.items()):
        if policy in quick:
            continue
        small, large = found.get((512, 1_000)), found.get((4_096, 10_000))
        growth = round(large / small, 1) if small and large and min(small, large) >= _LEAST_S else None
        table.append((policy, *(_seconds(found.get(size)) for size in sizes), _rounded(growth)))
    head = ("policy", *(f"{gpus:,} / {jobs:,}" for gpus, jobs in sizes), "growth")
    text = f"""Up to {sizes[-1][0]:,} GPUs and {sizes[-1][1]:,} active jobs no decision of these takes more
than {_QUICK_S:g} s of CPU time: {", ".join(quick)}. The others' CPU seconds, by GPUs / active jobs, after
a job ended and another came; a tenth of the jobs have deadlines. Growth: of the last column over
512 / 1,000, which is eight times the GPUs and ten times the jobs. A dash: the process took more
than 90 s, the first decision with all jobs new included.{_first(rows)}"""
    table_text = _table(head, table) if table else "Not measured yet."
    return f"## Decisions\n\n{fill(' '.join(text.split()), 98, break_on_hyphens=False)}\n\n{table_text}"


def _is_quick(value: float | None) -> bool:
    return value is not None and value <= _QUICK_S


def _seconds(value: float | None) -> str:
    return f"< {_LEAST_S:g}" if value is not None and value < _LEAST_S else _rounded(value)


def _within(table: Sequence[tuple[str, str, str]]) -> str:
    """How many rows with a limit and a value are within it."""
    limits = [limit for _, _, limit in table if limit != _DASH]
    missed = sum(limit.endswith("(missed)") for limit in limits)
    return f"{len(limits) - missed} of {len(limits)} limits hold."


def _rounded(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return _DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    from pliant.tools.report.rendering.text import markdown_table

    return markdown_table(head, [*rows], len(head)) + "\n"
