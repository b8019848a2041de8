"""Files of an attempt are read when something in its folder has changed, and never when nothing has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.tools.run.statedir.contract.folders import FRESH_S, STALE_S, FolderCache

AGES_AGO_S = 1_000_000_000


class Site:
    """A folder with one file, a clock that the test turns, and a count of how often the file was read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 0.0
        self.reads = 0
        self.cache = FolderCache(folder, lambda: self.now_s)

    def replace(self, text: str, *, stamp_s: float | None = None) -> None:
        new = self.folder / "new"
        new.write_text(text)
        new.replace(self.folder / "file")
        if stamp_s is not None:
            os.utime(self.folder, (stamp_s, stamp_s))

    def look(self, after_s: float = 0.0) -> str | None:
        self.now_s += after_s
        self.cache.look()
        return self.cache.get("file", self._read)

    def _read(self) -> str | None:
        self.reads += 1
        path = self.folder / "file"
        return path.read_text() if path.exists() else None


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_does_not_change_is_not_read_again(site: Site) -> None:
    site.replace("a")
    site.look()
    site.look(FRESH_S)
    before = site.reads
    assert [site.look(0.01) for _ in range(100)] == ["a"] * 100
    assert site.reads == before


def test_a_file_that_is_made_replaced_or_removed_is_noticed_at_the_next_look(site: Site) -> None:
    assert site.look() is None
    site.look(FRESH_S)
    site.replace("a", stamp_s=AGES_AGO_S)
    assert site.look(0.1) == "a"
    site.look(FRESH_S)
    site.replace("b", stamp_s=AGES_AGO_S + 1)
    assert site.look(0.1) == "b"
    site.look(FRESH_S)
    (site.folder / "file").unlink()
    assert site.look(0.1) is None


def test_a_second_change_under_the_same_stamp_is_noticed(site: Site) -> None:
    """The clock of a file system may stand still between two changes."""
    site.replace("a", stamp_s=AGES_AGO_S)
    assert site.look() == "a"
    site.replace("b", stamp_s=AGES_AGO_S)
    assert site.look(0.1) == "b"


def test_what_another_host_shows_late_is_noticed_in_the_end(site: Site) -> None:
    site.replace("a", stamp_s=AGES_AGO_S)
    site.look()
    site.look(FRESH_S)
    site.replace("b", stamp_s=AGES_AGO_S)
    assert site.look(STALE_S) == "b"


def test_a_folder_that_is_away_is_looked_for_each_time(site: Site) -> None:
    cache = FolderCache(site.folder / "later")
    cache.look()
    assert cache.get("file", lambda: None) is None
    (site.folder / "later").mkdir()
    cache.look()
    assert cache.get("file", lambda: "there") == "there"


def test_folders_that_were_read_together_are_not_all_read_again_together(tmp_path: Path) -> None:
    """A launcher of thousands of jobs would spend a whole turn on that."""
    sites = []
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        sites.append(Site(folder))
    for site in sites:
        site.replace("a", stamp_s=AGES_AGO_S)
        site.look()
    before = [site.reads for site in sites]
    for site in sites:
        site.look(STALE_S * 0.85)
    again = sum(site.reads > reads for site, reads in zip(sites, before, strict=True))
    assert 0 < again < 100
