"""How the teams of a shared cluster stand, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pliant.schemas.cluster import OTHERS
from pliant.schemas.schedule import TeamStanding
from pliant.schemas.text import Column, text_table

TEAM_COLUMNS: Final = (
    Column("team"),
    Column("held", 1, right=True),
    Column("entitled", 1, right=True),
    Column("own", 3, right=True),
    Column("borrowed", 2, right=True),
    Column("lent", 2, right=True),
    Column("waiting", 2, right=True),
    Column("GPU hours", 4, right=True),
)


def teams_text(teams: Sequence[TeamStanding], width: int | None = None) -> str:
    """A line for each team, in GPUs as of the last decision; empty where the cluster is one pool.

    :param width: of the terminal, in columns; None leaves out and cuts nothing.
    """
    rows = [
        (
            _name(each),
            str(each.held),
            str(each.entitled),
            f"{each.own:.3g}",
            _count(each.borrowed),
            _count(each.lent),
            f"{each.waiting_jobs} jobs" if each.waiting_jobs else "-",
            f"{each.usage_gpu_hours:.3g}",
        )
        for each in teams
    ]
    return text_table(TEAM_COLUMNS, rows, width) if rows else ""


def _name(standing: TeamStanding) -> str:
    team = "(no team)" if standing.team == OTHERS else standing.team
    return f"{team}/{standing.user}" if standing.user else team


def _count(gpus: float) -> str:
    return f"{gpus:.3g}" if gpus else "-"
