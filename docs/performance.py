"""The page on what takes how long, from the records of the benchmarks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NamedTuple

RESULTS: Final = Path(__file__).parents[1] / "benchmarks" / "results"
RECORDS: Final = (
    *("replay_speed", "scale", "shadow_price", "ares", "cli", "report"),
    *("service", "operate", "sharing", "rescale", "scripts"),
)
Row = Mapping[str, Any]
Records = Mapping[str, Mapping[str, Row]]
"""Rows by record and name."""
_DASH: Final = "-"
_STEPS: Final = {
    "import": "import Helios's log",
    "fifo": "replay under fifo",
    "tiresias": "replay under tiresias",
    "ares": "replay under ares",
    "shadow_price": "replay under shadow-price",
    "report": "report of one replay",
    "acme_import": "as Acme's log: import",
    "acme_fifo": "as Acme's log: replay under fifo",
    "acme_report": "as Acme's log: report",
    "itp_import": "as ITP's log: import",
    "itp_fifo": "as ITP's log: replay under fifo",
    "itp_report": "as ITP's log: report",
}
_IMPORTED: Final = {"helios": "import", "acme": "acme_import", "elasticflow": "itp_import"}
"""The step of whole months that imports a format."""
_LATER: Final = "decision_s_"
_SLOW_S: Final = 10.0
_COARSE_S: Final = 0.01
"""What the clock of the CPU tells apart where decisions were not repeated, and a little more."""
_FINE_S: Final = 0.001
"""Decisions that were repeated are shown from here on."""


class _Line(NamedTuple):
    """A row of a table. ``{record[name]}`` in its baseline, or in its growth, is another value."""

    record: str
    name: str
    what: str
    baseline: str = _DASH
    growth: str = _DASH


class _Group(NamedTuple):
    title: str
    text: str
    lines: Sequence[_Line]


_ARTIFACT: Final = "{peers[%s]} units: the artifact's simulator"
_GROUPS: Final = (
    _Group(
        "Replays",
        """\
Units and peak memory are of whole processes, from the files that they read to those that they write,
unless a row says engine: that goes from inputs in memory to events in memory, after a short replay
that loads what it needs. Workload 6 is that of the Pollux artifact, whose own simulator was
measured once, as a whole process. Growth of whole replays: as under Whole months; workload 6 has one
size.""",
        (
            _Line(
                *("replay_speed", "fifo_1m_jobs_units", "1,000,000 jobs, 2,048 GPUs, fifo"),
                growth="{scale[fifo_growth]}",
            ),
            _Line(
                *("replay_speed", "peak_mb_fifo_1m", "the same: peak memory"),
                growth="{scale[fifo_mb_growth]} for ten times the jobs",
            ),
            _Line("replay_speed", "event_us_fifo", "100,000 jobs, fifo: an event, engine"),
            _Line("replay_speed", "write_us_per_event", "the same: writing an event"),
            _Line(
                "replay_speed",
                "easy_backfill_1m_growth",
                "an event under EASY backfill, engine: of 1,000,000 jobs over 1,000",
                growth="{replay_speed[easy_backfill_1m_growth]}",
            ),
            _Line(
                *("replay_speed", "ares_100k_units", "100,000 elastic jobs, 2,048 GPUs, ares"),
                growth="{scale[ares_growth]}",
            ),
            _Line("replay_speed", "ares_100k_jobs_peak_mb", "the same: peak memory"),
            _Line(
                "replay_speed",
                "cost_per_event_growth",
                "an event under ares, engine: of 100,000 jobs over 1,000",
                growth="{replay_speed[cost_per_event_growth]}",
            ),
            *(
                _Line(
                    *("replay_speed", f"{policy}_w6_process_units", f"workload 6, {policy}"),
                    baseline=_ARTIFACT % policy,
                )
                for policy in ("tiresias", "optimus", "pollux")
            ),
            _Line("replay_speed", "tiresias_w6_engine_units", "workload 6, tiresias, engine"),
            _Line("replay_speed", "optimus_w6_engine_units", "workload 6, optimus, engine"),
            _Line("replay_speed", "shadow_price_w6_units", "workload 6, shadow-price, engine"),
            _Line(
                "scale",
                "sweep_overhead",
                "a sweep of 50 replays of 1,000 jobs, two workers",
                baseline="1: their engines and one start",
            ),
            _Line("scale", "sweep_worker_mb", "a sweep with 100,000 jobs: memory of each further worker"),
            _Line("scale", "sweep_table_mb", "the same: memory of the trace, held once"),
        ),
    ),
    _Group(
        "Commands",
        """\
