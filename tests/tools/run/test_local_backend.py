import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.backends import local, supervisor
from pliant.tools.run.backends.host import birth
from pliant.tools.run.backends.local import SUPERVISOR, LocalBackend
from pliant.tools.run.backends.protocol import (
    Handle,
    LaunchRecord,
    NodeInfo,
    Unit,
    UnitStatus,
    read_record,
    write_record,
)
from pliant.tools.run.backends.testing import check_backend
from pliant.tools.run.service.run import open_backend
from pliant.tools.run.statedir.contract.folders import UnreadableError
from pliant.tools.run.statedir.contract.liveness import last_beat
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_LOG_BYTES, ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir
from tests.builders import cluster
from tests.tools.run.conftest import left_running
from tests.tools.run.site import until

RUNNING = UnitStatus("running")
WAIT = "import time; print('up', flush=True); time.sleep(600)"
FAMILY = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {WAIT!r}], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""
LAUNCHES_ONE = f"""
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", {WAIT!r}]).returncode % 256)
"""
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"


class Site:
    """A backend on two CPU slots and one attempt of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jobs"
        self.backend = self.another_backend()
        self.job = self.folder / "a"
        self.handle = Handle("a", 1, self.job / "attempts" / "1")

    def another_backend(self) -> LocalBackend:
        return LocalBackend(cluster(2, slots="cpu"), self.folder)

    def start(self, *scripts: str, cwd: str = "/", env: Mapping[str, str] | None = None) -> None:
        record = read_record(self.handle)
        first = 0 if record is None else len(record.units)
        job = {ENV_JOB_DIR: str(self.job), **(env or {})}
        units = [
            Unit("n0", (sys.executable, "-c", script), cwd, {**job, ENV_WORKER: str(number)}, slots=1)
            for number, script in enumerate(scripts, first)
        ]
        self.backend.start(self.handle, units)

    def poll(self) -> tuple[UnitStatus, ...]:
        return self.backend.poll([self.handle])[self.handle]

    def ended(self) -> tuple[UnitStatus, ...]:
        until(lambda: RUNNING not in self.poll())
        return self.poll()

    def kill(self) -> tuple[UnitStatus, ...]:
        self.backend.stop(self.handle, "kill")
        return self.ended()

    def said(self, unit: int = 0) -> str:
        path = self.handle.files.launcher_log(unit)
        return path.read_text() if path.exists() else ""

    def is_up(self, unit: int = 0, times: int = 1) -> None:
        until(lambda: self.said(unit).count("up") == times)

    def record(self) -> LaunchRecord:
        record = read_record(self.handle)
        assert record is not None
        return record

    def change(self, unit: int, **fields: object) -> None:
        """By default as if the launcher had died before it could record the unit's process."""
        fields = fields or {"pid": None, "born": None}
        record = self.record()
        units = list(record.units)
        units[unit] = units[unit].model_copy(update=fields)
        write_record(self.handle, record.model_copy(update={"units": tuple(units)}))

    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.record().units[0].pid)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path.resolve())


needs_process_tree = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs the process tree of Linux"
)


def test_units_run_in_own_sessions_and_leave_their_exit_codes(site: Site, tmp_path: Path) -> None:
    where = "import os; print(os.getcwd(), os.environ['PLIANT_JOB_DIR'], os.getsid(0), sep='\\n')"
    site.start("raise SystemExit(3)", where, "import os; os.kill(os.getpid(), 9)", cwd=str(tmp_path))
    assert site.ended() == (UnitStatus("exited", 3), UnitStatus("exited", 0), UnitStatus("exited", -9))
    folder, job, session = site.said(1).splitlines()
    assert (folder, job) == (str(tmp_path), str(site.job))
    assert int(session) != os.getsid(0)
    for level in ("term", "kill"):
        site.backend.stop(site.handle, level)  # harmless


def test_the_local_backend_passes_the_checks_of_all_backends(site: Site) -> None:
    check_backend(site.another_backend, site.folder)


def test_what_cannot_be_started_has_exit_code_127(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)  # a folder there that this user may not enter is another reason
    site.backend.start(site.handle, [Unit("n0", ("no-such-program",), "/", {ENV_JOB_DIR: str(site.job)})])
    assert site.ended() == (UnitStatus("exited", 127),)
    assert "no-such-program: cannot be started: No such file or directory" in site.said()


