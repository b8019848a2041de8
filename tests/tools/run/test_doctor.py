"""A state directory, a cluster and a machine, whole and broken in every part.

Slurm as a doctor sees it is recorded, missing, silent, and real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.io import write_cluster
from pliant.tools.run import discovery, doctor
from pliant.tools.run.doctor import (
    Began,
    Check,
    Site,
    clock,
    examine,
    guarded,
    look_around,
    needed_versions,
    versions,
    worst,
)
from pliant.tools.run.doctor import slurm as checks_of
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.file_system import Mount, Probed
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State
from tests.builders import cluster, job
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.fake_nvml import Card, install


def found(checks: Iterable[Check], area: str | None = None) -> list[str]:
    """``problem: text; advice`` of each check, or of those of one area."""
    return [
        f"{each.verdict}: {each.text}" + (f"; {each.advice}" if each.advice else "")
        for each in checks
        if area in (None, each.area)
    ]


def not_ok(checks: Iterable[Check]) -> list[str]:
    return [text for text in found(checks) if not text.startswith("ok: ")]


JOB = job("a", command=("train.py",), work={"samples": 1.0})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory whose log has one job that waits."""
    path = tmp_path.resolve() / "live"
    with State(path) as opened:
        opened.record([submit_event(JOB, time.time())])
    write_cluster(cluster(2, slots="cpu"), path / "cluster.json", mode=0o600)
    return path


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these tests run there may be little room, a slow disk, or a disk in memory."""
    monkeypatch.setattr(doctor, "mount_of", lambda _path: Mount("ext4"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr(doctor.os, "statvfs", lambda _path: SimpleNamespace(f_files=0, f_favail=0))
    monkeypatch.setattr(doctor, "probe", lambda _path: Probed(0.001, locks=True, skew_s=0.0))
    install(monkeypatch)


def test_a_state_directory_that_waits_for_a_loop_is_a_warning_and_nothing_is_changed(state: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in state.rglob("*")}
    seen = examine(state)
    assert worst(seen) == "warning"
    assert found(seen, "cluster") == ["ok: 1 node, 2 CPU slots, backend local"]
    (text,) = not_ok(seen)
    assert text.startswith("warning: no loop serves 1 job; one wrote last ")
    assert text.endswith(f"unless cron calls pliant run: pliant run --follow --state {state}")
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in state.rglob("*")}


def test_a_directory_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    seen = examine(tmp_path / "a" / "b")
    assert not_ok(seen) == []
    assert "is not there yet" in found(seen, "folder")[0]
    assert not (tmp_path / "a").exists()


def test_requests_that_no_loop_has_taken_up_wait_too(tmp_path: Path) -> None:
    submit(tmp_path / "new", [JOB], "jobs", folder=tmp_path, now_s=time.time(), check_scripts=False)
    (text,) = not_ok(examine(tmp_path / "new"))
    assert text.startswith("warning: no loop serves 1 request; unless cron")


def test_a_loop_that_holds_the_directory_is_named(state: Path) -> None:
    with State(state):
        texts = found(examine(state), "service")
    assert texts[0].startswith(f"ok: process {os.getpid()} runs it; it wrote last ")


@pytest.fixture
def stopped(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = (
        "import sys, time; from pathlib import Path; from pliant.tools.run.statedir.directory import Lock; "
    )
    code += "lock = Lock(Path(sys.argv[1])); lock.acquire(); print(flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(state / "lock")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.send_signal(signal.SIGSTOP)
    while psutil.Process(holder.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    yield holder
    holder.kill()
    holder.communicate()


def test_a_loop_that_is_stopped_is_a_problem(state: Path, stopped: subprocess.Popen[bytes]) -> None:
    (text,) = not_ok(examine(state))
    assert text.startswith(f"problem: process {stopped.pid} runs it, but is stopped; it wrote")
    assert text.endswith(f"; kill -CONT {stopped.pid}")


def damage_log(state: Path) -> None:
    log = state / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"submit"', b'"sumbit"') * 2)


def of_a_later_pliant(state: Path) -> None:
    written = json.loads((state / "version.json").read_text())
    later = {**written, "format": written["format"] + 1, "pliant": "9.0"}
    (state / "version.json").write_text(json.dumps(later))


def open_to_others(state: Path) -> None:
    state.chmod(0o777)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (damage_log, "pliant log --repair --state {state}"),
        (of_a_later_pliant, "9.0"),
        (open_to_others, "others may write in it"),
    ],
)
def test_a_directory_that_cannot_be_used_is_a_problem_and_stays_as_it_is(
    happens: Callable[[Path], None], said: str, state: Path
) -> None:
    happens(state)
    mode = state.stat().st_mode
    (text,) = not_ok(examine(state))
    assert text.startswith("problem: ")
    assert said.format(state=state) in text
    assert state.stat().st_mode == mode


@pytest.mark.parametrize("kind", ["file", "circle"])
def test_what_is_no_folder_is_a_problem(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "live"
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to("live")
    assert worst(examine(path)) == "problem"


UNLOCKED = Mount("nfs", frozenset(["nolock"]))


@pytest.mark.parametrize(
    ("mount", "backend", "said"),
    [
        (Mount("tmpfs"), "local", "warning: {place} is in memory (tmpfs): a reboot empties it"),
        (UNLOCKED, "local", "warning: nfs: other machines do not see its locks (nolock)"),
        (Mount("ext4"), "slurm", "warning: {place} is on ext4, and the nodes have to see it at the same"),
        (Mount("nfs4"), "slurm", "ok: on nfs4, which machines can share"),
        (Mount(""), "local", "ok: on an unknown file system"),
    ],
)
def test_the_file_system_is_judged_by_who_has_to_see_it(
    mount: Mount, backend: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "mount_of", lambda _path: mount)
    texts = found(doctor.folder(look_around(tmp_path, None, backend)))
    assert any(text.startswith(said.format(place=tmp_path.resolve())) for text in texts), texts


@pytest.mark.parametrize(
    ("free", "files", "verdict"),
    [(1 << 20, 0, "problem"), (1 << 30, 0, "warning"), (1 << 40, 9, "warning"), (1 << 40, 0, "ok")],
)
def test_a_disk_that_fills_up_is_noticed_before_it_is_full(
    free: int, files: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr(doctor.os, "statvfs", lambda _path: SimpleNamespace(f_files=files, f_favail=7))
    seen = list(doctor.folder(look_around(tmp_path, None, None)))
    assert worst(seen) == verdict
    assert bool(files) == any("but 7 files at most" in text for text in found(seen))


@pytest.mark.parametrize(
    ("probed", "said"),
    [
        (Probed(0.001, locks=False, skew_s=0.0), "problem: locks have no effect here: two runs could use it"),
        (Probed(0.9, locks=True, skew_s=0.0), "warning: a write is on disk after 900 ms"),
        (OSError(13, "Permission denied"), "cannot be written, or knows no locks: Permission denied"),
    ],
)
def test_what_writing_shows_is_said(
    probed: Probed | OSError, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(_path: Path) -> Probed:
        if isinstance(probed, OSError):
            raise probed
        return probed

    monkeypatch.setattr(doctor, "probe", probe)
    assert said in "".join(not_ok(doctor.folder(look_around(tmp_path, None, None))))


def test_clocks_that_disagree_are_noticed(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = look_around(state, None, None)
    assert site.log is not None
    site.log.last_s = time.time() + 3600
    monkeypatch.setattr(doctor, "probe", lambda _path: Probed(0.001, locks=True, skew_s=-40.0))
    jumped, ahead, skewed = not_ok(clock(replace(site, began=Began(time.time() + 90, time.monotonic()))))
    assert jumped.startswith("warning: this machine's clock was set by -90.0 s while it was looked at")
    assert ahead.startswith("warning: the log is 1 h ahead: the clock was set back since")
    assert skewed.startswith("warning: the folder's clock is 40 s behind this machine's")


def test_a_clock_that_was_never_set_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.time, "time", lambda: 86_400.0)
    assert worst(clock(Site("local", began=Began(86_400.0)))) == "problem"


GPUS = cluster(2)
END = "end it, or leave that GPU out with CUDA_VISIBLE_DEVICES"


def test_gpus_of_the_cluster_have_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda _name: "2.13.0")
    install(monkeypatch, Card("GPU-a"), Card("GPU-b"))
    assert found(doctor.gpus(Site("local", cluster=GPUS))) == ["ok: 2 GPUs to use of 2, driver 570.86.15"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    first, second = found(doctor.gpus(Site("local", cluster=GPUS)))
    assert first == "ok: 1 GPU to use of 2, driver 570.86.15"
    assert second.startswith("problem: cluster: /nodes: 2 GPUs on the local backend, this machine has 1")


def test_gpus_that_are_lost_in_use_or_without_cuda_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "live"
    monkeypatch.setattr(doctor, "version", lambda _name: "2.13.0+cpu")
    ours = {"PLIANT_JOB_DIR": str(own / "jobs/a"), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=ours) as trains:
        while "PLIANT_JOB_DIR" not in psutil.Process(trains.pid).environ():
            time.sleep(0.01)
        install(monkeypatch, Card("GPU-a", pids=(trains.pid, os.getpid())), Card("GPU-b", lost=True))
        texts = not_ok(doctor.gpus(Site("local", StateDir(own), cluster=cluster(1))))
    assert texts == [
        "warning: GPU 1: GPU is lost; look at nvidia-smi; it is left out",
        "problem: torch 2.13.0+cpu is the build without CUDA; install the one with: pip install torch",
        f"warning: GPU 0 is in use by process {os.getpid()}; {END}",
    ]


@pytest.mark.parametrize(
    ("nodes", "verdict"), [(GPUS, "problem"), (cluster(2, slots="cpu"), "ok"), (None, "ok")]
)
def test_no_driver_is_a_problem_where_the_cluster_has_gpus(
    nodes: Cluster | None, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ServiceMissingError("no driver")

    monkeypatch.setattr(doctor, "list_gpus", missing)
    monkeypatch.setattr(doctor, "DRIVER", Path("/dev/no-such-driver"))
    (check,) = doctor.gpus(Site("local", cluster=nodes))
    assert check.verdict == verdict


def test_a_cluster_that_cannot_be_read_is_a_problem_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text("{")
    seen = examine(None, str(path))
    assert worst(seen) == "problem"
    assert {"versions", "cluster", "clock", "GPUs"} <= {check.area for check in seen}


def test_an_error_in_a_check_is_a_problem_of_its_area() -> None:
    def breaks(_site: Site) -> Iterator[Check]:
        yield Check("ok", "fine so far")
        raise RuntimeError("no such\nclock")

    assert found(guarded("clock", breaks, Site("local")), "clock") == [
        "ok: fine so far",
        "problem: cannot be looked at: RuntimeError: no such; mend that, and look again",
    ]


# Versions of packages, none of which is imported.

HERE = Site("local")
NEEDED = ["torch>=2.11; extra == 'run'", "psutil>=6", "rich>=13.9", "nvidia-ml-py>=12; extra == 'gpu'"]


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    path = tmp_path / "constraints.txt"
    path.write_text("rich==15.0.0\ntorch==2.13.0\ntorchvision==0.28\n")
    return path


def installed(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "requires", lambda _name: NEEDED)


NO_TORCH = "problem: torch is not installed, so no job can train; pip install 'pliant[run]'"


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (
            {"torch": "2.13.0+cpu", "psutil": "7.2.2"},
            ["ok: torch 2.13.0+cpu", "ok: 2 packages as new as needed"],
        ),
        (
            {"torch": "2.12.1", "psutil": "7.2.2"},
            ["warning: torch 2.12.1 is not the version that the tests run with, 2.13.0; pip install", "ok: "],
        ),
        (
            {"psutil": "5.9.8"},
            [NO_TORCH, "problem: psutil 5.9.8 is older than 6; install pliant again"],
        ),
    ],
)
def test_versions_are_compared_with_those_of_the_tests_and_those_that_are_needed(
    packages: dict[str, str], said: list[str], constraints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, pliant="0.1.0", rich="13.10", **packages)
    first, *texts = found(versions(HERE, constraints))
    assert first.startswith("ok: pliant 0.1.0, Python 3.")
    assert [text[: len(begin)] for text, begin in zip(texts, said, strict=True)] == said
    if "torch" in packages:
        assert not_ok(versions(HERE, constraints.parent / "none.txt")) == []


def test_requirements_of_extras_are_not_needed() -> None:
    assert needed_versions(NEEDED) == {"psutil": "6", "rich": "13.9"}
    assert needed_versions(["a", 'b>=1 ; python_version < "4"']) == {"a": "", "b": "1"}


RECORDED = Path(__file__).parent / "backends/slurm/recorded"


def of(*names: str, gpus: int = 4, partition: str | None = None) -> Site:
    nodes = tuple({"name": name, "gpus": gpus} for name in names)
    options = {} if partition is None else {"partition": partition}
    return Site(
        "slurm", cluster=Cluster.model_validate({"nodes": nodes, "backend": "slurm", "slurm": options})
    )


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that says what one of 22.05 said."""

    def ask(argv: Sequence[str], **_more: float) -> str:
        if argv[-1] == "--version":
            return "slurm-wlm 22.05.8\n"
        name = "config" if argv[-1] == "config" else f"{argv[-1]}s"
        return (RECORDED / f"22.05-{name}.txt").read_text()

    def no_topology(argv: Sequence[str], **_more: float) -> str:
        raise ServiceMissingError(f"{argv[0]}: topology/default plugin loaded")

    monkeypatch.setattr(doctor, "ask", ask)
    monkeypatch.setattr(discovery, "ask", no_topology)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("recorded")
