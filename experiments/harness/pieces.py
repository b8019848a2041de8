"""A study in pieces: each is kept as it comes, so that one which was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from experiments.harness.spec import Tell
from pliant.schemas.file_io.files import atomic_write, read_bytes

Tasks = Mapping[str, Callable[[], Any]]


def in_pieces(tasks: Tasks, folder: Path, workers: int, tell: Tell) -> dict[str, Any]:
    """The result of every task by its name, which is also that of its file in ``folder``.

    :param tasks: what they return is JSON; what a file has is not measured again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: task for name, task in tasks.items() if not _file(folder, name).exists()}
    for count, (name, result) in enumerate(_done(missing, workers), 1):
        atomic_write(_file(folder, name), json.dumps(result).encode())
        if count % 20 == 0 or count == len(missing):
            tell(f"{len(tasks) - len(missing) + count} of {len(tasks)} pieces")
    return {name: json.loads(read_bytes(_file(folder, name))) for name in tasks}


def _done(tasks: Tasks, workers: int) -> Iterator[tuple[str, Any]]:
    """Results as they come; with one worker in this process."""
    if workers == 1:
        yield from ((name, task()) for name, task in tasks.items())
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        pending = {pool.submit(task): name for name, task in tasks.items()}
        yield from ((pending[done], done.result()) for done in as_completed(pending))


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"
