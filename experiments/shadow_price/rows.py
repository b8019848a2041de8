"""The rows of the results, asked for by what they vary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import Any

from experiments.harness.spec import Findings
from experiments.shadow_price.runs import OURS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """All rows."""

    found: Findings

    def of(self, group: str, **wanted: Any) -> list[Row]:
        """Rows of a group with these fields, in order of their names."""
        rows: Iterable[Row] = self.found["rows"].values()
        return [
            row
            for row in rows
            if row["group"] == group and all(row.get(name) == value for name, value in wanted.items())
        ]

    def figure(self, field: str, group: str, **wanted: Any) -> float | None:
        """The mean of a figure over the rows that match; None: there are none."""
        values = [row[field] for row in self.of(group, **wanted) if row.get(field) is not None]
        return fmean(values) if values else None

    def traces(self, group: str) -> list[str]:
        """Traces of a group, in the order of the results."""
        return list(dict.fromkeys(row["trace"] for row in self.of(group)))

    def policies(self, group: str) -> list[str]:
        """Policies of a group, the least mean JCT over ours first."""
        names = {row["policy"] for row in self.of(group)}
        known = {name: ratio for name in names if (ratio := self.over_ours("mean_jct_s", group, name))}
        return sorted(known, key=lambda name: (known[name], name))

    def over_ours(self, field: str, group: str, policy: str) -> float | None:
        """A figure of a policy over that of ours, the geometric mean over the traces that both have."""
        ratios = [ratio for _, ratio in self.ratios(field, group, policy)]
        return geometric_mean(ratios) if ratios else None

    def ratios(self, field: str, group: str, policy: str) -> Iterator[tuple[str, float]]:
        """The same by trace."""
        for trace in self.traces(group):
            theirs, ours = (self.figure(field, group, trace=trace, policy=name) for name in (policy, OURS))
            if theirs is not None and ours:
                yield trace, theirs / ours

    def bound_s(self, trace: str, batch: str = "free", load: float = 1.0) -> float | None:
        """No schedule of the trace has a smaller mean JCT; None: it was not computed."""
        return self.figure("bound_s", "bounds", trace=trace, variant=batch, load=load)

    def ahead(self, groups: Sequence[str], field: str = "mean_jct_s") -> list[tuple[str, str, str, float]]:
        """(group, trace, policy, part) of the policies that are better than ours, and by how much."""
        found = []
        for group in groups:
            for policy in {row["policy"] for row in self.of(group)} - {OURS}:
                for trace, ratio in self.ratios(field, group, policy):
                    if ratio < 1:
                        found.append((group, trace, policy, 1 - ratio))
        return sorted(found)