def test_a_stopped_launcher_is_woken_once_its_worker_has_ended(site: Site) -> None:
    site.start(LAUNCHES_ONE)
    site.is_up()
    (launcher,) = site.supervisor().children()
    (worker,) = launcher.children()
    launcher.suspend()
    until(lambda: launcher.status() == psutil.STATUS_STOPPED)
    assert site.poll() == (RUNNING,)
    assert launcher.status() == psutil.STATUS_STOPPED, "its worker runs: it may have been stopped on purpose"
    worker.kill()
    assert site.ended() == (UnitStatus("exited", 256 - signal.SIGKILL),)


@needs_process_tree
def test_a_stopped_command_without_live_children_is_idle(site: Site) -> None:
    site.start(LAUNCHES_ONE.replace("sys.exit(", "print(").replace("% 256", ", flush=True") + WAIT)
    site.is_up()
    command = site.supervisor().children()[0]
    command.children()[0].kill()
    site.is_up(times=2)
    assert not site.poll()[0].idle, "it may have more to do"
    command.suspend()
    until(lambda: site.poll()[0].idle)
    site.kill()


def test_a_unit_that_ignores_term_is_killed_with_its_descendants(site: Site) -> None:
    site.start(DEAF, FAMILY)
    site.is_up()
    site.is_up(1, times=2)
    site.backend.stop(site.handle, "term")
    until(lambda: site.poll()[1] != RUNNING)
    assert site.poll()[0] == RUNNING
    assert len(left_running(site.job.parent)) >= 2
    site.backend.stop(site.handle, "kill")
    killed = (UnitStatus("lost"), UnitStatus("exited", -9))  # with its supervisor, or just before it
    assert site.ended()[0] in killed
    until(lambda: left_running(site.job.parent) == [])


DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        work = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", work, PATH], {})
    os._exit(0)
os.wait()
while not os.path.exists(PATH) or not open(PATH).read().endswith("\\n"):
    pass
print("up", flush=True)
"""


@needs_process_tree
@pytest.mark.parametrize("end", ["by itself", "by a kill", "under a stopped supervisor"])
def test_no_daemon_outlives_its_job(site: Site, tmp_path: Path, end: str) -> None:
    """The daemon becomes a child of the supervisor, which wakes once its command, the first child, ends."""
    path = tmp_path / "daemon"
    wait = "" if end == "by itself" else "import time; time.sleep(600)"
    site.start(DAEMON.replace("PATH", repr(str(path))) + wait)
    site.is_up()
    daemon = int(path.read_text())
    if end == "by itself":
        assert site.ended() == (UnitStatus("exited", 0),)
    elif end == "by a kill":
        assert psutil.pid_exists(daemon)
        site.kill()
    else:
        supervisor = site.supervisor()
        until(lambda: len(supervisor.children()) == 2)
        (command,) = (child for child in supervisor.children() if child.pid != daemon)
        supervisor.suspend()
        command.kill()
        assert site.ended() == (UnitStatus("exited", -signal.SIGKILL),)
    until(lambda: not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == psutil.STATUS_ZOMBIE)


def test_a_later_backend_finds_what_runs_and_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.start(WAIT)
    site.is_up()
    later = site.another_backend()
    assert later.adopt() == [site.handle]
    create_time = psutil.Process.create_time
    with_set_clock = lambda self: create_time(self) + 3600  # noqa: E731
    monkeypatch.setattr(psutil.Process, "create_time", with_set_clock)
    assert later.poll([site.handle])[site.handle] == (RUNNING,)
    later.stop(site.handle, "term")
    until(lambda: later.poll([site.handle])[site.handle] != (RUNNING,))
    assert later.poll([site.handle])[site.handle] == (UnitStatus("exited", -signal.SIGTERM),)
    site.ended()


def test_a_kill_needs_no_readable_record(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.start(WAIT)
    site.is_up()
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "read_bytes", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
        )
        with pytest.raises(UnreadableError):
            site.kill()


def test_exit_codes_are_known_where_sigchld_is_ignored(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher may have been started with SIGCHLD ignored; a supervisor may be gone before it looks."""

    def gone(pid: int) -> str:
        os.waitpid(pid, 0)
        raise psutil.NoSuchProcess(pid)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        site.start("raise SystemExit(3)", WAIT)
        until(lambda: site.poll() == (UnitStatus("exited", 3), RUNNING))
        site.kill()
    finally:
        signal.signal(signal.SIGCHLD, before)
    monkeypatch.setattr(local, "birth", gone)
    site.start("raise SystemExit(3)")
    until(lambda: site.poll()[2] == UnitStatus("exited", 3))