def test_nodes_out_of_service_are_warnings_with_the_reason() -> None:
    texts = found(checks_of(of("n0", "n1", "n3")))
    assert texts == [
        "ok: slurm-wlm 22.05.8 has all commands that are needed; sacct is not",
        "ok: partition main starts jobs",
        "warning: n1 is out of service (cooling); mend it, then: scontrol update nodename=n1 state=resume",
        "ok: 2 of 3 nodes in service",
    ]


@pytest.mark.usefixtures("recorded")
def test_a_cluster_file_that_does_not_fit_is_a_problem() -> None:
    texts = not_ok(checks_of(of("n0", "n9", gpus=8, partition="big")))
    again = "make the file again: pliant cluster discover --backend slurm"
    assert texts == [
        'problem: Slurm has no partition "big", it has: main; name one in the cluster file: slurm.partition',
        f'problem: Slurm has no node "n9"; {again}',
        f"problem: nodes with fewer GPUs than the cluster file says: n0 (4 of 8); {again}",
    ]


@pytest.mark.usefixtures("recorded")
def test_no_node_in_service_is_a_problem() -> None:
    assert (
        found(checks_of(of("n1", "n2")))[-1]
        == "problem: 0 of 2 nodes in service; no job can start; see sinfo -R"
    )


@pytest.mark.usefixtures("recorded")
def test_without_a_cluster_file_all_nodes_are_looked_at() -> None:
    assert found(checks_of(Site("slurm")))[-1] == "ok: 2 of 4 nodes in service"
    assert list(checks_of(Site("local"))) == []


