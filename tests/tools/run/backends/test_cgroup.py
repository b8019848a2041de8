"""Control groups: where they can be made, what is written to them, and what the system then does.

Without root, files stand for those of the system. With it, units take too much, hide, and reach for devices.
"""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends import cgroup, supervisor
from pliant.tools.run.backends.cgroup import (
    CgroupPlace,
    UnitCgroup,
    allowed_devices,
    find_place,
    gpu_devices,
    remove_empty,
)
from pliant.tools.run.backends.limits import LEAST_PROCESSES, UnitLimits, group_name
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Unit
from tests.tools.run.site import until
from tests.tools.run.test_local_backend import Site

V1 = ("cgroup.procs",)
V2 = ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control", "cgroup.type")
OFFERED = "cpu memory pids"


class Host:
    """Files as ``/proc/self`` and ``/sys/fs/cgroup`` have them."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        self.proc.mkdir(parents=True)
        (self.proc / "cgroup").write_text("")
        (self.proc / "mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")

    def mount(self, kind: str, names: str, path: str, root: str = "/") -> Path:
        """:returns: the folder of the group ``path`` of this process."""
        at = self.sys / (names or "unified")
        options = f"rw,{names}" if names else "rw"
        with (self.proc / "mountinfo").open("a") as file:
            point = str(at).replace(" ", r"\040")
            file.write(f"2 1 0:3 {root} {point} rw,nosuid - {kind} {kind} {options}\n")
        with (self.proc / "cgroup").open("a") as file:
            file.write(f"{0 if not names else 3}:{names}:{path}\n")
        own = at / path.removeprefix(root).strip("/")
        own.mkdir(parents=True)
        for folder in (own, *own.parents):
            if folder.is_relative_to(at):
                for name in V1 if kind == "cgroup" else V2:
                    (folder / name).write_text(OFFERED if name == "cgroup.controllers" else "")
        return own

    def place(self, *, systemd: bool = False) -> CgroupPlace:
        return find_place(str(self.proc), str(self.sys if systemd else self.sys / "none"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_groups_of_version_1_are_made_inside_the_launcher_s(host: Host) -> None:
    own = host.mount("cgroup", "memory", "/docker/abc/loop", root="/docker/abc")
    assert own == host.sys / "memory" / "loop"
    both = host.mount("cgroup", "cpu,cpuacct", "/")
    place = host.place()
    assert place.parents == {"memory": str(own), "cpu": str(both)}
    assert (place.version, place.scope, [*place.missing]) == (1, False, ["pids", "devices"])
    group = place.group("g", memory=100, cpus=1.5, pids=7, denied=["195:1"])
    assert group.folders == (f"{own}/g", f"{both}/g")
    assert json.loads(str(group))[1] == [
        [f"{own}/g/memory.limit_in_bytes", "100"],
        [f"{own}/g/memory.memsw.limit_in_bytes", "100"],
        [f"{both}/g/cpu.cfs_period_us", "100000"],
        [f"{both}/g/cpu.cfs_quota_us", "150000"],
    ]


@pytest.mark.parametrize(
    ("path", "enabled", "busy", "expected"),
    [
        ("/loop", "memory pids", "", {"memory": "", "pids": ""}),  # handed over: what it has, in its parent
        ("/loop", "", "", {"memory": "", "cpu": "", "pids": ""}),
        ("/loop", "", "1 2", {}),  # a group with processes has none inside that limit anything
        ("/a/loop", "", "", {"memory": "a", "cpu": "a", "pids": "a"}),
    ],
)
def test_groups_of_version_2_are_made_where_no_process_is(
    host: Host, path: str, enabled: str, busy: str, expected: Mapping[str, str]
) -> None:
    own = host.mount("cgroup2", "", path)
    (own / "cgroup.procs").write_text("99\n")
    (own.parent / "cgroup.subtree_control").write_text(enabled)
    (own.parent / "cgroup.procs").write_text(busy)
    if enabled:
        (own.parent / "cgroup.controllers").write_text(enabled)
        (own / "cgroup.controllers").write_text(enabled)
    place = host.place()
    found = {
        kind: str(Path(folder).relative_to(host.sys / "unified")) for kind, folder in place.parents.items()
    }
    assert found == {kind: folder or "." for kind, folder in expected.items()}
    assert {*place.missing} == {*cgroup.CONTROLLERS} - {*expected}
    if "cpu" in found:
        group = place.group("g", memory=100, cpus=0.5, pids=7)
        assert group.folders == (f"{own.parent}/g",)
        assert {Path(file).name: text for file, text in json.loads(str(group))[1]} == {
            "memory.max": "100",
            "memory.swap.max": "0",
            "cpu.max": "50000 100000",
            "pids.max": "7",
        }


def test_where_there_are_none_that_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.place().parents == {}
    assert {*host.place().missing.values()} == {"the system has no control groups for it here"}
    own = host.mount("cgroup", "memory", "/user")
    monkeypatch.setattr(cgroup.os, "access", lambda *_: False)
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 1000)
    assert host.place().missing["memory"] == f"this account may not make groups in {own}"
    own = host.mount("cgroup2", "", "/user")
    assert host.place(systemd=True).missing["pids"] == f"this account may not make groups near {own}"
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 0)
    assert {*host.place(systemd=True).missing.values()} == {
        "there is no busctl to ask systemd for a scope with"
    }


def test_where_systemd_runs_a_unit_is_in_a_scope_of_its_own(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = host.mount("cgroup2", "", "/user.slice")
    busctl = tmp_path / "busctl"
    busctl.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/asked"\necho "$FAULT" >&2\ntest -z "$FAULT"\n'
    )
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(cgroup.os, "geteuid", lambda: 0)
    place = host.place(systemd=True)
    assert (place.scope, place.version, place.missing) == (True, 2, {})
    group = place.group("g", memory=100, denied=["195:1"])
    assert group.folders == (f"{own.parent}/system.slice/g.scope/unit",)
    monkeypatch.setattr(cgroup, "own_folders", lambda: {"": f"{own.parent}/system.slice/g.scope"})
    monkeypatch.setattr(cgroup, "allowed_devices", lambda _denied: ["char-pts", "/dev/nvidia0"])
    cgroup.enter_scope("g.scope", ["195:1"])
    assert (tmp_path / "asked").read_text().split("\n")[5:-1] == [
        *("StartTransientUnit", "ssa(sv)a(sa(sv))", "g.scope", "fail", "6"),
        *("PIDs", "au", "1", str(os.getpid()), "Delegate", "b", "true"),
        *("CollectMode", "s", "inactive-or-failed", "Description", "s", "a unit of a job of pliant"),
        *("DevicePolicy", "s", "closed", "DeviceAllow", "a(ss)", "2"),
        *("char-pts", "rwm", "/dev/nvidia0", "rwm", "0"),
    ]
    UnitCgroup(group.folders).set_devices(["195:1"], [])  # after its launcher has died, too
    assert (tmp_path / "asked").read_text().split("\n")[5:-1] == [
        *("SetUnitProperties", "sba(sv)", "g.scope", "true", "3", "DeviceAllow", "a(ss)", "0"),
        *("DevicePolicy", "s", "closed", "DeviceAllow", "a(ss)", "2"),
        *("char-pts", "rwm", "/dev/nvidia0", "rwm"),
    ]
    monkeypatch.setenv("FAULT", "no")
    with pytest.raises(OSError, match="systemd refuses: no"):
        cgroup.enter_scope("g.scope", [])


def test_the_gpus_of_a_machine_are_found_by_uuid(tmp_path: Path) -> None:
    for number, (uuid, device) in enumerate({"GPU-a": "null", "GPU-b": "zero"}.items()):
        about = tmp_path / "gpus" / f"0000:0{number}:00.0"
        about.mkdir(parents=True)
        lines = ("Model: \t T4", f"GPU UUID: \t {uuid}", f"Device Minor: \t {number}")
        (about / "information").write_text("\n".join(lines))
        (tmp_path / f"nvidia{number}").symlink_to(f"/dev/{device}")
    (tmp_path / "devices").write_text(
        "Character devices:\n  1 mem\n136 pts\n\nBlock devices:\n  8 sd\n  1 rd\n"
    )
    found = gpu_devices(str(tmp_path / "gpus"), str(tmp_path))
    assert found == {"GPU-a": "1:3", "GPU-b": "1:5"}
    allowed = allowed_devices(["1:5"], str(tmp_path), str(tmp_path / "devices"))
    assert allowed == ["char-pts", "block-sd", "block-rd", f"{tmp_path}/nvidia0"]


NODES = ({"name": "n0", "gpus": 4, "memory": 1000, "cpus": 8}, {"name": "n1", "gpus": 4})


@pytest.mark.parametrize(
    ("unit", "memory", "cpus"),
    [
        (Unit("n0", (), "/", slots=1), 237, 2.0),  # a quarter, of memory without the system's twentieth
        (Unit("n0", (), "/", slots=4), 950, 8.0),
        (Unit("n0", (), "/", slots=1, demand={"memory": 300.0, "cpu": 0.5}), 300, 0.5),
        (Unit("n1", (), "/", slots=1), None, None),  # not known
        (Unit("n1", (), "/", slots=1, demand={"memory": 300.0}), 300, None),
        (Unit("gone", (), "/", slots=1), None, None),
    ],
)
def test_a_unit_has_what_its_job_demands_or_its_share(
    unit: Unit, memory: int | None, cpus: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(CgroupPlace, "group", lambda _self, name, **wanted: asked.append((name, wanted)))
    limits = UnitLimits(Cluster.model_validate({"nodes": NODES}))
    limits.place = CgroupPlace({"pids": str(tmp_path), "devices": str(tmp_path)})
    (tmp_path / "pids.max").write_text("8000")
    limits.devices, limits.cards = {"GPU-a": "195:0", "GPU-b": "195:1"}, {"MIG-1": "GPU-a"}
    limits.group("g", unit, ["MIG-1"])
    processes = max(LEAST_PROCESSES, 4000 * unit.slots // 8)
    assert asked == [("g", {"memory": memory, "cpus": cpus, "pids": processes, "denied": ["195:1"]})]
    limits.group("g", unit, ["GPU-of-no-driver"])
    assert asked[1][1]["denied"] == [], "what is not known is not denied"
    off = UnitLimits(Cluster.model_validate({"nodes": NODES, "isolation": False}))
    assert off.group("g", unit, []) is None


def test_empty_groups_that_no_run_knows_are_removed(tmp_path: Path) -> None:
    for name in ("pliant-old", "pliant-used", "pliant-new", "other"):
        (tmp_path / name / ("own" if name == "pliant-used" else "")).mkdir(parents=True)
        os.utime(tmp_path / name, None if name == "pliant-new" else (1.0, 1.0))
    remove_empty([str(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == ["other", "pliant-new", "pliant-used"]


def test_a_command_runs_without_a_group_that_cannot_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor, "end_orphans", Mock())  # this process has other children
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "cgroup.procs").write_text("1\n")  # of another account
    for text in ("no JSON", str(UnitCgroup([f"{tmp_path}/file/g"])), str(UnitCgroup([f"{tmp_path}/taken"]))):
        limited = supervisor.CommandGroup(text, None)
        with limited.inside():
            pass
        assert limited.end(os.kill, ()) is None
        assert "the command has no limits, as it has no control group: " in capsys.readouterr().err


def test_what_a_job_has_its_code_recorded_with_is_in_its_group(tmp_path: Path) -> None:
    """Also of a command that ends at once: its end waits for that."""
    group, python = tmp_path / "g", tmp_path / "python"
    group.mkdir()
    (group / "cgroup.procs").touch()
    looks = '#!/bin/sh\ncd "{}"; echo $PPID $(cat cgroup.procs) > seen; : > cgroup.procs\n'
    python.write_text(looks.format(group))
    python.chmod(0o755)
    env = {"TMPDIR": str(tmp_path), supervisor.ENV_GROUP: str(UnitCgroup([str(group)]))}
    env[supervisor.ENV_CODE] = json.dumps({"command": [], "python": str(python)})
    argv = (
        sys.executable,
        "-I",
        "-S",
        supervisor.__file__,
        str(tmp_path / "exit-0"),
        str(tmp_path),
        "/bin/true",
    )
    subprocess.run(argv, env={"PATH": "/usr/bin:/bin", **env}, check=True)
    recorder, joined = (group / "seen").read_text().split()
    assert recorder == joined


# With root, the system's own groups.


class Live(Site):
    """A backend whose node has 300 MB and two slots, on a system with control groups."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0 or len(find_place().parents) < len(cgroup.CONTROLLERS):
            pytest.skip("needs root")
        super().__init__(folder)

    def another_backend(self) -> LocalBackend:
        node = {"name": "n0", "gpus": 2, "memory": 300 << 20, "cpus": 2}
        return LocalBackend(Cluster.model_validate({"nodes": (node,), "slots": "cpu"}), self.folder)

    def group(self, unit: int = 0) -> UnitCgroup:
        return UnitCgroup(self.record().units[unit].groups)

    def is_removed(self, unit: int = 0) -> bool:
        return not any(os.path.exists(folder) for folder in self.group(unit).folders)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    site = Live(tmp_path.resolve())
    yield site
    site.backend.stop(site.handle, "kill")


