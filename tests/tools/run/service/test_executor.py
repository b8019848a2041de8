"""What is condemned has ended only once nothing of it is left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.service.executor import Condemned
from pliant.tools.run.statedir.contract.folders import UnreadableError


class Backend:
    """One attempt; a kill ends it where its record can be read."""

    def __init__(self) -> None:
        self.readable = False
        self.runs = True

    def stop(self, *_about: object) -> None:
        if not self.readable:
            raise UnreadableError("launch.json: cannot be read: permission denied")
        self.runs = False

    def poll(self, handles: list[Handle]) -> dict[Handle, tuple[UnitStatus, ...]]:
        return {handle: (UnitStatus("running" if self.runs else "exited"),) for handle in handles}


@dataclass(slots=True)
class Attempt:
    handle: Handle
    statuses: tuple[UnitStatus, ...] = ()

    @property
    def ended(self) -> bool:
        return all(one.state != "running" for one in self.statuses)


def test_an_attempt_whose_record_cannot_be_read_has_not_ended(tmp_path: Path) -> None:
    """Its processes train on: a second attempt would write into the same folder."""
    handle = Handle("a", 1, tmp_path / "1")
    backend: Any = Backend()
    gang: Any = Attempt(handle)
    condemned = Condemned(backend, lambda _job: Handle("a", 2, tmp_path / "2"))
    condemned.add("a", "its folder cannot be written")
    assert list(condemned.finish_off({"a": gang})) == []
    assert "a" in condemned.jobs
    backend.readable = True
    assert list(condemned.finish_off({"a": gang})) == [("a", 1, "its folder cannot be written")]
    assert "a" not in condemned.jobs
