"""Keeping profiles: several made one, two compared, rows taken out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.predict import with_model_errors
from pliant.tools.profile.throughput import APART, BUSY, key


def is_doubtful(row: ProfileRow) -> bool:
    """Whether it is of a busy machine, or was measured differently each time."""
    return (row.busy_share or 0.0) > BUSY or (row.spread or 0.0) > APART


def merge(profiles: Iterable[Iterable[ProfileRow]]) -> tuple[ProfileRow, ...]:
    """All rows. Of those that measure the same one is kept: an undisturbed one, and of these the newest.

    Where times of measurement are equal or unknown, later profiles come before earlier ones.
    """
    best: dict[object, ProfileRow] = {}
    for rows in profiles:
        for row in rows:
            known = best.get(key(row))
            if known is None or _rank(row) >= _rank(known):
                best[key(row)] = row
    return with_model_errors(sorted(best.values(), key=key))


def _rank(row: ProfileRow) -> tuple[bool, float]:
    return not is_doubtful(row), row.measured_at or 0.0


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row of one profile beside that of another; None: it has none."""

    row: ProfileRow
    """One of the two; both measure the same."""
    before: ProfileRow | None
    after: ProfileRow | None

    @property
    def slower(self) -> float | None:
        """How much longer the step takes afterwards, as a fraction; None if one of the two did not fit."""
        before = self.before and self.before.step_seconds
        after = self.after and self.after.step_seconds
        return after / before - 1.0 if before and after else None


def changes(before: Iterable[ProfileRow], after: Iterable[ProfileRow], least: float) -> list[RowChange]:
    """What differs, ordered by what the rows measure: rows of one profile alone, rows that fit in one
    alone, and steps that changed by more than ``least``, a fraction.
    """
    old, new = ({key(row): row for row in rows} for rows in (before, after))
    either = old | new
    pairs = [RowChange(either[each], old.get(each), new.get(each)) for each in sorted(either)]
    return [pair for pair in pairs if _differs(pair, least)]


def _differs(pair: RowChange, least: float) -> bool:
    if pair.before is None or pair.after is None:
        return True
    return pair.before.feasible != pair.after.feasible or abs(pair.slower or 0.0) > least


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which rows to take out: those that match all that is stated."""

    models: Collection[str] = ()
    gpu_types: Collection[str] = ()
    doubtful: bool = False
    before_s: float | None = None
    """Rows measured before this time (UTC seconds), or at an unknown one."""

    def takes(self, row: ProfileRow) -> bool:
        return (
            (not self.models or row.model in self.models)
            and (not self.gpu_types or row.gpu_type in self.gpu_types)
            and (not self.doubtful or is_doubtful(row))
            and (self.before_s is None or (row.measured_at or 0.0) < self.before_s)
        )


def pruned(rows: Sequence[ProfileRow], pruning: Pruning) -> tuple[ProfileRow, ...]:
    """The rows that stay."""
    return with_model_errors([row for row in rows if not pruning.takes(row)])
