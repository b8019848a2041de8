"""A state directory, a cluster and a machine, whole and broken in every part.

Slurm as a doctor sees it is recorded, missing, silent, and real.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.io import write_cluster
from pliant.tools.run import discovery
from pliant.tools.run.backends.cgroup import LIMITED, CgroupPlace
from pliant.tools.run.doctor import folder, host
from pliant.tools.run.doctor import slurm as slurm_checks
from pliant.tools.run.doctor.examine import examine, guarded, worst
from pliant.tools.run.doctor.folder import clock
from pliant.tools.run.doctor.host import needed_versions, versions
from pliant.tools.run.doctor.site import Began, Check, Site, look_around
from pliant.tools.run.doctor.slurm import slurm as checks_of
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.file_system import Mount, Probed
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State
from tests.builders import cluster, job
from tests.leftovers import started
from tests.tools.run.fake_nvml import Card, install
from tests.tools.run.site import until

Golden = Callable[..., None]
JOB = job("a", command=("train.py",), work={"samples": 1.0})


def texts(checks: Iterable[Check], area: str | None = None) -> list[str]:
    """``problem: text; advice`` of each check, or of those of one area."""
    return [
        f"{each.verdict}: {each.text}" + (f"; {each.advice}" if each.advice else "")
        for each in checks
        if area in (None, each.area)
    ]


def not_ok(checks: Iterable[Check]) -> list[str]:
    return [text for text in texts(checks) if not text.startswith("ok: ")]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "live"
    with State(path) as opened:
        opened.record([submit_event(JOB, time.time())])
    write_cluster(cluster(2, slots="cpu"), path / "cluster.json", mode=0o600)
    return path


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these tests run there may be little room, a slow disk, or a disk in memory."""
    set_disk(monkeypatch)
    install(monkeypatch)
    monkeypatch.setattr(folder, "obstacle", lambda: None)
    monkeypatch.setattr(host, "find_place", lambda: CgroupPlace({}))


def test_what_of_a_jobs_limits_is_not_enforced_is_said(
    monkeypatch: pytest.MonkeyPatch, golden_text: Golden
) -> None:
    stated = {"name": "n0", "gpus": 2, "memory": 100, "cpus": 2}
    nodes = {"nodes": (stated, {"name": "n1", "gpus": 2, "memory": 100}), "slots": "cpu"}
    places = {
        "all": CgroupPlace(dict.fromkeys(LIMITED, "/sys/fs/cgroup/unified"), scope=True),
        "some": CgroupPlace({"pids": "/x", "memory": "/x"}, {"devices": "not here", "cpu": "not here"}),
        "none": CgroupPlace({}, dict.fromkeys(LIMITED, "this account may not make groups in /x")),
    }
    said = []
    for name, place in places.items():
        monkeypatch.setattr(host, "find_place", lambda place=place: place)
        said += [name, *texts(host.isolation(Site("local", cluster=Cluster.model_validate(nodes))))]
    off = Cluster.model_validate({**nodes, "isolation": False})
    said += ["off", *texts(host.isolation(Site("local", cluster=off)))]
    golden_text("\n".join([*said, "Slurm", *texts(host.isolation(Site("slurm")))]))


