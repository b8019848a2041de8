"""Other users run this Python and this checkout, wherever they are installed and whatever their modes.

The permissions of the machine stay as they are. A command gets a view of the file system of its own (a mount
namespace), in which what is closed is covered by an overlay of itself with the modes opened: no file is
copied, and all of it is gone with the command.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pydantic
import pytest

from pliant.schemas.text import listed
from tests.tools.run.site import ROOT

# UPPER (TOP NUMBER FOLDER… . TREE… .)… -- COMMAND…: folders can be entered, trees be read, in overlays
OPENED: Final = r"""
set -e
upper=$1
shift
mount -t tmpfs -o mode=755 none "$upper"
while [ "$1" != -- ]; do
    top=$1 number=$2
    shift 2
    mkdir -p "$upper/$number/below" "$upper/$number/changed" "$upper/$number/work"
    mount --bind "$top" "$upper/$number/below"
    folders="lowerdir=$upper/$number/below,upperdir=$upper/$number/changed,workdir=$upper/$number/work"
    mount -t overlay -o "$folders,metacopy=on" overlay "$top"
    while [ "$1" != . ]; do chmod a+x "$1"; shift; done
    shift
    while [ "$1" != . ]; do chmod -R a+rX "$1"; shift; done
    shift
done
shift
exec "$@"
"""


def in_sight(folder: Path) -> list[str]:
    """What begins a command whose users' processes can read this Python and this checkout.

    :param folder: of the test's.
    """
    needed = {
        Path(sys.base_prefix).resolve(): (Path(os.__file__), Path(sys.executable)),
        Path(sys.prefix).resolve(): (Path(pydantic.__file__),),
        ROOT.resolve(): (ROOT / "tools" / "run" / "backends" / "supervisor.py",),
    }
    enter: dict[Path, list[Path]] = {}
    read: dict[Path, list[Path]] = {}
    for tree, probes in needed.items():
        closed = [above for above in tree.parents if not above.stat().st_mode & 0o001]
        unread = not all(_is_readable(tree, probe.resolve()) for probe in probes)
        if closed or unread:
            top = closed[-1] if closed else tree
            enter.setdefault(top, []).extend(closed)
            read.setdefault(top, []).extend([tree] if unread else [])
    if not enter:
        return []
    for top in sorted(enter):
        for above in top.parents:
            if above in enter:
                enter[above] += enter.pop(top)
                read[above] += read.pop(top)
                break
    words = [
        word for number, top in enumerate(enter) for word in (top, number, *enter[top], ".", *read[top], ".")
    ]
    upper = folder / "opened"
    upper.mkdir(exist_ok=True)
    begin = ["unshare", "-m", "sh", "-c", OPENED, "sh", str(upper), *map(str, words), "--"]
    able = shutil.which("unshare") and not subprocess.run([*begin, "true"], check=False).returncode
    if not able:
        pytest.skip(f"other users cannot enter {listed([*map(str, enter)])}, nor can it be covered for them")
    return begin


def _is_readable(tree: Path, probe: Path) -> bool:
    """Whether other users can read a file of a tree that they can enter."""
    folders = [above for above in probe.parents if above.is_relative_to(tree)]
    return bool(probe.stat().st_mode & 0o004) and all(
        above.stat().st_mode & 0o005 == 0o005 for above in folders
    )