TAKES = "taken = []\nwhile True:\n    taken.append(b'x' * (8 << 20))"
HIDES = """
import os, sys, time
os.environ.clear()
if os.fork():
    print("hid", flush=True)
    time.sleep(600)
os.setsid()
if os.fork():
    os._exit(0)
os.close(1)
time.sleep(600)
"""


@pytest.mark.services
def test_what_takes_too_much_memory_is_ended_and_others_run_on(live: Live) -> None:
    live.start(TAKES, "import os\nos.waitpid(os.fork() or os._exit(0), 0)\nprint('well')")
    hog, other = live.ended()
    assert (hog.code, other.code) == (-9, 0)
    assert hog.memory is not None
    assert hog.memory.limit == int(0.95 * (150 << 20))
    assert hog.memory.peak == hog.memory.limit // 4096 * 4096
    assert live.said(0) == "pliant: killed for memory: limit 142 MiB, peak 142 MiB\n"
    assert live.said(1) == "well\n"
    assert live.is_removed(0)
    assert live.is_removed(1)


NESTS = """
for folder in {folders!r}:
    os.mkdir(folder + "/own")
with open({folders!r}[0] + "/own/cgroup.procs", "w") as file:
    file.write("0")
"""


@pytest.mark.services
@pytest.mark.parametrize("killed", ["the command", "the supervisor"])
def test_nothing_of_a_unit_hides_from_its_end(live: Live, killed: str) -> None:
    name = group_name(str(live.handle.files.exit_code(0)))
    folders = [f"{parent}/{name}" for parent in find_place().parents.values()]
    live.start("import os" + NESTS.format(folders=folders) + HIDES)
    assert live.group().folders == tuple(folders)
    until(lambda: "hid" in live.said() and len(live.group().pids()) == 2)
    hidden = [psutil.Process(pid) for pid in live.group().pids()]
    victim = live.supervisor().pid if killed == "the supervisor" else min(live.group().pids())
    os.kill(victim, signal.SIGKILL)
    (status,) = live.ended()
    assert status.state == ("lost" if killed == "the supervisor" else "exited")
    live.another_backend().stop(live.handle, "kill")  # as after the death of the launcher
    assert live.is_removed()
    _, left = psutil.wait_procs(hidden, timeout=0)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.services
