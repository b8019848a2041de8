"""One unit and its files, without a Slurm: who may start it, and who ends it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from pliant.tools.run.backends.protocol import Handle, StartedUnit, StopLevel, UnitStatus
from pliant.tools.run.backends.slurm import units
from pliant.tools.run.backends.slurm.units import SlurmUnit, StepPlace, UnitReport
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.backends.slurm.conftest import kept_attempt

WANTED = StartedUnit(node="n0", argv=("true",), cwd="/", env={})


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    """An attempt with one unit that a keeper has taken over."""
    return kept_attempt(StateDir(tmp_path), "a", "n0")


def unit_of(handle: Handle) -> SlurmUnit:
    return SlurmUnit(handle, 0, WANTED, handle.files)


PLACE, UNSEEN = StepPlace("8", "", "none"), UnitReport(0.0, None)


def test_a_kill_of_another_process_ends_the_step(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    handle.files.orders(0).write_text("kill\n")
    unit = unit_of(handle)
    assert not unit.give_order("kill")
    monkeypatch.setattr(units, "AGAIN_S", 0.0)
    assert unit.give_order("kill")


@pytest.mark.parametrize("tried", [False, True])
def test_files_that_this_host_does_not_know_are_asked_for_first(
    handle: Handle, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    """A host may remember for a minute that a file was not there. The unit runs all the same."""
    asked: list[Path] = []
    monkeypatch.setattr(units, "ask_server", asked.append)
    monkeypatch.setattr(units, "look_again", lambda path: Path(path).stat() if asked else None)
    monkeypatch.setattr(SlurmUnit, "_start", lambda *_: pytest.fail("it is started a second time"))
    unit = unit_of(handle)
    unit._tries = int(tried)
    result = unit.starting(PLACE, UNSEEN, {}, 100.0)
    assert result == UnitStatus("running")
    assert unit.order == ""


@pytest.mark.parametrize(
    ("before", "after", "displaced"),
    [("", "", True), ("term", "", False), ("", "term", True), ("", "kill", True)],
)
def test_what_slurm_has_ended_is_displaced_unless_it_was_ordered(
    handle: Handle, before: str, after: StopLevel | Literal[""], displaced: bool
) -> None:
    """An order that follows changes nothing: a peer fails, and all units are asked to end."""
    handle.files.orders(0).write_text(before)
    handle.files.displaced(0).touch()
    unit = unit_of(handle)
    if after:
        unit.give_order(after)
    handle.files.exit_code(0).write_text("-15\n")
    ended = unit.ended()
    assert ended == UnitStatus("exited", -15)
    assert ended.displaced == ("Slurm has ended what ran on node n0" if displaced else "")


REFUSED = "srun: error: Task launch for StepId=2.1 failed on node n0: Communication connection failure\n"


@pytest.mark.parametrize(
    ("said", "hangs", "displaced"),
    [
        (REFUSED, False, True),
        ("", True, True),
        ("srun: error: Invalid generic resource (gres) specification\n", False, False),
    ],
)
def test_a_node_on_which_nothing_starts_is_no_fault_of_the_unit(
    handle: Handle, said: str, hangs: bool, displaced: bool
) -> None:
    handle.files.keeper(0).unlink()
    (handle.files.logs / "srun-0.log").write_text(said)
    unit = unit_of(handle)
    unit._tries, unit._code, unit._since_s, unit._ended_s = units.TRIES, 1, 0.0, 1.0
    unit.srun = 1 if hangs else None
    result = unit.starting(PLACE, UNSEEN, {}, 2 * units.START_S)
    assert (result.state, bool(result.displaced)) == (("lost", True) if displaced else ("exited", False))
    assert result.began is not displaced
    assert unit.order == "kill", "should it start after all, its keeper finds that others went on"


def test_a_node_that_does_not_see_the_directory_is_the_reason(handle: Handle) -> None:
    """A step there could leave no file, however well it ends."""
    handle.files.keeper(0).unlink()
    unit = unit_of(handle)
    unit._tries, unit._since_s, unit._ended_s = 1, 0.0, 1.0
    assert unit.starting(PLACE, UNSEEN, {}, units.SHOWS_S) == UnitStatus("running")
    assert unit.starting(PLACE, UNSEEN, {}, 2 * units.SHOWS_S) == UnitStatus("exited", 1)
    said = f"node n0 does not see {handle.folder}: it must be shared"
    assert handle.files.launcher_log(0).read_text() == f"pliant: no step on node n0: {said}\n"


def test_srun_gets_no_token_of_slurm(handle: Handle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It supports none, and its environment is that of the keeper, which others may read."""
    seen = shlex.quote(str(tmp_path / "seen"))
    (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$SLURM_CONF,${{SLURM_JWT-none}}" > {seen}\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    unit = unit_of(handle)
    unit._start(PLACE, {"SLURM_CONF": "/etc/other.conf", "SLURM_JWT": "token"}, 0.0)
    assert unit.srun is not None
    os.waitpid(unit.srun, 0)
    assert (tmp_path / "seen").read_text() == "/etc/other.conf,none\n"


SILENT: Any = SimpleNamespace(silence_s=lambda _path, limit_s: limit_s)


def test_a_unit_lost_after_slurm_asked_it_to_end_is_displaced(handle: Handle) -> None:
    handle.files.displaced(0).touch()
    result = unit_of(handle).kept(SILENT, UNSEEN, 100.0)
    assert (result.state, bool(result.displaced)) == ("lost", True)


def test_a_good_end_that_is_seen_late_is_no_loss(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keeper is silent because it has ended, and has left a file that says so."""
    handle.files.exit_code(0).write_text("0\n")
    asked: list[Path] = []
    monkeypatch.setattr(units, "ask_server", asked.append)
    monkeypatch.setattr(units, "read_file", lambda path: path.read_bytes() if asked else None)
    unit = unit_of(handle)
    assert unit.kept(SILENT, UNSEEN, 100.0) == UnitStatus("exited", 0)
    assert unit.order == ""
