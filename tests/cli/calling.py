"""``pliant`` called in the process of the test, and recipes of sweeps over the files that tests write."""

import json
from typing import Any

from typer.testing import CliRunner

from pliant.cli.main import app


def call(*words: str, stdin: bytes | None = None, columns: int = 80) -> Any:
    """The result of ``pliant`` with these words; stdin is not a terminal, and empty unless it is given."""
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, words, input=stdin)


def sweep(*policies: str, more: str = "") -> str:
    """One trace on one cluster under these policies; ``more``: further lines."""
    return f"""
policies = {json.dumps(policies)}
{more}
[[traces]]
name = "t"
jobs = "jobs.jsonl"
[[clusters]]
name = "c"
path = "cluster.json"
"""
