"""What an import did: rows read, jobs written, rows dropped and why, and what had to be assumed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ImportSummary:
    """Counts and sentences of one import, filled while it runs."""

    format: str
    rows: int = 0
    """Rows read: jobs and measurements, dropped ones included."""
    jobs: int = 0
    nodes: int = 0
    profile_rows: int = 0
    convergence_rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that gave no job, by reason."""
    assumptions: dict[str, int | None] = field(default_factory=dict)
    """What the input does not say and was decided here; the number of times, or None: throughout."""
    files: list[str] = field(default_factory=list)
    """Files written, ``-`` for stdout."""

    def assume(self, sentence: str) -> None:
        """State what holds for the whole import."""
        self.assumptions.setdefault(sentence, None)

    def assume_here(self, sentence: str) -> None:
        """State what holds for one more row."""
        self.assumptions[sentence] = (self.assumptions.get(sentence) or 0) + 1

    def lines(self) -> list[str]:
        """The summary as lines for people."""
        made = f"{self.jobs} jobs"
        if self.profile_rows or self.convergence_rows:
            made += f", {self.profile_rows} profile rows, {self.convergence_rows} convergence rows"
        if self.nodes:
            made += f", {self.nodes} nodes"
        lines = [f"{self.format}: {self.rows} rows read, {made} written, {self.dropped.total()} rows dropped"]
        lines += [f"dropped: {count} {reason}" for reason, count in sorted(self.dropped.items())]
        for sentence, count in self.assumptions.items():
            lines.append("assumed: " + (sentence if count is None else f"{sentence} ({count} times)"))
        return lines
