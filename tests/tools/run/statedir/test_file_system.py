"""What a folder's file system does, tried with a file that is gone afterwards."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from pliant.tools.run.statedir import file_system
from pliant.tools.run.statedir.file_system import Mount, mount_of, probe

MOUNTS = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 21 0:25 / /home rw,noatime - nfs4 server:/home rw,vers=4.2,local_lock=none
31 30 0:26 / /home/old\040disk rw - nfs server:/old rw,vers=3,nolock
32 21 0:27 / /home rw,noatime - lustre mds@tcp:/home rw
not a line of a mount
"""


def test_a_folder_is_on_the_mount_nearest_above_it(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert mount_of(Path("/var/lib"), mounts).kind == "ext4"
    old = mount_of(Path("/home/old disk/live"), mounts)
    assert (old.kind, "nolock" in old.options, "rw" in old.options) == ("nfs", True, True)
    assert mount_of(Path("/home/me"), mounts).kind == "lustre", "the later mount hides the earlier"
    assert mount_of(Path("/homework"), mounts).kind == "ext4"
    assert mount_of(Path("/"), tmp_path / "none") == Mount("")


def test_a_folder_is_probed_and_nothing_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks without effect are noticed."""
    result = probe(tmp_path)
    assert (result.locks, result.skew_s) == (True, 0.0)
    assert result.sync_s > 0
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _kind: None)
    assert probe(tmp_path).locks is False


@pytest.mark.parametrize("ahead_s", [12.0, -12.0])
def test_a_clock_of_the_server_is_noticed(
    ahead_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = file_system._dated_s
    monkeypatch.setattr(file_system, "_dated_s", lambda descriptor: real(descriptor) + ahead_s)
    assert probe(tmp_path).skew_s == pytest.approx(ahead_s, abs=1.0)
