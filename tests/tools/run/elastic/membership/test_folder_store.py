"""What workers share as files: whole or not there, whoever is killed when."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from pliant.tools.run.elastic.membership.process_group import FolderStore, make_known, pause, shared_store

pytestmark = pytest.mark.torch


def never() -> bool:
    return False


def test_c_plus_plus_and_python_read_the_same_values(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, never)
    through = dist.PrefixStore("0//cpu//", store)
    through.set("rank 0/../1", "ü")
    through.set("bytes", b"\0\xff".decode("latin1"))
    assert store.get("0//cpu///rank 0/../1").decode() == "ü"
    assert through.check(["rank 0/../1", "bytes"])
    assert not through.check(["rank 0/../1", "no"])
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))


def test_of_several_that_decide_the_first_one_does(tmp_path: Path) -> None:
    def decide(number: int) -> None:
        FolderStore(tmp_path, never).set_once("verdict", str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decide, range(100)))
    decided = FolderStore(tmp_path, never).get("verdict")
    assert decided.decode() in map(str, range(100))
    decide(1000)
    assert FolderStore(tmp_path, never).get("verdict") == decided
    assert [path.name for path in tmp_path.iterdir()] == ["key-verdict"]


def test_counting_loses_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: FolderStore(tmp_path, never).add("n", 2), range(200)))
    assert FolderStore(tmp_path, never).add("n", 1) == 401
    assert FolderStore(tmp_path, never).get("n") == b"401"


def test_waiting_ends_with_the_key_with_a_newer_plan_or_with_the_time(tmp_path: Path) -> None:
    asked: list[None] = []

    def called_away() -> bool:
        pause()
        asked.append(None)
        return len(asked) > 3

    with pytest.raises(RuntimeError, match="did not connect"):
        FolderStore(tmp_path, called_away).get("nobody")
    assert len(asked) == 4
    with pytest.raises(RuntimeError, match="did not connect"):
        FolderStore(tmp_path, never).wait(["nobody"], timedelta(0))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(FolderStore(tmp_path, never).get, "later")
        FolderStore(tmp_path, never).set("later", "here")
        assert found.result(60) == b"here"


def test_a_value_that_is_being_written_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        FolderStore(tmp_path, never).set("a", "value")
    assert not FolderStore(tmp_path, never).check(["a"])


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            make_known(tmp_path / "reached", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_shared_store_in_a_folder_that_is_gone_is_an_error_at_once(tmp_path: Path) -> None:
    """PyTorch's own store would wait for the folder, and no other thread could run meanwhile."""
    with pytest.raises(FileNotFoundError):
        shared_store(tmp_path / "removed", "0")


def test_a_shared_store_is_one_for_all_who_open_it(tmp_path: Path) -> None:
    (one, _), (other, _) = shared_store(tmp_path, "0"), shared_store(tmp_path, "1")
    one.set("a", "b")
    assert other.get("a") == b"b"
    assert [one.add("n", 1), other.add("n", 1), one.add("n", 1)] == [1, 2, 3]
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o600
    (late, _) = shared_store(tmp_path, "2")
    assert late.get("n") == b"3"
    late.set_timeout(timedelta(milliseconds=1))
    with pytest.raises(RuntimeError):
        late.get("nobody")


def test_to_come_and_go_writes_nothing_that_a_kill_could_tear(tmp_path: Path) -> None:
    """PyTorch's own way is to count users in the file, when they come and when they go."""
    first, _ = shared_store(tmp_path, "0")
    first.set("a", "b")
    content = (tmp_path / "store").read_bytes()
    second, name = shared_store(tmp_path, "1")
    assert second.get("a") == b"b"
    name.unlink()
    del second
    assert (tmp_path / "store").read_bytes() == content
    assert first.check(["a"])
