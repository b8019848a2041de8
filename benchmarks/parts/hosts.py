"""Several hosts on one machine: each has a network, a name and a process table of its own.

A host is a network namespace behind a switch, which is another one, so that the machine's own network is left
alone. What is started on it has its own pids and host name. All hosts share the files, as over a file server.
It takes root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Handle, NodeInfo, StopLevel, Unit, read_record

_TOOLS: Final = ("ip", "unshare", "iptables")
_SUBNET: Final = "10.213.86"
_LINK: Final = "job0"


class NoHostsError(Exception):
    """No hosts can be made on this machine, or not by this user."""


@dataclass(frozen=True, slots=True)
class Host:
    """One of them."""

    name: str
    namespace: str
    address: str

    def argv(self, words: Sequence[str]) -> tuple[str, ...]:
        """A command line that runs another one on this host, with a process table of its own."""
        naming = 'hostname "$0" && exec "$@"'
        return (
            *("ip", "netns", "exec", self.namespace),
            *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", naming, self.name, *words),
        )

    def cut_off(self) -> None:
        """Drop every packet from and to other hosts: no connection ends by that."""
        for chain, by in (("INPUT", "-i"), ("OUTPUT", "-o")):
            _run(*self._iptables, "-A", chain, by, _LINK, "-j", "DROP")

    def reconnect(self) -> None:
        """Let packets through again."""
        _run(*self._iptables, "-F")

    @property
    def _iptables(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace, "iptables", "-w")


@contextmanager
def hosts(count: int) -> Iterator[tuple[Host, ...]]:
    """So many hosts, n0 and so on, which reach each other.

    :raises NoHostsError: not here.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        raise NoHostsError(f"needs {', '.join(missing)}" if missing else "needs root")
    base = f"pl{os.getpid()}"
    switch = f"{base}s"
    made = tuple(Host(f"n{i}", f"{base}h{i}", f"{_SUBNET}.{i + 1}") for i in range(count))
    try:
        _make(switch, made)
        yield made
    finally:
        for namespace in (*(host.namespace for host in made), switch):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _make(switch: str, made: Sequence[Host]) -> None:
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for number, host in enumerate(made):
            _connect(host, switch, f"v{number}")
            host.reconnect()  # which shows that packets can be dropped here
    except subprocess.CalledProcessError as error:
        raise NoHostsError(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error


def _connect(host: Host, switch: str, port: str) -> None:
    own = host.namespace
    _run("ip", "netns", "add", own)
    _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", _LINK, "netns", own)
    _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
    _run("ip", "-n", own, "addr", "add", f"{host.address}/24", "dev", _LINK)
    for link in ("lo", _LINK):
        _run("ip", "-n", own, "link", "set", link, "up")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class HostsBackend(LocalBackend):
    """Starts units on the hosts of that name; nothing reaches those on a dead one.

    :param there: the hosts, each with one slot.
    """

    def __init__(self, there: Sequence[Host], jobs: Path) -> None:
        nodes = tuple({"name": host.name, "gpus": 1} for host in there)
        super().__init__(Cluster.model_validate({"slots": "cpu", "nodes": nodes}), jobs)
        self._hosts = {host.name: host for host in there}
        self._dead: set[str] = set()

    def nodes(self) -> Sequence[NodeInfo]:
        """The hosts."""
        return [NodeInfo(host.name, 1, True, host.address) for host in self._hosts.values()]

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Each unit on its host."""
        super().start(handle, [replace(u, argv=self._hosts[u.node].argv(u.argv)) for u in units])

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """What is on a dead host goes on to stand still."""
        record = read_record(handle)
        units = range(len(record.units)) if record is not None else ()
        alive = [n for n in units if record is not None and record.units[n].node not in self._dead]
        meant = [n for n in alive if only is None or n in only]
        if meant or not self._dead:
            super().stop(handle, level, only if not self._dead else meant)

    def die(self, handle: Handle, node: str) -> None:
        """A host stands still and answers nothing, like one without power."""
        self._dead.add(node)
        self._hosts[node].cut_off()
        for process in self.processes(handle, node):
            process.suspend()

    def revive(self, handle: Handle, node: str) -> None:
        """It goes on as if nothing had been."""
        self._dead.discard(node)
        self._hosts[node].reconnect()
        for process in self.processes(handle, node):
            process.resume()

    def processes(self, handle: Handle, node: str) -> list[psutil.Process]:
        """What runs of an attempt on a host, the supervisors first."""
        record = read_record(handle)
        pids = [unit.pid for unit in (record.units if record else ()) if unit.node == node]
        return list(_trees(pid for pid in pids if pid is not None and psutil.pid_exists(pid)))


def _trees(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)
