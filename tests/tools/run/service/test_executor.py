"""What is condemned has ended only once nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.service.executor import Condemned
from pliant.tools.run.statedir.contract.folders import UnreadableError


class Backend:
    """One attempt; a kill ends it where its record can be read."""

    def __init__(self) -> None:
        self.readable = False
        self.runs = self.dies = True

    def stop(self, *_about: object) -> None:
        if not self.readable:
            raise UnreadableError("launch.json: cannot be read: permission denied")
        self.runs = self.runs and not self.dies

    def poll(self, handles: list[Handle]) -> dict[Handle, tuple[UnitStatus, ...]]:
        return {handle: (UnitStatus("running" if self.runs else "exited"),) for handle in handles}


def test_an_attempt_whose_record_cannot_be_read_has_not_ended(tmp_path: Path) -> None:
    """Its processes train on: a second attempt would write into the same folder."""
    backend: Any = Backend()
    gangs: Any = {"a": SimpleNamespace(handle=Handle("a", 1, tmp_path / "1"))}
    condemned = Condemned(backend, lambda _job: Handle("a", 2, tmp_path / "2"))
    condemned.add("a", "its folder cannot be written")
    assert list(condemned.finish_off(gangs)) == []
    assert "a" in condemned.jobs
    backend.readable = True
    assert list(condemned.finish_off(gangs)) == [("a", 1, "its folder cannot be written")]
    assert "a" not in condemned.jobs


def test_an_attempt_that_could_not_be_taken_up_has_ended_only_once_nothing_of_it_is_left(
    tmp_path: Path,
) -> None:
    """A kill may take its time: the job would be started again beside it."""
    backend: Any = Backend()
    backend.readable, backend.dies = True, False
    condemned = Condemned(backend, lambda _job: Handle("a", 3, tmp_path / "a" / "attempts" / "3"))
    condemned.add("a", "it cannot be taken up")
    assert [*condemned.finish_off({}), *condemned.finish_off({})] == []
    backend.dies = True
    assert list(condemned.finish_off({})) == [("a", 2, "it cannot be taken up")]
