"""What of a machine's processors and memory is ours, on trees of files that stand for the system's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.tools.run.discovery import this_machine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of four cores with two threads each; this process may run on three of the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 4, 1, 5, 2})
    for cpu in range(8):
        write(
            tmp_path,
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
            f"{cpu % 4},{cpu % 4 + 4}",
        )
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_threads_of_one_core_count_once(root: Path) -> None:
    found = this_machine(root)
    assert (found.cores, found.quota, found.cpus, found.slots) == (3, None, 3, 3)
    assert found.memory > 0


def test_where_the_system_does_not_say_each_processor_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 9})
    assert this_machine(tmp_path).cores == 2


def test_the_least_limit_of_a_cgroup_and_of_those_above_it_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job")
    write(root, "sys/fs/cgroup/user/job/cpu.max", "max 100000")
    write(root, "sys/fs/cgroup/user/cpu.max", "250000 100000")
    write(root, "sys/fs/cgroup/user/job/memory.max", "1048576")
    write(root, "sys/fs/cgroup/user/memory.max", "max")
    found = this_machine(root)
    assert (found.cpus, found.slots, found.memory) == (2.5, 2, 1048576)


def test_cgroups_of_the_first_version_count_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box\n0::/")
    write(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000")
    write(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000")
    write(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2097152")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    found = this_machine(root)
    assert (found.cpus, found.slots, found.memory) == (0.5, 1, 2097152)


def test_no_quota_of_the_first_version_is_minus_one(root: Path) -> None:
    write(root, "proc/self/cgroup", "1:cpu:/")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert this_machine(root).quota is None
