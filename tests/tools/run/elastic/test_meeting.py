"""Where workers meet: who can reach it, who can read it, and what ends the waiting."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from pliant.tools.run.elastic.circle import leave
from pliant.tools.run.elastic.meeting import CalledAwayError, Interruptible, Meeting, pause
from pliant.tools.run.elastic.position import Position
from pliant.tools.run.elastic.setting import Orders
from pliant.tools.run.layout import JobDir
from pliant.tools.run.plan import Plan

pytestmark = pytest.mark.torch
HERE = Position(1, 7, 1)
Attended = tuple[Any, list[Position | None]]


def orders(folder: Path, worker: int) -> Orders:
    members = tuple({"slot": f"n0/{i}", "node": "n0", "address": "n0", "worker": i} for i in range(2))
    record = {"job": "a", "generation": 3, "attempt": 1, "members": members, "token": "secret"}
    return Orders(JobDir(folder), Plan.model_validate(record), worker)


def waiting() -> bool:
    pause()
    return False


def attend(
    folder: Path, worker: int, position: Position | None, wait: Callable[[], bool] = waiting, number: int = 0
) -> Attended:
    return Meeting(orders(folder, worker), number, wait).attend(position)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(2) as made:
        yield made


def place(folder: Path) -> tuple[str, int]:
    """Where the first worker listens, once it does."""
    path = orders(folder, 0).attempt.place(3)
    while not path.exists():
        pause()
    address, port, _ = path.read_text().split()
    return address, int(port)


def test_all_learn_how_far_each_is(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    first, second = pool.submit(attend, tmp_path, 0, HERE), pool.submit(attend, tmp_path, 1, None)
    assert first.result(60)[1] == second.result(60)[1] == [HERE, None]


def test_the_store_listens_on_the_loopback_address_and_its_keys_carry_the_token(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE)
    address, port = place(tmp_path)
    found = [one.laddr.ip for one in psutil.Process().net_connections() if one.laddr.port == port]
    assert address == "127.0.0.1"
    assert set(found) == {address}
    assert orders(tmp_path, 0).attempt.place(3).stat().st_mode & 0o777 == 0o600
    stranger = dist.TCPStore(address, port, is_master=False)
    assert not stranger.check(["3.0/here/0"])
    while not stranger.check(["secret/3.0/here/0"]):
        pause()
    pool.submit(attend, tmp_path, 1, HERE).result(60)
    first.result(60)


def test_a_newer_plan_calls_all_away_or_none(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    def called() -> bool:
        pause()
        return True

    first = pool.submit(attend, tmp_path, 0, HERE)
    stranger = dist.PrefixStore("secret/3.0", dist.TCPStore(*place(tmp_path), is_master=False))
    stranger.compare_set("verdict", "", "newer")
    with pytest.raises(CalledAwayError):
        first.result(60)
    with pytest.raises(CalledAwayError):
        attend(tmp_path / "other", 1, HERE, called)


def test_who_missed_a_round_goes_to_the_next_one(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    first = pool.submit(attend, tmp_path, 0, HERE, number=2)
    second = pool.submit(attend, tmp_path, 1, HERE, number=1)
    assert second.result(60)[1] == first.result(60)[1] == [HERE, HERE]


def test_whoever_listened_there_and_is_gone_is_not_waited_for(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gone = orders(tmp_path, 0).attempt.place(3)
    gone.parent.mkdir(parents=True)
    gone.write_text("127.0.0.1 1 0\n")
    second = pool.submit(attend, tmp_path, 1, HERE)
    first = pool.submit(attend, tmp_path, 0, HERE, number=1)
    assert second.result(60)[1] == first.result(60)[1]


def test_after_a_group_that_did_not_form_the_next_one_is_found_by_those_for_whom_it_did() -> None:
    """Whoever counts the group that failed looks for the others under another number, for ever."""

    def called_away() -> bool:
        return True

    with pytest.raises(RuntimeError, match="did not connect"):
        dist.init_process_group(
            "gloo", store=Interruptible(dist.HashStore(), called_away), rank=0, world_size=2
        )
    leave()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD.group_name == "0"
    leave()