CPU time of whole processes. Growth of the report: as under Whole months; help and decisions about a
few jobs have no size, the others were measured at one.""",
        (
            _Line("cli", "cli_help_cpu_s", "`pliant --help`"),
            _Line("cli", "help_cpu_s_over_python", "the same", "1: an empty Python"),
            _Line("cli", "cli_schedule_fifo_cpu_s", "`pliant schedule` of a few jobs"),
            _Line(
                "cli",
                "schedule_small_cpu_over_imports",
                "the same",
                "1: importing numpy, pyarrow, pydantic and typer",
            ),
            _Line(
                *("cli", "cli_report_cpu_s", "`pliant report` of a small replay"),
                growth="{scale[report_growth]}",
            ),
            _Line("report", "report_46k_jobs_over_replay_cpu", "report of 46,000 jobs", "1: their replay"),
            _Line("report", "metrics_100k_jobs_cpu_units", "metrics of 100,000 jobs, from memory"),
            _Line("report", "html_10k_jobs_interactive_s", "HTML report of 10,000 jobs: until it answers"),
            _Line("sharing", "whatif_s", "`pliant whatif` with 1,000 jobs"),
        ),
    ),
    _Group(
        "A live cluster",
        """\
The service, on simulated workers and on CPU slots. Growth: a tick is taken to be its own part and one
for each gang, from 10 gangs and 50; memory grows by the jobs that ended. The others were measured at
one size.""",
        (
            _Line("service", "tick_cpu_ms_own", "a tick of `run`: its own part"),
            _Line("service", "tick_cpu_ms_per_gang", "the same: for each gang of workers"),
            _Line("service", "status_100k_events_cpu_s", "`pliant status` after 100,000 events"),
            _Line("service", "restart_100k_events_cpu_s", "restart of `run` after 100,000 events"),
            _Line("operate", "soak_memory_per_job_kib", "memory of `run` for each job that ended"),
            _Line("operate", "decision_to_first_step_s", "from a decision to the first step"),
            _Line("operate", "reconcile_5000_jobs_s", "reconciliation of 5,000 Slurm jobs"),
            _Line("sharing", "authorised_requests_per_s", "requests of other accounts that are authorised"),
        ),
    ),
    _Group(
        "Training jobs",
        """\
