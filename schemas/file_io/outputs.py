"""Can a product be written? Asked before the work that makes it; asking changes nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import make_and_remove, write_error
from pliant.schemas.file_io.pipes import PIPE, stdout


def check_output(path: str | Path, *, makes_folder: bool = False) -> None:
    """Refuse a file that could not be written; what is there already keeps its bytes.

    :param makes_folder: the writer makes the folders that are missing.
    :raises UsageError: it is a directory, its folder is missing, or one may not write there.
    :raises ServiceMissingError: the disk is full or broken.
    """
    if str(path) == PIPE:
        stdout()
        return
    target = Path(path)
    try:
        mode = _mode(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a directory, expected a file")
        if mode is not None and not stat.S_ISREG(mode):  # a device or a named pipe is written in place
            if not os.access(target, os.W_OK):
                raise UsageError(f"{path}: cannot be written: permission denied")
            return
        folder = target.resolve().parent
        if not makes_folder and _mode(folder) is None:
            raise UsageError(f"{path}: the folder {target.parent} is missing, expected it to be there")
        _check_place(folder)
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def check_folder(path: str | Path) -> None:
    """Refuse a folder that could not be made, or in which nothing could be written.

    :raises UsageError: there is a file of that name, or one may not write there.
    :raises ServiceMissingError: the disk is full or broken.
    """
    try:
        _check_place(Path(path).resolve())
    except (OSError, ValueError) as error:
        raise write_error(error, str(path)) from error


def _check_place(folder: Path) -> None:
    """Try to write into a folder, or into the one in which it is to be made.

    :raises OSError: that fails; a file stands where a folder should be.
    """
    there = next(place for place in (folder, *folder.parents) if _mode(place) is not None)
    make_and_remove(there)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