def test_root_learns_whether_other_accounts_could_run_jobs(state: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    new, own = (Site("local", StateDir(path)) for path in (tmp_path / "new", state))
    assert [check.verdict for check in folder.accounts(new)] == ["ok"]
    monkeypatch.setattr(folder, "obstacle", lambda: "/root is closed to other accounts")
    (found,) = folder.accounts(new)
    assert (found.verdict, found.text[:17], "/opt" in found.advice) == ("warning", "/root is closed t", True)
    assert [*folder.accounts(own)] == [], "one account runs its own jobs there"
    monkeypatch.setattr(StateDir, "is_shared", True)
    assert [check.verdict for check in folder.accounts(own)] == ["problem"]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [*folder.accounts(new)] == []


def set_disk(
    monkeypatch: pytest.MonkeyPatch,
    *,
    mount: Mount = Mount("ext4"),  # noqa: B008 - frozen
    free: int = 1 << 40,
    files: tuple[int, int] = (0, 0),
    probed: Probed | OSError = Probed(0.001, locks=True, skew_s=0.0),  # noqa: B008 - frozen
) -> None:
    def probe(_path: Path) -> Probed:
        if isinstance(probed, OSError):
            raise probed
        return probed

    room = SimpleNamespace(f_files=files[0], f_favail=files[1])
    monkeypatch.setattr(folder, "mount_of", lambda _path: mount)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr(folder.os, "statvfs", lambda _path: room)
    monkeypatch.setattr(folder, "probe", probe)


def test_a_directory_without_a_loop_is_a_warning_and_unchanged(state: Path) -> None:
    def content() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in state.rglob("*")}

    before = content()
    seen = examine(state)
    assert worst(seen) == "warning"
    assert texts(seen, "cluster") == ["ok: 1 node, 2 CPU slots, backend local"]
    (text,) = not_ok(seen)
    assert text.startswith("warning: no loop serves 1 job; one wrote last ")
    assert text.endswith(f"unless cron calls pliant run: pliant run --follow --state {state}")
    assert before == content()
    with State(state):
        (text,) = texts(examine(state), "service")
    assert text.startswith(f"ok: process {os.getpid()} runs it; it wrote last ")


def test_a_directory_may_be_missing_or_hold_requests_alone(tmp_path: Path) -> None:
    seen = examine(tmp_path / "a" / "b")
    assert not_ok(seen) == []
    assert "is not there yet" in texts(seen, "folder")[0]
    assert not (tmp_path / "a").exists()
    submit(tmp_path / "new", [JOB], "jobs", folder=tmp_path, now_s=time.time(), check_scripts=False)
    (text,) = not_ok(examine(tmp_path / "new"))
    assert text.startswith("warning: no loop serves 1 request; unless cron")


def test_a_loop_that_is_stopped_is_a_problem(state: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pliant.tools.run.statedir.directory import Lock; "
        "lock = Lock(Path(sys.argv[1])); lock.acquire(); print(flush=True); time.sleep(600)"
    )
    with started([sys.executable, "-c", code, str(state / "lock")], stdout=PIPE) as holder:
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED)
        (text,) = not_ok(examine(state))
    assert text.startswith(f"problem: process {holder.pid} runs it, but is stopped; it wrote")
    assert text.endswith(f"; kill -CONT {holder.pid}")


def test_an_unusable_directory_is_a_problem(state: Path) -> None:
    def problem(path: Path = state) -> str:
        (text,) = not_ok(examine(path))
        assert text.startswith("problem: ")
        return text

    state.chmod(0o777)
    assert "others may write in it" in problem()
    assert state.stat().st_mode & 0o777 == 0o777
    state.chmod(0o700)
    log, version = state / "events.jsonl", state / "version.json"
    whole, written = log.read_bytes(), json.loads(version.read_text())
    log.write_bytes(whole.replace(b'"submit"', b'"sumbit"') * 2)
    assert f"pliant log --repair --state {state}" in problem()
    log.write_bytes(whole)
    version.write_text(json.dumps({**written, "format": written["format"] + 1, "pliant": "9.0"}))
    assert "9.0" in problem()
    (state / "circle").symlink_to("circle")
    for name in ("version.json", "circle"):
        problem(state / name)


DISKS: dict[str, tuple[str, dict[str, Any]]] = {
    "in memory": ("local", {"mount": Mount("tmpfs")}),
    "own locks": ("local", {"mount": Mount("nfs", frozenset(["nolock"]))}),
    "local, for Slurm": ("slurm", {"mount": Mount("ext4")}),
    "shared, for Slurm": ("slurm", {"mount": Mount("nfs4")}),
    "unknown": ("local", {"mount": Mount("")}),
    "full": ("local", {"free": (64 << 20) - 1}),
    "nearly full": ("local", {"free": 64 << 20}),
    "still nearly full": ("local", {"free": (2 << 30) - 1}),
    "room": ("local", {"free": 2 << 30, "files": (9, 10_000)}),
    "few files": ("local", {"files": (9, 9_999)}),
    "no locks": ("local", {"probed": Probed(0.001, locks=False, skew_s=0.0)}),
    "slow": ("local", {"probed": Probed(0.9, locks=True, skew_s=0.0)}),
    "not ours": ("local", {"probed": OSError(13, "Permission denied")}),
}