@pytest.mark.usefixtures("recorded")
def test_jobs_of_their_own_need_gpus_that_are_given_out_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    site = replace(of("n0"), backend="slurm-jobs")
    assert not_ok(checks_of(site)) == []
    monkeypatch.setattr(doctor.parsing, "settings", lambda _text: {"SelectType": "select/linear"})
    (text,) = not_ok(checks_of(site))
    assert text.startswith(
        "problem: select/linear does not give out GPUs by task, which backend slurm-jobs needs"
    )


def test_commands_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None if name.startswith("s") else name)
    (text,) = found(checks_of(Site("slurm")))
    assert text.startswith(
        "problem: not found: sbatch, srun, squeue, scancel, scontrol, sinfo; run on a host"
    )


@pytest.mark.usefixtures("recorded")
def test_a_controller_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(argv: Sequence[str], **_more: float) -> str:
        if argv[-1] == "--version":
            return "slurm 19.05.3\n"
        raise ServiceMissingError("scontrol: Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(doctor, "ask", ask)
    first, second = found(guarded("Slurm", checks_of, of("n0")))
    assert first == "warning: slurm 19.05.3 is older than any that was tried; use 20.11 or newer"
    assert second.startswith(
        "problem: scontrol: Unable to contact slurm controller (connect failure); start slurmctld"
    )


def test_a_real_slurm_is_well(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    checks = [check for check in examine(backend="slurm") if check.area == "Slurm"]
    assert worst(checks) == "ok"
    assert found(checks)[-1] == "ok: 4 of 4 nodes in service"


@pytest.mark.usefixtures("recorded")
def test_levels_that_slurm_knows_and_the_cluster_file_does_not_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = (RECORDED / "22.05-topology.txt").read_text()
    monkeypatch.setattr(discovery, "ask", lambda _argv, **_more: topology)
    (said,) = [text for text in not_ok(checks_of(of("n0", "n1", "n2", "n3"))) if "levels" in text]
    assert said.startswith("warning: Slurm knows levels of the network that the cluster file does not name")
