"""Forming a process group over a folder, and giving it up: stores, connections, the group itself."""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from pliant.schemas.errors import UsageError
from pliant.tools.profile.torchrun import start
from pliant.tools.run.elastic.context import Context, WorkerContext
from pliant.tools.run.elastic.loop.averaging import TolerantGroup
from pliant.tools.run.elastic.membership import process_group, rendezvous
from pliant.tools.run.elastic.membership.process_group import (
    FolderStore,
    ProcessGroup,
    lasting_address,
    own_address,
    pause,
    stay_on_this_machine,
    use_interface,
)
from pliant.tools.run.elastic.membership.rendezvous import LostWorkerWatch
from pliant.tools.run.elastic.membership.switch_step import PlanWatch, world
from pliant.tools.run.service.commands import write_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.liveness import SURE_S, LivenessFile, life
from pliant.tools.run.statedir.contract.plan import ENV_ADDRESS, Plan
from tests.leftovers import PATIENCE_S
from tests.tools.run.elastic.gang import plan, put
from tests.tools.run.elastic.nursery import CONTEXT
from tests.tools.run.site import until

pytestmark = pytest.mark.torch
Patch = pytest.MonkeyPatch


def never() -> bool:
    return False


class CalledAway:
    """Says so from the fourth question on."""

    asked = 0

    def __call__(self) -> bool:
        pause()
        self.asked += 1
        return self.asked > 3


def test_c_plus_plus_and_python_read_the_same_values(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, never)
    through = dist.PrefixStore("0//cpu//", store)
    through.set("rank 0/../1", "ü")
    through.set("bytes", b"\0\xff".decode("latin1"))
    assert store.get("0//cpu///rank 0/../1").decode() == "ü"
    assert through.check(["rank 0/../1", "bytes"])
    assert not through.check(["rank 0/../1", "no"])
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*"))


def test_the_first_to_decide_wins_and_counting_loses_nothing(tmp_path: Path) -> None:
    def decide(number: int) -> None:
        store = FolderStore(tmp_path, never)
        store.set_once("verdict", str(number))
        store.add("n", 2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decide, range(100)))
    store = FolderStore(tmp_path, never)
    decided = store.get("verdict")
    assert decided.decode() in map(str, range(100))
    decide(1000)
    assert (store.get("verdict"), store.get("n")) == (decided, b"202")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key-n", "key-verdict", "lock"]


def test_waiting_ends_with_the_key_a_newer_plan_or_the_time(tmp_path: Path) -> None:
    is_superseded = CalledAway()
    with pytest.raises(RuntimeError, match="did not connect"):
        FolderStore(tmp_path, is_superseded).get("missing")
    assert is_superseded.asked == 4
    with pytest.raises(RuntimeError, match="did not connect"):
        FolderStore(tmp_path, never).wait(["missing"], timedelta(0))
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(FolderStore(tmp_path, never).get, "later")
        FolderStore(tmp_path, never).set("later", "here")
        assert got.result(60) == b"here"


@pytest.mark.parametrize(
    ("method", "error"),
    [("replace", KeyboardInterrupt()), ("write_bytes", OSError(errno.ENOSPC, "No space left on device"))],
    ids=["killed", "full disk"],
)
def test_a_half_written_value_is_not_there(
    tmp_path: Path, monkeypatch: Patch, method: str, error: BaseException
) -> None:
    def fails(self: Path, given: Any) -> None:
        raise error

    monkeypatch.setattr(Path, method, fails)
    with pytest.raises(type(error)):
        FolderStore(tmp_path, never).set("a", "value")
    assert not FolderStore(tmp_path, never).check(["a"])
    assert method == "replace" or list(tmp_path.iterdir()) == []


def test_a_shared_store_is_one_for_all_who_open_it(tmp_path: Path) -> None:
    """To come and go writes nothing that a kill could tear, as PyTorch does that counts users in the file."""
    one, _ = process_group.shared_store(tmp_path, "0")
    one.set("a", "b")
    content = (tmp_path / "store").read_bytes()
    other, name = process_group.shared_store(tmp_path, "1")
    assert other.get("a") == b"b"
    name.unlink()
    del other
    assert (tmp_path / "store").read_bytes() == content
    other, _ = process_group.shared_store(tmp_path, "1")
    assert [one.add("n", 1), other.add("n", 1), one.add("n", 1)] == [1, 2, 3]
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError):  # PyTorch's own would wait, with the interpreter
        process_group.shared_store(tmp_path / "removed", "0")


