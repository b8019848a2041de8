"""Settings that all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("pliant", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("pliant"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "pliant")


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    """Commands that a test calls in its own process set up the logger; the next test gets it as it was."""
    logger = logging.getLogger("pliant")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def reference_data() -> Path:
    """The folder of third-party traces; tests that need it skip where it is not."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("PLIANT_DATA", beside))
    if not folder.is_dir():
        pytest.skip("no reference data: set PLIANT_DATA to its folder")
    return folder
