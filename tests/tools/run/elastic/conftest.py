"""Jobs of real workers, and of one worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.run.elastic.alone import Alone
from tests.tools.run.elastic.gang import SCRIPT, Gang


@pytest.fixture
def gang(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    """Makes a job of the module's ``SCRIPT`` with the given options; its workers end with the test."""
    made: list[Gang] = []

    def make(**options: Any) -> Gang:
        made.append(Gang(tmp_path, script=getattr(request.module, "SCRIPT", SCRIPT), **options))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Workers end with their fixture; the launcher's own check would look at every process of the machine."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alone:
    return Alone(tmp_path, monkeypatch)
