"""The process group: what forms it, what breaks that off, and what works once it is there."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from pliant.tools.run.elastic.context import Context
from pliant.tools.run.elastic.membership import process_group
from pliant.tools.run.elastic.membership.agreement import world
from pliant.tools.run.elastic.membership.process_group import (
    COLLECTIVE,
    ProcessGroup,
    cut_off,
    leave,
    pause,
    use_interface,
)
from pliant.tools.run.elastic.state.training import Cursor
from tests.tools.run.elastic.gang import Gang
from tests.tools.run.elastic.nursery import CONTEXT
from tests.tools.run.elastic.test_in_place import trained_as_alone
from tests.tools.run.site import until

pytestmark = pytest.mark.torch
LIMIT = timedelta(seconds=60)
HERE = Cursor(1, 7, 1)
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    leave()


def never() -> bool:
    return False


def cpu(rank: int, size: int) -> Context:
    return Context(rank, size, torch.device("cpu"))


def in_processes(work: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
    """What ``work(rank, count, *arguments)`` returns in processes that run at the same time, by rank."""
    with CONTEXT.Pool(count) as pool:
        tasks = [(rank, count, *arguments) for rank in range(count)]
        return pool.starmap_async(work, tasks, chunksize=1).get(120)


def test_groups_one_after_the_other_leave_the_exception_hook_alone(tmp_path: Path) -> None:
    hook = sys.excepthook
    group = ProcessGroup(cpu(0, 1), None)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        group.form(tmp_path / str(number), never, LIMIT)
        assert sys.excepthook is hook
        group.leave()


def uses_the_default_store(rank: int, count: int, folder: Path) -> list[str]:
    group = ProcessGroup(cpu(rank, count), None)
    group.form(folder, never, LIMIT)
    gc.collect()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"from-{rank}", f"value {rank}")
    found = [store.get(f"from-{one}").decode() for one in range(count)]
    assert store.check(["from-0"])
    assert not store.check(["from-nobody"])
    store.add("came", 1)
    while int(store.get("came")) < count:
        pause()
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    group.leave()
    return [*found, str(total.item())]


def listens_on(rank: int, count: int, folder: Path) -> set[str]:
    use_interface("127.0.0.1")
    group = ProcessGroup(cpu(rank, count), None)
    group.form(folder, never, LIMIT)
    dist.all_reduce(torch.ones(1))
    mine = psutil.Process().net_connections()
    dist.barrier()
    group.leave()
    return {one.laddr.ip for one in mine if one.status == psutil.CONN_LISTEN}


def test_the_default_store_works_after_forming_as_do_groups_that_are_made_later(tmp_path: Path) -> None:
    told = in_processes(uses_the_default_store, 3, tmp_path)
    assert told == [["value 0", "value 1", "value 2", "3.0"]] * 3


def test_workers_of_one_machine_listen_on_its_loopback_address_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert in_processes(listens_on, 2, tmp_path) == [{"127.0.0.1"}] * 2


def keeps_what_it_leaves(rank: int, count: int, folder: Path) -> str:
    """Worker 1 leaves, and keeps the group and an operation of it."""
    group = ProcessGroup(cpu(rank, count), None)
    group.form(folder, never, LIMIT)
    kept = [dist.group.WORLD, world().allreduce([torch.ones(1)])]
    kept[1].wait()
    if rank == 1:
        group.leave()
        until(lambda: (folder / "heard-0").exists() and (folder / "heard-2").exists())
        return "left" if len(kept) == 2 else ""
    with pytest.raises(RuntimeError) as lost:
        world().allreduce([torch.ones(1)]).wait()
    (folder / f"heard-{rank}").touch()
    return "lost a worker" if cut_off(lost.value) else str(lost.value)


def test_who_leaves_a_group_that_it_still_refers_to_is_missed_by_the_others_at_once(tmp_path: Path) -> None:
    told = in_processes(keeps_what_it_leaves, 3, tmp_path)
    assert told == ["lost a worker", "left", "lost a worker"]


def test_a_script_s_own_group_goes_through_one_two_three_two_one_workers(tmp_path: Path) -> None:
    job = Gang(tmp_path, schedule="epoch", clip=True, epochs=100_000, step_s=0.02, groups=True)
    job.patience_s = 60
    try:
        job.start(1)
        job.wait_for("progress")
        job.goes_through([0, 1], [0, 1, 2], [0, 2], [2])
        until(lambda: list(job.here.meetings.iterdir()) == [])  # what the generations met over goes with them
        job.publish([2], abort=True)
        job.end()
    finally:
        job.kill()
    assert job.outcomes() == ["left", "left", "stopped"], job.errors()
    assert trained_as_alone(job, tmp_path) > 4
    made = {path.name.split("-")[1]: int(path.read_text()) for path in tmp_path.glob("made-*")}
    assert sorted(made.values()) == [2, 2, 3]


def test_a_communicator_that_fails_fails_its_round_and_no_training(tmp_path: Path) -> None:
    """One worker's communicator fails when that of the others is there: both come to the next round."""
    job = Gang(tmp_path, schedule="epoch", clip=True, epochs=100_000, step_s=0.02)
    job.patience_s = 60
    try:
        job.start(1)
        job.wait_for("progress")
        job.options["connects_at"] = 2
        job.publish([0, 1])
        job.add(1)
        job.reaches()
        job.publish([0, 1], abort=True)
        job.end()
    finally:
        job.kill()
    assert job.outcomes() == ["stopped", "stopped"], job.errors()
    assert "did not come together: NCCL error" in job.errors()
    assert trained_as_alone(job, tmp_path) > 2


