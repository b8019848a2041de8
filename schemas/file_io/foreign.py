"""What a file that is none of pliant's seems to be, by its beginning, and the command that reads it."""

from __future__ import annotations

import re
from typing import Final

from pliant.schemas.file_io.packing import is_packed

_BEGINNING: Final = 1 << 12
"""Bytes that are looked at."""
_TABLES: Final = (
    ("philly", {"timestamp", "duration", "num_gpus"}),
    ("acme", {"job_id", "gpu_num", "submit_time", "duration", "type"}),
    ("helios", {"job_id", "gpu_num", "submit_time", "duration"}),
    ("alibaba-v2023", {"name", "num_gpu", "creation_time"}),
    ("alibaba-spot", {"job_name", "gpu_request", "worker_num"}),
    ("tiresias", {"job_id", "num_gpu", "submit_time", "model_name"}),
    ("elasticflow", {"job_id", "num_gpu", "submission_time"}),
    ("pollux", {"name", "time", "application", "num_replicas"}),
    ("ones", {"time", "model", "task", "epoch_size"}),
    ("faults", {"time", "instances"}),
)
"""Formats of traces, by columns that theirs have and those before them have not."""
_TEXTS: Final = (
    ("slurm", re.compile(rb'\{\s*"(?:jobs|meta)"\s*:|JobID(?:Raw)?[|\s]|[^\n]*\|JobID(?:Raw)?[|\n]')),
    ("philly", re.compile(rb'\[\s*\{.*"(?:jobid|attempts)"\s*:', re.S)),
    ("faults", re.compile(rb'\[\s*\{.*"(?:node_id|Time)"\s*:', re.S)),
    ("swf", re.compile(rb";|-?\d+(?:[ \t]+-?[\d.]+){17}[ \t\r]*$", re.M)),
    ("gavel", re.compile(rb"[^\t\n]+(?:\t[^\t\n]*){6,}$", re.M)),
)
"""Formats of traces, by how their texts begin."""
_NODES: Final = (
    ("alibaba-v2023", {"sn", "gpu", "model"}),
    ("alibaba-spot", {"node_name", "gpu_model", "gpu_capacity_num"}),
)
"""Formats whose lists of nodes have these columns."""
_COMMANDS: Final = {
    "pollux": "DATA --workload {} -o FOLDER",
    "faults": "{} -o failures.jsonl",
}
"""What follows the format, where it makes more than jobs of a file."""
_SCRIPT: Final = re.compile(
    rb'#!|(?:#[^\n]*\n|\s)*(?:"""|(?:import|from|def|class|export|set|module|python3?|torchrun) [^\n]*$)',
    re.M,
)
_NOTEBOOK: Final = re.compile(rb'\{\s*"(?:cells|metadata|nbformat)"\s*:')
_TOML: Final = re.compile(rb"(?:#[^\n]*\n|\s)*(?:\[\[?[A-Za-z][\w.-]*\]\]?[ \t\r]*$|[\w-]+ *= *[^=\s])", re.M)
_DELIMITERS: Final = {"commas": ",", "semicolons": ";", "tabs": "\t", "bars": "|"}


def foreign(data: bytes, source: str) -> str | None:
    """What text seems to be, and the command for it. Returns None for JSON and what is not known."""
    beginning = data[:_BEGINNING].removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n ")
    if _NOTEBOOK.match(beginning):
        return (
            f"seems to be a notebook: pliant submit papermill -- {source} OUT.ipynb runs it, with papermill"
        )
    name = format_of(beginning)
    if name is not None:
        what = f"a trace of the format {name}" if name != "slurm" else "what sacct prints"
        command = _COMMANDS.get(name, "{} -o jobs.jsonl").format(source)
        return f"seems to be {what}: pliant trace import {name} {command} reads it"
    for name, needed in _NODES:
        if needed <= _columns(beginning):
            command = f"pliant trace import {name} JOBS {source} -o jobs.jsonl --cluster-out cluster.json"
            return f"seems to be the nodes of a trace of the format {name}: {command} reads it"
    if beginning.startswith((b"{", b"[{", b"[\n")) or is_packed(data):
        return None
    if _SCRIPT.match(beginning):
        first = "" if source.endswith(".py") else ", with a first line like #!/bin/bash,"
        submit = f"pliant submit{first or f' {source}'} gives it to a run"
        return f'seems to be a script: {submit}; in a job file it is the "command" of a job'
    if _TOML.match(beginning):
        return "seems to be TOML: a recipe goes with --recipe, or to pliant trace synth"
    delimiter = _delimiter(beginning)
    if delimiter is not None:
        command = f"pliant trace import csv {source} --map id=COLUMN,submit=COLUMN,gpus=COLUMN,…"
        return f"seems to be a table with {delimiter} between its fields: {command} reads it"
    return None


def format_of(beginning: bytes) -> str | None:
    """The format of traces that text seems to be of. Returns None if it is of none."""
    columns = _columns(beginning)
    named = (name for name, needed in _TABLES if needed <= columns)
    return next(named, None) or next((name for name, text in _TEXTS if text.match(beginning)), None)


def _columns(beginning: bytes) -> set[str]:
    """The names in a first line."""
    first = beginning.partition(b"\n")[0].decode(errors="replace")
    return {name.strip().strip('"').lower() for name in first.split(",")}


def _delimiter(beginning: bytes) -> str | None:
    """What stands between the fields of the first two lines, equally often."""
    lines = [line for line in beginning.decode(errors="replace").splitlines() if line.strip()][:2]
    counts = {name: {line.count(sign) for line in lines} for name, sign in _DELIMITERS.items()}
    candidates = [name for name, each in counts.items() if len(each) == 1 and min(each) >= 2]
    return max(candidates, key=lambda name: min(counts[name]), default=None)
