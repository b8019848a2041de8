"""Runs that several accounts share: real ids, so the tests need root. The ids need no accounts."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.run.statedir.directory import check_reachable
from tests.leftovers import DYING_S
from tests.tools.run.shared.users import UIDS, of_user


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.services)
    if sys.platform != "linux" or os.geteuid() != 0 or not _are_mapped():
        for item in here:
            item.add_marker(pytest.mark.skip(reason="needs root, and ids for other users"))


def _are_mapped() -> bool:
    """Whether the ids exist; a container may have a few only."""
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return all(any(int(a) <= uid < int(a) + int(n) for a, _, n in ranges) for uid in UIDS)


def _end(found: list[psutil.Process]) -> None:
    """Kill them and what they start meanwhile; some end of themselves."""
    while found:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=DYING_S)
        found = [process for process in of_user(*UIDS) if process not in found]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """An empty folder that every user can enter and only root can write to. Its users leave nothing.

    They can read what is made meanwhile.
    """
    made = None
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - the folder in it is new
        try:
            check_reachable(Path(place) / "state")
        except (OSError, UsageError):
            continue
        made = Path(tempfile.mkdtemp(prefix="pliant shared ", dir=place)).resolve()
        break
    if made is None:
        pytest.skip("no temporary folder that other users can enter")
    made.chmod(0o755)
    before = os.umask(0o022)
    try:
        yield made
    finally:
        os.umask(before)
        # what has been killed is still there for a moment
        _, left = psutil.wait_procs(of_user(*UIDS), timeout=DYING_S)
        _end(left)
        shutil.rmtree(made)
    assert left == []