def test_a_worker_that_died_while_connecting_is_waited_for_until_a_newer_plan_is_in_force(
    tmp_path: Path,
) -> None:
    asked: list[None] = []

    def called_away() -> bool:
        pause()
        asked.append(None)
        return len(asked) > 3

    waiting = ProcessGroup(cpu(0, 2), None)
    with pytest.raises(RuntimeError, match="did not connect"):
        waiting.form(tmp_path, called_away, LIMIT)
    assert len(asked) == 4


def test_after_a_group_that_did_not_form_the_next_one_is_found_by_those_for_whom_it_did(
    tmp_path: Path,
) -> None:
    """Who counts the group that failed looks for the others under another number."""
    (tmp_path / "next").mkdir()
    group = ProcessGroup(cpu(0, 2), None)
    with pytest.raises(RuntimeError, match="did not connect"):
        group.form(tmp_path, lambda: True, LIMIT)
    group.leave()
    again = ProcessGroup(cpu(0, 1), None)
    again.form(tmp_path / "next", never, LIMIT)
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.group_name == "0"
    again.leave()


class Recorded:
    """What is asked of PyTorch, by order, with nothing behind it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        patch.setattr(process_group.dist, "init_process_group", self._init)
        patch.setattr(process_group, "_set_pg_timeout", lambda limit: self.calls.append(("timeout", limit)))
        patch.setattr(process_group, "_exchange", lambda *found: self.calls.append(("exchange", found)))

    def _init(self, backend: str, **how: Any) -> None:
        self.calls.append((backend, how))


def test_on_gpus_the_communicator_is_made_at_once_and_used_once_over_a_store_without_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, device = Recorded(monkeypatch), torch.device("cuda", 1)
    group = ProcessGroup(Context(1, 2, device), None)
    group.form(tmp_path, never, LIMIT)
    (backend, how), *after = recorded.calls
    assert backend == "cpu:gloo,cuda:nccl"
    store = how.pop("store")
    assert type(store) is dist.FileStore
    assert how == {"rank": 1, "world_size": 2, "timeout": LIMIT, "device_id": device}
    assert after == [("timeout", COLLECTIVE), ("exchange", (device, LIMIT))]
    assert store.timeout == COLLECTIVE  # type: ignore[attr-defined]
    store.set("a", "b")
    assert store.get("a") == b"b"
    group.leave()


def test_a_backend_that_the_script_names_is_bound_to_a_device_only_where_it_is_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    ProcessGroup(Context(0, 2, torch.device("cuda", 0)), "cpu:gloo,cuda:gloo").form(tmp_path, never, LIMIT)
    backend, how = recorded.calls[0]
    assert (backend, how["device_id"]) == ("cpu:gloo,cuda:gloo", None)


def hangs(folder: str) -> None:
    """A worker whose library does not come back from making a communicator."""
    patch = pytest.MonkeyPatch()
    Recorded(patch)
    patch.setattr(process_group, "HANGS", timedelta(milliseconds=100))
    patch.setattr(process_group, "_exchange", lambda *_: signal.pause())
    ProcessGroup(Context(0, 2, torch.device("cuda", 0)), None).form(Path(folder), never, LIMIT)


def test_a_worker_that_hangs_in_a_library_while_it_connects_ends(tmp_path: Path) -> None:
    worker = CONTEXT.Process(target=hangs, args=(str(tmp_path),))
    worker.start()
    worker.join(60)
    try:
        assert worker.exitcode == 1
    finally:
        worker.kill()


def test_a_validation_on_rank_0_may_last_longer_than_the_meeting(tmp_path: Path) -> None:
    group = ProcessGroup(cpu(0, 1), None)
    group.form(tmp_path, never, timedelta(seconds=5))
    world = dist.group.WORLD
    assert world is not None
    assert world._get_backend(torch.device("cpu")).options._timeout == COLLECTIVE
    group.leave()
