"""``pliant examples`` and ``pliant demo``: what comes with pliant to try it with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from pliant.cli.console import note
from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted

SOURCE: Final = Path(__file__).resolve().parents[1] / "examples"
"""A package of the installation; in a checkout the folder in its root."""
NAME: Final = "examples"
"""The folder in which the jobs of the examples look for their scripts."""


def examples(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where the folder examples is made.")
    ] = Path(),
) -> None:
    """Copy the examples into DIR/examples: training scripts, jobs, clusters, and the demos.

    Files that are there and the same stay. If one differs, none is written.

    Example: pliant examples . && pliant replay examples/jobs.jsonl --cluster examples/cluster.json
    --policy fifo -o fifo.parquet
    """
    written = copy_examples(folder)
    home = folder / NAME
    note(f"{counted(len(written), 'file')} in {home}; {home / 'README.md'} says what they show")


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where it writes; made if it is not there.")
    ] = Path("pliant-demo"),
    *,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Simulate 32 GPUs under three policies instead; nothing trains."),
    ] = False,
) -> None:
    """Profile, schedule, run and report real training on two CPU slots, then replay the same jobs.

    It takes some minutes, needs PyTorch (pip install 'pliant[run]') and shows
    each command before it runs. The files stay in DIR.

    Example: pliant demo, or without PyTorch: pliant demo --replay
    """
    from pliant.schemas.errors import missing

    if not replay and (advice := missing("torch")) is not None:
        raise UsageError(f"the demo trains with torch, but {advice}; without it: pliant demo --replay")
    copy_examples(folder)
    script = folder / NAME / ("replay.sh" if replay else "demo.sh")
    environment = os.environ | {"PLIANT_PYTHON": sys.executable}
    code = subprocess.run(["bash", str(script)], env=environment, check=False).returncode
    if code:
        raise typer.Exit(128 - code if code < 0 else code)
    note(f"all of it is in {folder}, where these commands ran")


def copy_examples(folder: Path) -> list[Path]:
    """Copy the examples; returns the files that were not there.

    :raises UsageError: a file is there with other content; nothing is written then.
    :raises PliantError: the folder cannot be written.
    """
    from pliant.schemas.file_io.files import atomic_write, write_error

    files = {
        folder / NAME / path.relative_to(SOURCE): path.read_bytes()
        for path in sorted(SOURCE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    try:
        there = {path for path in files if path.exists()}
        changed = sorted(path for path in there if path.read_bytes() != files[path])
        if changed:
            raise UsageError(f"{changed[0]} is there and differs: move it away, or name another folder")
        new = [path for path in files if path not in there]
        for path in new:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, files[path])
    except OSError as error:
        raise write_error(error, str(folder / NAME), "cannot be written") from error
    return new
