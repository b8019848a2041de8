"""Another name of :mod:`pliant.tools.run.statedir.contract.liveness`, which scripts import."""

from pliant.tools.run.statedir.contract.liveness import life

__all__ = ["life"]