ASKING = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


class Device:
    """What gloo opens: a listening socket and a connection, polled by one epoll instance."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own = socket.create_connection(self.listener.getsockname())
        self.other, _ = self.listener.accept()
        for one in (self.listener, self.own):
            self.epoll.register(one)

    def close(self) -> None:
        for one in (self.own, self.other, self.listener, self.epoll):
            one.close()

    @property
    def is_over(self) -> bool:
        """Whether the other side has seen the end of the connection."""
        self.other.setblocking(False)
        try:
            return self.other.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def device() -> Iterator[Callable[[], Device]]:
    with ExitStack() as over:

        def made() -> Device:
            opened = Device()
            over.callback(opened.close)
            return opened

        yield made


def test_only_what_was_opened_while_the_group_formed_is_ended(device: Callable[[], Device]) -> None:
    earlier, connections = device(), process_group.Connections()
    with connections.opened():
        formed = device()
    later = device()
    assert formed.own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    asks = [formed.own.getsockopt(socket.IPPROTO_TCP, option) for option in ASKING]
    assert asks[0] + asks[1] * asks[2] == process_group.KEEPALIVE_TIMEOUT_S, (
        "gloo itself would wait for half an hour"
    )
    assert (
        formed.own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        == 1000 * process_group.KEEPALIVE_TIMEOUT_S
    )
    assert formed.listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    connections.close()
    assert [one.is_over for one in (earlier, formed, later)] == [False, True, False]
    assert formed.listener.fileno() >= 0


def test_reused_descriptors_are_known(device: Callable[[], Device]) -> None:
    earlier, connections = device(), process_group.Connections()
    before = earlier.epoll.fileno()
    with connections.opened():
        earlier.close()
        formed = device()
    assert formed.epoll.fileno() == before
    connections.close()
    assert formed.is_over


def test_ending_connections_keeps_the_presence_alive(tmp_path: Path, device: Callable[[], Device]) -> None:
    presence, connections = LivenessFile(tmp_path / "presence"), process_group.Connections()
    presence.begin()
    with CONTEXT.Pool(1) as other:
        with connections.opened():
            formed = device()
        connections.close()
        assert formed.is_over
        assert other.apply(life, (tmp_path / "presence",)) == "alive"
    presence.end()


LIMIT = timedelta(seconds=60)
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    process_group.leave()


def cpu(rank: int, size: int) -> Context:
    return Context(rank, size, torch.device("cpu"))


def in_processes(work: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
    """What ``work(rank, count, *arguments)`` returns in processes that run at the same time, by rank."""
    with CONTEXT.Pool(count) as pool:
        tasks = [(rank, count, *arguments) for rank in range(count)]
        return pool.starmap_async(work, tasks, chunksize=1).get(120)


def in_a_group(rank: int, count: int, folder: Path) -> list[str]:
    """Use the group's parts. Then worker 1 leaves, and keeps the group and an operation of it."""
    process_group.use_interface("127.0.0.1")
    group = ProcessGroup(cpu(rank, count), None)
    group.form(folder, never, LIMIT)
    gc.collect()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"from-{rank}", f"value {rank}")
    got = [store.get(f"from-{one}").decode() for one in range(count)]
    assert store.check(["from-0"])
    assert not store.check(["from-none"])
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    mine = psutil.Process().net_connections()
    listens = {one.laddr.ip for one in mine if one.status == psutil.CONN_LISTEN}
    got += [str(total.item()), *listens]
    kept = [dist.group.WORLD, world().allreduce([torch.ones(1)])]
    kept[1].wait()
    if rank == 1:
        group.leave()
        until(lambda: (folder / "heard-0").exists() and (folder / "heard-2").exists())
        return [*got, "no longer in it"] if len(kept) == 2 else []
    with pytest.raises(RuntimeError) as lost:
        world().allreduce([torch.ones(1)]).wait()
    (folder / f"heard-{rank}").touch()
    return [*got, "lost a worker" if process_group.cut_off(lost.value) else str(lost.value)]


