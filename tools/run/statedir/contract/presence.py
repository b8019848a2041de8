"""Deprecated name of :mod:`pliant.tools.run.statedir.contract.liveness`, kept for one version."""

from pliant.tools.run.statedir.contract.liveness import life

__all__ = ["life"]
