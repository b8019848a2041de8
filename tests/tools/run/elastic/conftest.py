"""Jobs of real workers, and of one worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.elastic.membership.rendezvous import LostWorkerWatch
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


@pytest.fixture(autouse=True)
def no_watch_outlives_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread that a job in this process has begun would end the process once its worker is overtaken."""
    watches: list[LostWorkerWatch] = []
    begin = LostWorkerWatch.begin

    def noted(lookout: LostWorkerWatch) -> None:
        watches.append(lookout)
        begin(lookout)

    monkeypatch.setattr(LostWorkerWatch, "begin", noted)
    yield
    for each in watches:
        each.end()
