"""The all-reduce times of a cluster, kept in a file of their own: measured once, used for all its jobs.

They depend on the cluster, not on the job, and are measured again only when the cluster has changed: the
generic scaling characteristics of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al.,
2020, section III-B.2). What lies between the measured numbers of weights is interpolated.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Final, Self

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_profile, write_profile
from pliant.schemas.profile import Profile, ProfileRow

USUAL_NAME: Final = "allreduce.parquet"
_CLUSTER: Final = "cluster"
"""Key of the file's metadata that says what it was measured on."""


@dataclass(frozen=True, slots=True)
class AllReduceCache:
    """All-reduce rows and the cluster that they were measured on."""

    rows: tuple[ProfileRow, ...]
    cluster: str
    """As :func:`cluster_label` says."""
    metadata: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, path: str | Path, cluster: str) -> Self | None:
        """What is kept for this cluster; None: nothing yet.

        :raises BadInputError: the file is not such a file, or was measured on another cluster.
        """
        if not Path(path).exists():
            return None
        found = read_profile(path)
        measured_on = dict(found.metadata).get(_CLUSTER)
        rows = tuple(row for row in found.rows if row.kind == "allreduce")
        if measured_on is None or len(rows) < len(found.rows):
            what = "is not a file of all-reduce times, expected one that `profile --allreduce` has written"
            raise BadInputError.one(str(path), what)
        if measured_on != cluster:
            what = f"was measured on {measured_on}, not on {cluster}"
            raise BadInputError.one(
                str(path), f"{what}: measure again with --refresh, or name another --allreduce-file"
            )
        return cls(rows, measured_on, found.metadata)

    @classmethod
    def of(cls, profile: Profile, cluster: str) -> Self:
        """The all-reduce rows of a profile that was measured just now."""
        rows = tuple(row for row in profile.rows if row.kind == "allreduce")
        return cls(rows, cluster, (*profile.metadata, (_CLUSTER, cluster)))

    def write(self, path: str | Path) -> None:
        """Write them; a reader sees the old file or the new one."""
        write_profile(Profile(self.rows, self.metadata), path)

    @property
    def measured_on(self) -> str:
        """Day and minute (UTC) of the newest row."""
        newest = max((row.measured_at or 0.0 for row in self.rows), default=0.0)
        return f"{datetime.fromtimestamp(newest, UTC):%Y-%m-%d %H:%M} UTC"


def cluster_label(cluster: Cluster | None) -> str:
    """What a file says it was measured on: nodes, slots and types, or this machine by name."""
    if cluster is None:
        return f"the machine {platform.node()}"
    alike = groupby(cluster.expanded(), key=lambda node: (node.gpus, node.gpu_type))
    parts = [_nodes([node.name for node in group], *kind) for kind, group in alike]
    return f"the cluster of {', '.join(parts)} ({cluster.slots} slots)"


def _nodes(names: Sequence[str], gpus: int, gpu_type: str) -> str:
    shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}, each"
    return f"{shown} {gpus} × {gpu_type}"
