"""Trainings that are resized end with nothing left running, as those of the launcher."""

from tests.tools.run.conftest import nothing_left_behind, site

__all__ = ["nothing_left_behind", "site"]