@pytest.mark.parametrize("name", DISKS)
def test_a_file_system_is_judged_by_kind_room_and_locks(name, tmp_path, monkeypatch, golden_text) -> None:
    backend, disk = DISKS[name]
    set_disk(monkeypatch, **disk)
    golden_text("\n".join(texts(folder.folder(look_around(tmp_path, None, backend)))))


def test_clocks_that_disagree_or_were_never_set_are_noticed(state: Path, monkeypatch) -> None:
    site = look_around(state, None, None)
    assert site.log is not None
    site.log.last_s = time.time() + 3600
    set_disk(monkeypatch, probed=Probed(0.001, locks=True, skew_s=-40.0))
    jumped, ahead, skewed = not_ok(clock(replace(site, began=Began(time.time() + 90, time.monotonic()))))
    assert jumped.startswith("warning: this machine's clock was set by -90.0 s while it was looked at")
    assert ahead.startswith("warning: the log is 1 h ahead: the clock was set back since")
    assert skewed.startswith("warning: the folder's clock is 40 s behind this machine's")
    monkeypatch.setattr(folder.time, "time", lambda: 86_400.0)  # it was never set
    assert worst(clock(Site("local", began=Began(86_400.0)))) == "problem"


GPUS = cluster(2)
END = "end it, or leave that GPU out with CUDA_VISIBLE_DEVICES"