def test_a_group_works_locally_and_misses_a_worker_at_once(tmp_path: Path, monkeypatch: Patch) -> None:
    """Its default store and later groups work, too; the worker that leaves still refers to the group."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    expected = ["value 0", "value 1", "value 2", "3.0", "127.0.0.1"]
    ends = ["lost a worker", "no longer in it", "lost a worker"]
    assert in_processes(in_a_group, 3, tmp_path) == [[*expected, end] for end in ends]


def test_a_newer_plan_ends_the_wait_for_a_connection(tmp_path: Path) -> None:
    """Who counts the group that failed looks for the others under another number next time."""
    is_superseded = CalledAway()
    group = ProcessGroup(cpu(0, 2), None)
    with pytest.raises(RuntimeError, match="did not connect"):
        group.form(tmp_path, is_superseded, LIMIT)
    assert is_superseded.asked == 4
    group.leave()
    (tmp_path / "next").mkdir()
    again = ProcessGroup(cpu(0, 1), None)
    hook = sys.excepthook
    again.form(tmp_path / "next", never, LIMIT)
    assert sys.excepthook is hook
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.group_name == "0"
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.options._timeout == process_group.COLLECTIVE_TIMEOUT, (
        "a validation on rank 0 may last longer than the meeting"
    )
    again.leave()
    assert sys.excepthook is hook


class Recorded:
    """What is asked of PyTorch, by order, with nothing behind it."""

    def __init__(self, patch: Patch) -> None:
        self.calls: list[tuple[str, Any]] = []
        patch.setattr(process_group.dist, "init_process_group", self._init)
        patch.setattr(process_group, "set_group_timeout", lambda limit: self.calls.append(("timeout", limit)))
        patch.setattr(process_group, "_exchange", lambda *got: self.calls.append(("exchange", got)))

    def _init(self, backend: str, **how: Any) -> None:
        self.calls.append((backend, how))


def test_on_gpus_the_communicator_is_made_and_used_at_once(tmp_path: Path, monkeypatch: Patch) -> None:
    """Over a store without Python. Only nccl is bound to a device."""
    recorded, device = Recorded(monkeypatch), torch.device("cuda", 1)
    (tmp_path / "gloo").mkdir()
    ProcessGroup(Context(1, 2, device), "cpu:gloo,cuda:gloo").form(tmp_path / "gloo", never, LIMIT)
    backend, how = recorded.calls.pop(0)
    assert (backend, how["device_id"]) == ("cpu:gloo,cuda:gloo", None)
    recorded.calls.clear()
    group = ProcessGroup(Context(1, 2, device), None)
    group.form(tmp_path, never, LIMIT)
    (backend, how), *after = recorded.calls
    assert backend == "cpu:gloo,cuda:nccl"
    store = how.pop("store")
    assert type(store) is dist.FileStore
    assert how == {"rank": 1, "world_size": 2, "timeout": LIMIT, "device_id": device}
    assert after == [("timeout", process_group.COLLECTIVE_TIMEOUT), ("exchange", (device, LIMIT))]
    assert store.timeout == process_group.COLLECTIVE_TIMEOUT  # type: ignore[attr-defined]
    store.set("a", "b")
    assert store.get("a") == b"b"
    group.leave()


def hangs(folder: str) -> None:
    """A worker whose library does not come back from making a communicator."""
    patch = pytest.MonkeyPatch()
    Recorded(patch)
    patch.setattr(process_group, "NCCL_TIMEOUT", timedelta(milliseconds=100))
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


def test_a_group_that_never_frees_is_given_to_a_thread(monkeypatch: Patch) -> None:
    over = threading.Event()

    class Waits:
        def __del__(self) -> None:
            over.wait()

    monkeypatch.setattr(process_group, "_FREEING_S", 0.05)
    assert not process_group._freed([Waits()])
    over.set()
    assert process_group._freed([Waits()])


def site(folder: Path) -> JobDir:
    """Two workers train; the second one was there, and is gone."""
    job = put(folder, plan())
    job.attempt(1).presence(1).touch()
    return job


def looking(job: JobDir, worker: int = 0, group: ProcessGroup | None = None, **more: Any) -> LostWorkerWatch:
    context = WorkerContext(job, plan(1), worker)
    return LostWorkerWatch(context, PlanWatch(context), group or ProcessGroup(context, None), **more)


def test_a_missing_worker_that_no_plan_has_is_lost(tmp_path: Path) -> None:
    job = site(tmp_path)
    at_the_first, at_the_gone = looking(job), looking(job, worker=1)
    assert at_the_first.lost() == [], "there is no plan without it yet"
    write_plan(job, plan(2, (0,)))
    assert at_the_first.lost() == ["n0/1"]
    assert at_the_gone.lost() == [], "none looks at its own file"
    write_plan(job, plan(3))
    assert at_the_first.lost() == [], "a plan that counts on it is not for those that do without it"


def test_a_locked_but_silent_worker_is_lost(tmp_path: Path, monkeypatch: Patch) -> None:
    """It stands still, or its host is dead and the file server has not noticed."""
    job, now_s = site(tmp_path), [0.0]
    write_plan(job, plan(2, (0,)))
    monkeypatch.setattr(rendezvous, "life", lambda _path: "alive")
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    watching = looking(job)
    assert watching.lost() == [], "not at the first look"
    now_s[0] += SURE_S
    assert watching.lost() == ["n0/1"]


def test_one_look_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves in good order may be gone before the others have read its last words."""
    looks = iter([["n0/1"], [], ["n0/1"], ["n0/2"], ["n0/1"], [], []])
    broken_off: list[None] = []
    watching = looking(site(tmp_path), interval_s=0.001)

    def look(self: LostWorkerWatch) -> list[str]:
        result = next(looks, None)
        if result is None:
            watching.end()
        return result or []

    monkeypatch.setattr(LostWorkerWatch, "lost", look)
    monkeypatch.setattr(ProcessGroup, "break_off", lambda self: broken_off.append(None))
    watching.begin()
    assert watching._thread is not None
    watching._thread.join(60)
    assert broken_off == []