What the library costs a job on CPU slots, compared with what it replaces; where plain DDP is over
the library, more is better. What a change of a job costs by its workers, and figures of a GPU, are in
[rescaling.md](rescaling.md); growth with more than three workers was not measured.""",
        (
            _Line(
                *("rescale", "library_cpu_ratio_mlp_by_sample"),
                *("plain DDP's CPU time over the library's, small model, read by sample", "1: plain DDP"),
            ),
            _Line("rescale", "library_cpu_ratio_mlp", "the same, read by batch", "1: plain DDP"),
            _Line("rescale", "library_cpu_ratio_transformer", "the same, a transformer", "1: plain DDP"),
            _Line(
                "rescale",
                "library_overhead_ratio",
                "what the library adds to a step of 10 ms, as a part of it",
                "0: plain DDP",
            ),
            _Line(
                *("rescale", "growth_over_broadcast_and_step", "the stall of one worker more"),
                "1: the broadcast of the state and one usual step",
            ),
            _Line(
                *("rescale", "stall_ratio_min", "checkpoint and relaunch over a change in place"),
                "1: a change in place",
            ),
            _Line(
                *("scripts", "relaunch_resize_over_start", "a change by checkpoint and relaunch"),
                "1: a plain start",
            ),
            _Line(
                *("scripts", "checkpoint_stall_over_dcp_async", "the stall of a checkpoint"),
                "1: PyTorch's asynchronous one",
            ),
        ),
    ),
)


def performance_page() -> str:
    """Units and seconds by topic, each with its limit and its peers, and how they grow."""
    rows = _records()
    values = _values(rows)
    replays, *others = (_group(group, rows, values) for group in _GROUPS)
    months = _months(rows["scale"])
    imports, decisions = _imports(rows["replay_speed"], rows["scale"]), _decisions(rows)
    return "\n".join([_head(rows), replays, *months, imports, *others, decisions])


def _records() -> Records:
    found = {}
    for name in RECORDS:
        path = RESULTS / f"{name}.json"
        rows = json.loads(path.read_bytes()) if path.exists() else []
        found[name] = {row["name"]: row for row in rows}
    return found


def _values(rows: Records) -> Mapping[str, Mapping[str, str]]:
    """Values that have been measured, by record and name, and those of peers, as the page shows them."""
    from benchmarks.replay_speed import PEERS

    shown = {
        record: {name: _rounded(row["value"]) for name, row in found.items() if row["value"] is not None}
        for record, found in rows.items()
    }
    return shown | {"peers": {name: _rounded(units) for name, units in PEERS.items()}}


def _head(rows: Records) -> str:
    unit_s = rows["replay_speed"]["calibration_s"]["value"]
    names = ", ".join(f"`{name}`" for name in RECORDS)
    missed = sum(row["holds"] is False for found in rows.values() for row in found.values())
    text = f"""How long replays, imports, decisions, commands and the live loop take. Each value is a row of
