"""The door's process comes and goes with the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from pliant.schemas.errors import PliantError, UsageError
from pliant.tools.run.door.opening import opened_door
from pliant.tools.run.statedir.directory import StateDir, make_own
from tests.tools.run.door.people import BOB, LOOK, Shared, all_may_enter, only_root_becomes_others
from tests.tools.run.site import until


def doors(state: Path) -> list[psutil.Process]:
    """Processes that serve a state directory's door."""
    found = []
    for process in psutil.Process().children():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(state) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def answers(run: Shared) -> bool:
    try:
        return bool(run.ask(BOB, LOOK)["ok"])
    except AssertionError:
        return False


def test_a_dead_door_is_opened_again_and_closed_with_its_run():
    only_root_becomes_others()
    with all_may_enter() as folder:
        run = Shared(folder)
        dirs = StateDir(run.state)
        make_own(dirs)
        with opened_door(dirs):
            [door] = doors(dirs.path)
            assert answers(run)
            os.kill(door.pid, signal.SIGKILL)
            until(lambda: [each.pid for each in doors(dirs.path)] not in ([], [door.pid]))
            until(lambda: answers(run))
        assert doors(dirs.path) == []
        assert not answers(run)


def test_a_door_that_cannot_be_opened_says_why(tmp_path: Path):
    only_root_becomes_others()
    with all_may_enter() as folder:
        dirs = StateDir(folder / "state")
        make_own(dirs)
        folder.chmod(0o777)
        with pytest.raises(UsageError, match="other accounts can replace what lies in it"), opened_door(dirs):
            pass
        folder.chmod(0o755)
        with pytest.raises(PliantError, match="cannot be"), opened_door(dirs, folder / "none.json"):
            pass