def never_ends(folder: Path, waits: Callable[[Path], object]) -> None:
    """Worker 1 is lost; what worker 0 waits for was forgotten, so to break it off changes nothing."""
    sys.stderr = (folder / "errors").open("w", buffering=1)
    rendezvous.HUNG_EXCHANGE_S = 0.1  # type: ignore[misc]
    ProcessGroup.break_off = lambda self: None  # type: ignore[method-assign]
    job = JobDir(folder)
    watching = looking(job, interval_s=0.01)
    write_plan(job, plan(2, (0,)))
    watching.begin()
    time.sleep(1.0)  # no exchange: a step that takes long is none of its business
    (folder / "waits").touch()
    waits(folder)


def forms_a_group(folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=0, world_size=2)


def exchanges_buffers(folder: Path) -> None:
    """As DistributedDataParallel does before a forward pass of a model that has some; gloo forgets it."""
    work = SimpleNamespace(wait=partial(time.sleep, PATIENCE_S))
    backend = SimpleNamespace(broadcast=lambda *_: work)
    TolerantGroup(SimpleNamespace(size=lambda: 2, _get_backend=lambda _: backend)).broadcast(  # type: ignore[arg-type]
        [torch.ones(1)]
    )


@pytest.mark.parametrize("waits", [forms_a_group, exchanges_buffers])
def test_only_a_worker_in_a_forgotten_exchange_ends(tmp_path: Path, waits: Callable[[Path], object]) -> None:
    site(tmp_path)
    worker = CONTEXT.Process(target=never_ends, args=(tmp_path, waits))
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == -signal.SIGKILL
    assert "does not end: this worker ends" in (tmp_path / "errors").read_text()
    assert (tmp_path / "waits").exists()