def test_a_start_that_was_cut_short_is_undone_and_the_rest_lives(site: Site) -> None:
    site.handle.folder.mkdir(parents=True)
    assert site.backend.adopt() == [site.handle]
    assert site.poll() == (), "nothing was started"
    site.start(WAIT)
    site.is_up()
    site.start("import sys; sys.exit(4)", WAIT, WAIT)
    until(lambda: site.poll() == (RUNNING, UnitStatus("exited", 4), RUNNING, RUNNING))
    site.is_up(3)
    site.change(3)
    assert site.another_backend().adopt() == [site.handle]
    until(lambda: len(left_running(site.folder)) == 4)  # each with its supervisor
    rest = (RUNNING, UnitStatus("exited", 4), RUNNING, UnitStatus("lost"))
    assert site.poll() == rest
    site.backend.stop(site.handle, "kill", only={2})
    until(lambda: site.poll()[2] != RUNNING)
    assert site.poll()[:2] == rest[:2]
    site.change(0)
    later = site.another_backend()
    assert later.adopt() == [site.handle]
    assert later.poll([site.handle])[site.handle][0] == UnitStatus("lost")
    until(lambda: left_running(site.folder) == [])


@pytest.mark.parametrize("lie", ["start", "environment"])
def test_a_recycled_pid_is_left_alone(site: Site, lie: str) -> None:
    """A record names the pid of a process that is not ours: it is neither seen as running nor killed."""
    env = {**os.environ, ENV_JOB_DIR: "elsewhere"}
    stranger = subprocess.Popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, env=env)
    with stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        site.start("pass")
        site.ended()
        born = birth(stranger.pid) if lie == "environment" else site.record().units[0].born
        site.change(0, pid=stranger.pid, born=born)
        assert RUNNING not in site.poll()
        site.backend.stop(site.handle, "term")
        site.backend.stop(site.handle, "kill")
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("8.8.8.8", "8.8.8.8 is not a loopback or private address"),
        ("192.168.254.253", "not one of this machine"),
        ("no-such-host.invalid", "not known on this machine"),
    ],
)
def test_workers_meet_on_this_machine_and_not_in_public(tmp_path: Path, address: str, problem: str) -> None:
    node = {"name": "n0", "gpus": 1, "address": address}
    nodes = Cluster.model_validate({"nodes": (node,), "slots": "cpu"})
    with pytest.raises(BadInputError, match=problem):
        LocalBackend(nodes, tmp_path).nodes()


def test_cpu_slots_are_those_of_the_cluster_file(tmp_path: Path) -> None:
    found = LocalBackend(cluster(2, 3, slots="cpu"), tmp_path).nodes()
    assert found == [NodeInfo("n0", 2), NodeInfo("n1", 3)]
    with pytest.raises(ServiceMissingError, match='no backend "pbs": use local, slurm'):
        open_backend("pbs", cluster(1), StateDir(tmp_path))


MOST = 1 << 19
LINES = 50_000
"""Of 50 bytes each: nearly five times what is kept."""


def on_disk(path: Path) -> int:
    return 512 * path.stat().st_blocks


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[tuple[Path, FileIO, bytes]]:
    """A file that its writer holds open at its own place, as torchrun's redirection does; its content."""
    path = tmp_path / "stdout.log"
    whole = b"".join(f"line {number:044d}\n".encode() for number in range(LINES))
    with path.open("wb", buffering=0) as file:
        file.write(whole)
        yield path, file, whole