def test_workers_of_a_job_share_their_gpus_and_reach_no_others(live: Live, tmp_path: Path) -> None:
    devices = {"GPU-a": 5, "GPU-b": 7, "GPU-c": 8}
    for name, minor in devices.items():
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o600, os.makedev(1, minor))
    live.backend.limits.devices = {name: f"1:{minor}" for name, minor in devices.items()}
    opens = f"""
import os, sys, time
sys.stdin = None
while not os.path.exists({str(tmp_path / "over")!r}):
    found = ""
    for name in {[*devices]!r}:
        try:
            os.close(os.open({str(tmp_path)!r} + "/" + name, os.O_RDONLY))
            found += name[-1]
        except PermissionError:
            pass
    print(found, flush=True)
    time.sleep(0.05)
"""

    def opened(unit: int) -> str:
        return (live.said(unit).split() or [""])[-1]

    live.start(opens, env={"CUDA_VISIBLE_DEVICES": "GPU-a"})
    until(lambda: opened(0) == "a")
    live.start(opens, env={"CUDA_VISIBLE_DEVICES": "GPU-b"})
    until(lambda: (opened(0), opened(1)) == ("ab", "ab"))
    live.backend.stop(live.handle, "kill", [1])
    until(lambda: live.poll()[1].state != "running")
    until(lambda: opened(0) == "a")
    (tmp_path / "over").touch()
    assert live.ended()[0].code == 0