class TestInterface:
    @pytest.fixture(autouse=True)
    def _unset(self, monkeypatch: Patch) -> None:
        monkeypatch.setattr(process_group, "_chosen_here", {})
        for name in VARIABLES:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_it_is_that_of_the_job_s_address(self) -> None:
        for address in ("127.0.0.1", "127.0.1.1"):  # the latter may be this machine's name
            use_interface(address)
            loopback = os.environ["GLOO_SOCKET_IFNAME"]
            assert any(entry.address == "127.0.0.1" for entry in psutil.net_if_addrs()[loopback])
            assert os.environ["NCCL_SOCKET_IFNAME"] == f"={loopback}", "no other of a similar name"

    @pytest.mark.parametrize(("here", "interfaces"), [("2", 2), ("1", 0)])
    def test_workers_of_one_machine_stay_there(self, monkeypatch: Patch, here: str, interfaces: int) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        monkeypatch.setenv("WORLD_SIZE", "2")
        stay_on_this_machine()
        assert len(set(VARIABLES) & os.environ.keys()) == interfaces

    def test_the_user_s_choice_stays(self, monkeypatch: Patch) -> None:
        for name in VARIABLES:
            monkeypatch.setenv(name, "ib0")
        use_interface("203.0.113.7")
        assert [os.environ[name] for name in VARIABLES] == ["ib0", "ib0"]

    @pytest.mark.parametrize("choice", [{"GLOO_SOCKET_IFNAME": "lo"}, {"NCCL_SOCKET_IFNAME": "=lo"}])
    def test_a_chosen_loopback_interface_is_refused_between_hosts(
        self, monkeypatch: Patch, choice: dict[str, str]
    ) -> None:
        """They would connect to themselves, fail, and meet in round after round."""
        monkeypatch.setattr(start, "interface_of", {"127.0.0.1": "lo", "10.0.0.2": "eth0"}.get)
        for name, value in choice.items():
            monkeypatch.setenv(name, value)
        use_interface("127.0.0.1")
        with pytest.raises(UsageError, match=f"{next(iter(choice))} is .*lo, the loopback interface"):
            use_interface("10.0.0.2")

    def test_nccl_gets_the_interface_that_other_nodes_reach(self, monkeypatch: Patch) -> None:
        known = {"127.0.0.1": "lo", "10.0.0.2": "eth0"}.get
        monkeypatch.setattr(start, "interface_of", known)
        monkeypatch.setattr(process_group, "interface_of", known)
        monkeypatch.setenv(ENV_ADDRESS, "10.0.0.2")
        alone, several = plan(), plan(apart=True)
        use_interface(own_address(alone, 0), lasting_address(alone, 0))
        assert [os.environ[name] for name in VARIABLES] == ["lo", "=eth0"]
        use_interface(own_address(several, 0), lasting_address(several, 0))
        assert [os.environ[name] for name in VARIABLES] == ["eth0", "=eth0"]
        monkeypatch.setenv(ENV_ADDRESS, "127.0.0.1")
        assert lasting_address(alone, 0) is None

    def test_an_address_of_another_machine_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"203\.0\.113\.7 is not an address of this"):
            use_interface("203.0.113.7")


def at(*addresses: str) -> Plan:
    """A plan of a worker on each of these nodes."""
    pairs = zip(plan(workers=range(len(addresses)), apart=True).members, addresses, strict=True)
    return plan(members=tuple({**member.model_dump(), "address": address} for member, address in pairs))


class TestAddresses:
    def test_workers_of_one_machine_use_the_loopback_interface(self) -> None:
        assert own_address(plan(), 0) == "127.0.0.1"
        assert own_address(at("127.0.0.1", "127.0.0.1"), 1) == "127.0.0.1"
        assert process_group._reached_from("127.0.0.1") == "127.0.0.1"

    def test_no_name_service_is_asked(self, monkeypatch: Patch) -> None:
        """On a host in the middle of an outage that would take a minute, or say something else."""
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))
        monkeypatch.setattr(socket, "gethostname", lambda: pytest.fail("the host's name was asked for"))
        assert [own_address(plan(apart=True), rank) for rank in range(2)] == ["10.0.0.0", "10.0.0.1"]

    def test_a_loopback_address_is_replaced_by_one_others_reach(self, monkeypatch: Patch) -> None:
        """Debian writes it into /etc/hosts, and a launcher there into the plan."""
        monkeypatch.setattr(process_group, "_reached_from", {"10.0.0.1": "10.0.0.7"}.__getitem__)
        assert own_address(at("127.0.1.1", "10.0.0.1"), 0) == "10.0.0.7"

    @pytest.mark.parametrize("address", ["8.8.8.8", "100.64.0.1"])
    def test_a_public_address_is_refused(self, address: str, monkeypatch: Patch) -> None:
        with pytest.raises(UsageError, match="not a loopback or private address"):
            own_address(at(address, "10.0.0.1"), 0)
        monkeypatch.setenv(ENV_ADDRESS, address)
        with pytest.raises(UsageError, match=f"{address} is not a loopback or private address"):
            own_address(plan(apart=True), 0)

    def test_what_only_the_node_knows_goes_before_the_plan(self, monkeypatch: Patch) -> None:
        monkeypatch.setenv(ENV_ADDRESS, "10.9.9.9")
        assert own_address(plan(apart=True), 0) == "10.9.9.9"