`benchmarks/results/`, which `make bench NAME=…` writes ({names}). They were recorded on {_machines()}.
A unit is the CPU time of a fixed loop, measured at the same time, {unit_s:g} s there, so units can be
compared between machines. The baseline is another way to do the same, in the same unit. Growth is
the cost of one job, event or gang with many over that with few, so 1 is in proportion. A dash: not known, or
ended for its time; of growth: measured at one size. Of all rows there, {missed} miss their limit."""
    return f"# What takes how long\n\n{_prose(text)}\n"


def _machines() -> str:
    """The machine of most records, and how those of the others differ."""
    found = {}
    for name in RECORDS:
        path = RESULTS / f"{name}.machine.json"
        if path.exists():
            known = json.loads(path.read_bytes())
            found[name] = (
                f"{known['cores']} cores of {known['cpu']} with {known['memory_gib']:g} GiB",
                f"Python {known['python']}",
                known["system"].partition("-x86_64")[0].replace("-", " ", 1),
            )
    usual = Counter(found.values()).most_common(1)[0][0]
    others: dict[str, list[str]] = {}
    for name, machine in found.items():
        differs = ", ".join(each for each in machine if each not in usual)
        if differs:
            others.setdefault(differs, []).append(f"`{name}`")
    return "; ".join([", ".join(usual), *(f"{', '.join(names)}: {how}" for how, names in others.items())])


def _group(group: _Group, rows: Records, values: Mapping[str, Mapping[str, str]]) -> str:
    found = [(line, rows[line.record].get(line.name)) for line in group.lines]
    table = [
        (
            *(line.what, _DASH if row is None else _value(row), _limit(row)),
            *(_filled(text, values) for text in (line.baseline, line.growth)),
        )
        for line, row in found
    ]
    text = _prose(f"{group.text} {_within([row for _, row in found if row is not None])}")
    return f"## {group.title}\n\n{text}\n\n{_table(('what', 'value', 'limit', 'baseline', 'growth'), table)}"


def _value(row: Row) -> str:
    return _DASH if row["value"] is None else f"{_rounded(row['value'])} {row['unit']}{_where(row)}"


def _where(row: Row) -> str:
    """The machine of a row, if it is another one than that of its other rows."""
    return f" ({row['machine']})" if "machine" in row else ""


def _limit(row: Row | None) -> str:
    """In words, from which side it is; the value and whether it holds say so, unless the value is on it."""
    if row is None or row["limit"] is None or row["value"] is None:
        return _DASH
    if row.get("low") is not None:
        side = f"{row['low']:,g} to "
    elif row["value"] == row["limit"]:
        side = ""
    else:
        side = "at least " if row["holds"] is (row["value"] > row["limit"]) else "at most "
    return f"{side}{row['limit']:,g}{' (missed)' if row['holds'] is False else ''}"


def _filled(text: str, values: Mapping[str, Mapping[str, str]]) -> str:
    """A text with the values that it names; a dash where one is not there."""
    try:
        return text.format_map(values)
    except KeyError:
        return _DASH


def _within(rows: Sequence[Row]) -> str:
    """How many rows with a limit and a value are within it."""
    limits = [row for row in rows if _limit(row) != _DASH]
    return f"{sum(row['holds'] for row in limits)} of {len(limits)} limits hold."


def _months(rows: Mapping[str, Row]) -> Sequence[str]:
    """The section on whole months; none where nothing of it was measured."""
    value = {name: row["value"] for name, row in rows.items()}
    if not any(value.get(f"{step}_units") for step in _STEPS):
        return ()
    table = [
        (
            what + _where(rows.get(f"{step}_mb", {})),
            *(_rounded(value.get(f"{step}_{kind}")) for kind in ("units", "growth", "mb", "mb_growth")),
        )
        for step, what in _STEPS.items()
    ]
    jobs_n = "3,300,000" if "jobs" not in value else f"{value['jobs']:,}"
    text = f"""{jobs_n} jobs of two months on 6,416 GPUs, written in Helios's format at a load of 0.85; whole
processes. Growth: units over ten times those of a tenth of the jobs. MB growth: peak memory over that of a
tenth, so 10 is in proportion."""
    head = ("step", "units", "growth", "peak MB", "MB growth")
    return (f"## Whole months\n\n{_prose(text)}\n\n{_table(head, table)}",)


def _imports(rows: Mapping[str, Row], months: Mapping[str, Row]) -> str:
    table, limits = [], []
    for name, row in rows.items():
        if name.startswith("import_rows_per_s_"):
            kind = name.removeprefix("import_rows_per_s_")
            over = rows.get(f"{kind}_import_rows_per_s_over_pyarrow")
            theirs = _DASH if over is None else f"{_rounded(row['value'] / over['value'])}"
            grown = months.get(f"{_IMPORTED.get(kind)}_growth")
            limits += [] if over is None else [over]
            table.append(
                (
                    *(kind.replace("_", "-"), f"{row['value']:,}", theirs),
                    *(
                        _rounded(over["value"] if over else None),
                        _limit(over),
                        _rounded(grown["value"] if grown else None),
                    ),
                )
            )
    text = f"""Rows a second of CPU time, checks and writing included, and what pyarrow reads of the same