def test_the_newest_output_stays_and_the_writer_goes_on(
    printed: tuple[Path, FileIO, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file, whole = printed
    supervisor.trim(str(path), on_disk(path))
    assert path.read_bytes() == whole, "it is small enough"
    supervisor.trim(str(path), MOST)
    assert MOST / 2 <= on_disk(path) <= MOST
    file.write(b"the end\n")
    assert path.stat().st_size == len(whole) + len(b"the end\n")
    assert path.read_bytes()[-MOST // 2 :] == (whole + b"the end\n")[-MOST // 2 :]
    # without holes all goes
    monkeypatch.setattr(supervisor, "punch", lambda descriptor, end: False)
    supervisor.trim(str(path), MOST // 4)
    file.write(b"the end\n")
    assert on_disk(path) <= MOST // 4
    assert path.read_bytes().endswith(b"\0the end\n")


@pytest.mark.parametrize("number", [errno.EINTR, errno.EIO, errno.ENOSPC])
def test_output_that_cannot_be_trimmed_at_the_moment_stays(
    printed: tuple[Path, FileIO, bytes], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path, _, whole = printed

    def fallocate64(*_about: object) -> int:
        ctypes.set_errno(number)
        return -1

    system = SimpleNamespace(fallocate64=fallocate64)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_about, **_more: system)
    with suppress(OSError):
        supervisor.trim(str(path), MOST)
    assert path.read_bytes() == whole


def test_an_orphan_that_may_not_be_killed_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_KILL_S", 0.05)
    monkeypatch.setattr(supervisor, "children", lambda: [4711])
    monkeypatch.setattr(supervisor.os, "waitpid", lambda pid, options: (0, 0))
    monkeypatch.setattr(supervisor.os, "kill", Mock(side_effect=PermissionError))
    supervisor.end_orphans()


PRINTS = """
import pathlib, sys, time
with open(WORKER, "w") as worker:
    while not pathlib.Path(END).exists():
        print("x" * 10_000, flush=True)
        print("y" * 10_000, file=worker, flush=True)
        time.sleep(0.002)
    print("the end", flush=True)
"""
"""Prints without end, into a file as torchrun's workers do and to its own output."""


def test_a_supervisor_beats_and_trims_output_but_never_stops_it(site: Site, tmp_path: Path) -> None:
    """If it stands still, the unit goes on; if the worker is silent, too, their host is dead."""
    files, end = site.handle.files, tmp_path / "end"
    own, worker = files.launcher_log(0), files.logs / "0" / "none_x" / "attempt_0" / "0" / "stdout.log"
    worker.parent.mkdir(parents=True)
    script = PRINTS.replace("WORKER", repr(str(worker))).replace("END", repr(str(end)))
    site.start(script, env={ENV_LOG_BYTES: str(MOST)})
    supervisor = site.supervisor()

    def is_trimmed(path: Path) -> bool:
        supervisor.send_signal(signal.SIGALRM)  # as its timer does
        time.sleep(0.05)
        return 2 * on_disk(path) < path.stat().st_size

    for path in (own, worker):
        until(lambda path=path: path.exists() and path.stat().st_size > 2 * MOST)
        until(lambda path=path: is_trimmed(path))
    path = files.supervisor(0)
    assert path.stat().st_mode & 0o777 == 0o600
    beat = last_beat(path)
    until(lambda: last_beat(path) > beat)

    supervisor.suspend()
    before = own.stat().st_size
    until(lambda: own.stat().st_size > before + (1 << 20))  # far more than a pipe holds
    supervisor.resume()
    end.touch()
    assert site.ended() == (UnitStatus("exited", 0),)
    assert own.read_bytes().endswith(b"the end\n")


def test_a_supervisor_that_cannot_beat_keeps_its_unit(tmp_path: Path) -> None:
    supervisor.beat(str(tmp_path / "nowhere" / "exit-0"))
    (tmp_path / "elsewhere").touch()
    (tmp_path / "unit-1.alive").symlink_to(tmp_path / "elsewhere")
    before = last_beat(tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere", (1.0, 1.0))
    supervisor.beat(str(tmp_path / "exit-1"))
    assert last_beat(tmp_path / "elsewhere") == 1.0 < before, "a link leads nowhere"


def test_a_unit_has_a_temporary_folder_and_its_job_s_secrets(tmp_path: Path) -> None:
    attempt = tmp_path / "jobs" / "a" / "attempts" / "1"
    attempt.mkdir(parents=True)
    job_dir, scratch = attempt.parent.parent, tmp_path / "scratch"
    scratch.mkdir()
    (job_dir / "secrets.json").write_text('{"KEY": "hush"}')
    words = 'touch "$TMPDIR/x"; mkdir "$TMPDIR/d"; touch "$TMPDIR/d/y"; echo "$KEY $TMPDIR" > seen; exit 3'
    argv = [sys.executable, "-I", "-S", SUPERVISOR, str(attempt / "exit-0"), str(tmp_path), "sh", "-c", words]
    env = {"PATH": os.defpath, "TMPDIR": str(scratch), "PLIANT_JOB_DIR": str(job_dir)}
    subprocess.run(argv, env=env, check=True, timeout=30)
    key, _, given = (tmp_path / "seen").read_text().strip().partition(" ")
    assert (key, Path(given).parent, list(scratch.iterdir())) == ("hush", scratch, [])
    assert (attempt / "exit-0").read_text() == "3\n"
    (scratch / Path(given).name).symlink_to(tmp_path)  # not its own: it is left alone, and unused
    subprocess.run(argv, env=env, check=True, timeout=30)
    assert (tmp_path / "seen").read_text() == f"hush {scratch}\n"
