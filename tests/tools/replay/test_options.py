"""Options of a replay, declared once for the command, for recipes of sweeps and for their tasks."""

from __future__ import annotations

from dataclasses import fields

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from pliant.cli.common import command
from pliant.cli.main import app
from pliant.cli.replay import replay
from pliant.schemas.file_io.record import Record
from pliant.tools.replay.options import Conditions, ReplayOptions
from pliant.tools.replay.sweep import SweepTask
from pliant.tools.replay.sweep_recipe import SweepRecipe


@pytest.mark.parametrize(("record", "declared"), [(SweepRecipe, Conditions), (SweepTask, ReplayOptions)])
def test_a_recipe_and_a_task_have_the_declared_fields(record: type[Record], declared: type) -> None:
    own = {"jobs", "cluster"} if record is SweepTask else set()
    for each in fields(declared):
        assert each.name in record.model_fields
        if each.name not in own:
            assert record.model_fields[each.name].default == each.default


def test_the_command_has_an_option_for_every_declared_field() -> None:
    alone = typer.Typer()
    alone.command("replay")(command(replay))
    options = {parameter.name: parameter for parameter in get_command(alone).params}
    for each in fields(ReplayOptions):
        name = each.name if each.name == "jobs" else f"--{each.name.replace('_', '-')}"
        assert name in options[each.name].opts
        assert options[each.name].default == each.default


@pytest.mark.parametrize(("typed", "offered"), [("--interf", "--interference"), ("--progress g", "goodput")])
def test_a_shell_completes_options_and_their_values(typed: str, offered: str) -> None:
    line = f"pliant replay {typed}"
    asked = {"_PLIANT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = CliRunner().invoke(app, [], prog_name="pliant", env=asked)
    assert done.stdout.split() == [offered]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (Conditions(interval=1e-9), "1e-09: expected 0, or 0.001 s or more"),
        (Conditions(interference=1.0), "1: expected a part of the speed, from 0 to below 1"),
        (Conditions(interval=0.0, interference=0.5), None),
    ],
)
def test_what_no_replay_can_follow_is_said_in_words(stated: Conditions, message: str | None) -> None:
    assert [text for _, text in stated.wrong()] == ([] if message is None else [message])