file, columns alone; files that are not a single CSV file have no such peer. Growth: CPU time of a row of
3,300,000 over that of 330,000, where whole months of the format were imported. {_within(limits)}"""
    head = ("format", "rows/s", "pyarrow's rows/s", "over pyarrow", "limit", "growth")
    return f"## Imports\n\n{_prose(text)}\n\n{_table(head, sorted(table))}"


def _decisions(rows: Records) -> str:
    """Every policy at every size."""
    from benchmarks.parts.decisions_at_scale import LEFT_OUT

    scale = rows["scale"]
    cells: dict[str, dict[tuple[int, int], float | None]] = {}
    for name, row in scale.items():
        if name.startswith(_LATER):
            policy, gpus, _, jobs, _ = name.removeprefix(_LATER).split("_")
            cells.setdefault(policy, {})[int(gpus), int(jobs)] = row["value"]
    sizes = sorted({size for found in cells.values() for size in found})
    table, limits = [], [row for name, row in scale.items() if name.startswith(_LATER)]
    coarse = [policy for policy in cells if f"decisions_of_{policy}" not in scale]
    for policy, found in sorted(cells.items()):
        shown = (_seconds(found.get(size), _COARSE_S if policy in coarse else _FINE_S) for size in sizes)
        pair = (found.get((512, 1_000)), found.get((4_096, 10_000)))
        table.append((policy, *shown, _growth(*pair, _COARSE_S if policy in coarse else 0.0)))
    head = ("policy", *(f"{gpus:,} / {jobs:,}" for gpus, jobs in sizes), "growth")
    text = f"""CPU seconds of a decision by GPUs / active jobs, after a job ended and another came; a tenth of
the jobs have deadlines. {_within(limits)} Growth: the last column over 512 / 1,000, which is eight times the
GPUs and ten times the jobs.{_COARSE if coarse else ""} A dash in another column: the process took more than
90 s, the first decision with all jobs new included.{_first(scale)} {_steady(rows)}
{" and ".join(LEFT_OUT)} are not there, as they need the whole trace beforehand."""
    return f"## Decisions\n\n{_prose(text)}\n\n{_table(head, table) if table else 'Not measured yet.'}"


_COARSE: Final = f""" Where quick decisions were not repeated, the clock tells {_COARSE_S:g} s apart: growth
is then a bound, or not known."""


def _first(rows: Mapping[str, Row]) -> str:
    """Which first decisions are slow."""
    slow = []
    for name, row in rows.items():
        if name.startswith(f"first_{_LATER}") and row["value"] and row["value"] > _SLOW_S:
            policy, gpus, _, jobs, _ = name.removeprefix(f"first_{_LATER}").split("_")
            slow.append(f"{policy} at {int(gpus):,} / {int(jobs):,} ({_rounded(row['value'])} s)")
    return f" That one takes more than {_SLOW_S:g} s under {', '.join(slow)}." if slow else ""


def _steady(rows: Records) -> str:
    """How decisions grow where the jobs grow with the GPUs, as two other benchmarks know it."""
    return " ".join(
        (
            _grown(rows, *("ares", "ares"), "ares_decision_median_ms_64", "ares_decision_median_ms_16384"),
            _grown(rows, *("shadow-price", "shadow_price"), "sp_decision_ms_64", "sp_decision_ms_2048"),
        )
    )


def _grown(rows: Records, policy: str, record: str, small: str, large: str) -> str:
    less, more = (rows[record].get(name, {}).get("value") for name in (small, large))
    if not less or not more:
        return ""
    gpus, times = int(large.rpartition("_")[2]), _rounded(more / less)
    return f"With the jobs in proportion, {policy} takes {times} times as long on {gpus:,} GPUs as on 64."


def _growth(small: float | None, large: float | None, least: float) -> str:
    """The ratio, or a bound where one of both is only known to be below ``least``."""
    if small is None or large is None or max(small, large) < least or not max(small, large):
        return _DASH
    if small < least or not small:
        return f"> {_rounded(large / least)}" if least else _DASH
    return f"< {_rounded(least / small)}" if large < least else _rounded(large / small)


def _seconds(value: float | None, least: float) -> str:
    return f"< {least:g}" if value is not None and value < least else _rounded(value)


def _rounded(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return _DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _prose(text: str) -> str:
    return fill(" ".join(text.split()), 98, break_on_hyphens=False, break_long_words=False)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    from pliant.tools.report.rendering.text import markdown_table

    return markdown_table(head, [*rows], len(head)) + "\n"
