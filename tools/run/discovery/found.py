"""A cluster that was found, with what its user should know about it."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.schemas.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster and what was left out, or could not be known."""

    cluster: Cluster
    notes: tuple[str, ...] = ()
    """For people, a line each."""