def test_gpus_of_the_cluster_have_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Card("GPU-a"), Card("GPU-b"))
    monkeypatch.setattr(host, "version", lambda _name: "2.13.0")
    assert texts(host.gpus(Site("local", cluster=GPUS))) == ["ok: 2 GPUs to use of 2, driver 570.86.15"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    first, second = texts(host.gpus(Site("local", cluster=GPUS)))
    assert first == "ok: 1 GPU to use of 2, driver 570.86.15"
    assert second.startswith("problem: cluster: /nodes: 2 GPUs on the local backend, this machine has 1")


def test_gpus_lost_in_use_or_without_cuda_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "live"
    monkeypatch.setattr(host, "version", lambda _name: "2.13.0+cpu")
    ours = {"PLIANT_JOB_DIR": str(own / "jobs/a"), "PATH": os.environ["PATH"]}
    with started([sys.executable, "-c", "input()"], stdin=PIPE, env=ours) as trains:
        until(lambda: "PLIANT_JOB_DIR" in psutil.Process(trains.pid).environ())
        install(monkeypatch, Card("GPU-a", pids=(trains.pid, os.getpid())), Card("GPU-b", lost=True))
        seen = not_ok(host.gpus(Site("local", StateDir(own), cluster=cluster(1))))
    assert seen == [
        "warning: GPU 1: GPU is lost; look at nvidia-smi; it is left out",
        "problem: torch 2.13.0+cpu is the build without CUDA; install the one with: pip install torch",
        f"warning: GPU 0 is in use by process {os.getpid()}; {END}",
    ]


@pytest.mark.parametrize(
    ("nodes", "driver", "verdict"),
    [
        (GPUS, "/dev/null", "problem"),
        (cluster(2, slots="cpu"), "/dev/no-such-driver", "ok"),
        (None, "/dev/no-such-driver", "ok"),
        (None, "/dev/null", "warning"),
    ],
)
def test_without_a_driver_gpus_of_the_cluster_are_a_problem(nodes, driver, verdict, monkeypatch) -> None:
    def missing() -> None:
        raise ServiceMissingError("no driver")

    monkeypatch.setattr(host, "list_gpus", missing)
    monkeypatch.setattr(host, "DRIVER", Path(driver))
    (check,) = host.gpus(Site("local", cluster=nodes))
    assert check.verdict == verdict


def test_an_unreadable_cluster_or_a_bug_hides_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text("{")
    seen = examine(None, str(path))
    assert worst(seen) == "problem"
    assert {"versions", "cluster", "clock", "GPUs"} <= {check.area for check in seen}

    def breaks(_site: Site) -> Iterator[Check]:
        yield Check("ok", "fine so far")
        raise RuntimeError("no such\nclock")

    assert texts(guarded("clock", breaks, Site("local")), "clock") == [
        "ok: fine so far",
        "problem: cannot be looked at: RuntimeError: no such; mend that, and look again",
    ]


# Versions of packages, none of which is imported.

NEEDED = ["torch>=2.11; extra == 'run'", "psutil>=6", "rich>=13.9", "nvidia-ml-py>=12; extra == 'gpu'"]


@pytest.mark.parametrize(
    "packages",
    [{"torch": "2.13.0+cpu", "psutil": "7.2.2"}, {"torch": "2.12.1", "psutil": "7.2.2"}, {"psutil": "5.9.8"}],
    ids=["as pinned", "older torch", "no torch"],
)
def test_versions_are_compared_with_those_pinned_and_needed(
    packages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden_text: Golden
) -> None:
    known = {"pliant": "0.1.0", "rich": "13.10", **packages}

    def version(name: str) -> str:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(host, "version", version)
    monkeypatch.setattr(host, "requires", lambda _name: NEEDED)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("rich==15.0.0\ntorch==2.13.0\ntorchvision==0.28\n")
    first, *rest = texts(versions(Site("local"), constraints))
    assert first.startswith("ok: pliant 0.1.0, Python 3.")
    golden_text("\n".join(rest))
    if "torch" in packages:
        assert not_ok(versions(Site("local"), tmp_path / "none.txt")) == []


def test_requirements_of_extras_are_not_needed() -> None:
    assert needed_versions(["a", 'b>=1 ; python_version < "4"']) == {"a": "", "b": "1"}


RECORDED = Path(__file__).parent / "backends/slurm/recorded"


def of(*names: str, gpus: int = 4, **slurm: str) -> Site:
    nodes = tuple({"name": name, "gpus": gpus} for name in names)
    return Site("slurm", cluster=Cluster.model_validate({"nodes": nodes, "backend": "slurm", "slurm": slurm}))


def said(name: str) -> str:
    return (RECORDED / f"22.05-{name}.txt").read_text()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that says what one of 22.05 said."""

    def ask(argv: Sequence[str], **_more: float) -> str:
        if argv[-1] == "--version":
            return "slurm-wlm 22.05.8\n"
        return said("config" if argv[-1] == "config" else f"{argv[-1]}s")

    def no_topology(argv: Sequence[str], **_more: float) -> str:
        raise ServiceMissingError(f"{argv[0]}: topology/default plugin loaded")

    monkeypatch.setattr(slurm_checks, "ask", ask)
    monkeypatch.setattr(discovery, "ask", no_topology)
    monkeypatch.setattr(folder.shutil, "which", lambda name: f"/usr/bin/{name}")


def silent(argv: Sequence[str], **_more: float) -> str:
    if argv[-1] == "--version":
        return "slurm 19.05.3\n"
    raise ServiceMissingError("scontrol: Unable to contact slurm controller (connect failure)")


OWN_JOBS = replace(of("n0"), backend="slurm-jobs")
SLURMS: dict[str, tuple[Site, tuple[Any, str, Callable[..., Any]] | None]] = {
    "a node is out of service": (of("n0", "n1", "n3"), None),
    "another file": (of("n0", "n9", gpus=8, partition="big"), None),
    "no node is in service": (of("n1", "n2"), None),
    "no file": (Site("slurm"), None),
    "jobs of their own": (OWN_JOBS, None),
    "not Slurm": (Site("local"), None),
    "GPUs by node": (OWN_JOBS, (slurm_checks.parsing, "settings", lambda _: {"SelectType": "select/linear"})),
    "no commands": (of("n0"), (folder.shutil, "which", lambda _name: None)),
    "no answer": (of("n0"), (slurm_checks, "ask", silent)),
    "levels": (of("n0", "n1", "n2", "n3"), (discovery, "ask", lambda _argv, **_more: said("topology"))),
}


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("name", SLURMS)
def test_slurm_is_looked_at(name: str, monkeypatch: pytest.MonkeyPatch, golden_text: Golden) -> None:
    site, change = SLURMS[name]
    if change is not None:
        monkeypatch.setattr(*change)
    golden_text("\n".join(texts(guarded("Slurm", checks_of, site))))


def test_a_real_slurm_is_well(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    checks = [check for check in examine(backend="slurm") if check.area == "Slurm"]
    assert worst(checks) == "ok"
    assert texts(checks)[-1] == "ok: 4 of 4 nodes in service"
