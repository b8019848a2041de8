"""Recipes of sweeps over the files that the tests of the commands write."""

from __future__ import annotations

import json


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
