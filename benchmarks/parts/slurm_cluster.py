"""A real Slurm on this host, for trials: a controller and several node daemons, each in its own folder.

It has its own folder, key, ports and configuration, so it touches no Slurm that the host may have. It runs as
root or as a plain user, and beside others of its kind. Its GPUs are device files that compute nothing.

Run as ``python -m benchmarks.parts.slurm_cluster [NODES [GPUS]]`` it prints the variable that leads Slurm's
commands to it, and lives until its standard input ends.
"""

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

NEEDED: Final = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
SYSTEM_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Where daemons are that a plain user's PATH does not name."""
STARTING_S: Final = 30.0
TRIES: Final = 5
"""Another process may take a port that was found free before it is used."""
CONFIGURATION: Final = """\
ClusterName=pliant
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
SlurmdTimeout={slurmd_timeout_s}
KillWait=2
MessageTimeout=3
UnkillableStepTimeout=10
MinJobAge=300
GresTypes=gpu
"""


class NoSlurmError(Exception):
    """It cannot be started here, and why."""


class SlurmCluster:
    """One such Slurm.

    :param gpus: of each node.
    :param slurmd_timeout_s: after which a node whose daemon is silent is down.
    :param settings: further lines of slurm.conf; of what is set twice, theirs count.
    """

    def __init__(
        self,
        gpus: Sequence[int] = (4, 4, 4, 4),
        *,
        slurmd_timeout_s: int = 10,
        settings: Sequence[str] = (),
    ) -> None:
        missing = [name for name in NEEDED if _where(name) is None]
        if missing:
            raise NoSlurmError(f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)")
        self.gpus = {f"n{index}": count for index, count in enumerate(gpus)}
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=_short_folder()))
        self._slurmd_timeout_s = slurmd_timeout_s
        self._settings = tuple(settings)
        self._munged: subprocess.Popen[bytes] | None = None
        self.env = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    # The whole.

    def start(self) -> None:
        """Start everything, and wait until all nodes are idle.

        :raises NoSlurmError: the system does not allow it.
        """
        self.folder.chmod(0o755)
        self._start_munge()
        for left in reversed(range(TRIES)):
            self._configure()
            self.start_controller()
            for name in self.gpus:
                self.start_node(name)
            if _happens(lambda: self._is_up() or bool(self._fatal()), STARTING_S) and self._is_up():
                return
            said = "; ".join(self._fatal()) or "its nodes do not become idle"
            self._end_daemons()
            if not left or "port" not in said:
                self.stop()
                raise NoSlurmError(f"it does not start: {said}")

    def stop(self) -> None:
        self.end_jobs()
        self._end_daemons()
        if self._munged is not None:
            self._munged.terminate()
            self._munged.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_jobs(self) -> None:
        if self.pid("slurmctld") is None:
            return
        for how in (("--full", "--signal=KILL"), ()):
            self.command("scancel", *how, f"--user={_user()}", check=False)
        _happens(lambda: not self.command("squeue", "-h", "-o", "%i", check=False).strip(), 20.0)

    def command(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False, timeout=60)
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """As sinfo names them; nothing while the controller does not answer."""
        lines = self.command("sinfo", "-h", "-N", "-o", "%N %t", check=False).splitlines()
        return dict(line.split() for line in lines if len(line.split()) == 2)

    # Its parts.

    def start_controller(self) -> None:
        self._daemon("slurmctld")

    def end_controller(self, *, crash: bool = False) -> None:
        """One that crashes may forget what happened in the last seconds."""
        self._end("slurmctld", signal.SIGKILL if crash else signal.SIGTERM)

    def start_node(self, name: str) -> None:
        (self.folder / f"spool.{name}").mkdir(exist_ok=True)
        self._daemon("slurmd", "-N", name)

    def end_node(self, name: str) -> None:
        """Kill the daemon of a node; its jobs run on, as with a real Slurm."""
        self._end(f"slurmd.{name}", signal.SIGKILL)

    def pid(self, daemon: str) -> int | None:
        """The process of ``slurmctld`` or ``slurmd.NODE``; None if it does not run."""
        with suppress(OSError, ValueError):
            pid = int((self.folder / f"{daemon}.pid").read_text())
            return pid if lives(pid) else None
        return None

    # How it is made.

    def _configure(self) -> None:
        port, *node_ports = _free_ports(1 + len(self.gpus))
        values = {"host": _host(), "port": port, "user": _user(), "folder": self.folder}
        lines = [CONFIGURATION.format(**values, slurmd_timeout_s=self._slurmd_timeout_s)]
        resources = [
            f"NodeName={name} Name=gpu File={self._devices(count)}"
            for name, count in self.gpus.items()
            if count
        ]
        for (name, count), node_port in zip(self.gpus.items(), node_ports, strict=True):
            gres = f"Gres=gpu:{count} " if count else ""
            lines.append(
                f"NodeName={name} NodeHostname={_host()} NodeAddr=127.0.0.1 Port={node_port} Sockets=1 "
                f"CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1000 {gres}State=UNKNOWN\n"
            )
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
        lines += [f"{line}\n" for line in self._settings]
        (self.folder / "slurm.conf").write_text("".join(lines))
        (self.folder / "gres.conf").write_text("".join(f"{line}\n" for line in resources))
        (self.folder / "state").mkdir(exist_ok=True)

    def _devices(self, count: int) -> str:
        """Slurm takes nothing but device files; a user who may make none gets the terminal's."""
        null = os.stat(os.devnull)
        for index in range(count):
            path = self.folder / f"gpu{index}"
            try:
                if not path.exists():
                    os.mknod(path, stat.S_IFCHR | 0o666, null.st_rdev)
            except OSError:
                return f"/dev/tty[0-{count - 1}]"
        return f"{self.folder}/gpu[0-{count - 1}]"

    def _start_munge(self) -> None:
        """Munged does not answer if others could write to its folders."""
        private = self.folder / "munge"
        private.mkdir(mode=0o700)
        key = private / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        words = [
            *(_path("munged"), "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={self.folder}/munge.sock", f"--pid-file={private}/munged.pid"),
            *(f"--seed-file={private}/seed", f"--log-file={private}/munged.log"),
        ]
        log = (private / "munged.out").open("wb")
        with log:
            self._munged = subprocess.Popen(words, stdout=log, stderr=log)
        if not _happens((self.folder / "munge.sock").exists, STARTING_S):
            said = (private / "munged.out").read_text(errors="replace")
            self.stop()
            raise NoSlurmError(f"munged does not start: {said}")

    def _daemon(self, name: str, *words: str) -> None:
        base = {key: value for key, value in self.env.items() if not key.startswith("SLURM_")}
        argv = [_path(name), *words, "-f", self.env["SLURM_CONF"]]
        out = self.folder / f"{name}.out"
        with out.open("ab") as log:
            subprocess.run(
                argv,
                env=base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=STARTING_S,
            )

    def _end_daemons(self) -> None:
        for name in ("slurmctld", *(f"slurmd.{node}" for node in self.gpus)):
            self._end(name, signal.SIGTERM)
        for process in _children_of(self.folder):
            with suppress(psutil.Error):
                process.kill()

    def _end(self, daemon: str, number: int) -> None:
        pid = self.pid(daemon)
        if pid is None:
            return
        os.kill(pid, number)
        if not _happens(lambda: self.pid(daemon) is None, 10.0):
            os.kill(pid, signal.SIGKILL)
            _happens(lambda: self.pid(daemon) is None, 10.0)

    def _is_up(self) -> bool:
        return self.states() == dict.fromkeys(self.gpus, "idle")

    def _fatal(self) -> list[str]:
        logs = sorted(self.folder.glob("slurm*.log"))
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        return [line for line in lines if "fatal" in line]


def lives(pid: int) -> bool:
    """Whether a process has not ended, reaped or not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _children_of(folder: Path) -> list[psutil.Process]:
    """Each step of a node daemon has a slurmstepd with its spool."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in process.environ().get("SLURM_CONF", "") and process.name().startswith(
                "slurmstepd"
            ):
                found.append(process)
    return found


def _short_folder() -> str:
    """A short, plain path: that of a socket has 107 characters, and slurm.conf knows no quotes."""
    usual = tempfile.gettempdir()
    if re.fullmatch(r"[A-Za-z0-9_./-]{1,59}", usual):
        return usual
    return next(filter(os.path.isdir, ("/dev/shm", "/var/tmp")), usual)  # noqa: S108


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _happens(condition: Callable[[], bool], seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.05)
    return True


def _where(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM_FOLDERS]))


def _path(name: str) -> str:
    found = _where(name)
    assert found is not None
    return found


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


@contextmanager
def slurm_cluster(
    gpus: Sequence[int] = (4, 4, 4, 4), *, slurmd_timeout_s: int = 10, settings: Sequence[str] = ()
) -> Iterator[SlurmCluster]:
    """A Slurm that lives as long as the block; parameters as of :class:`SlurmCluster`.

    :raises NoSlurmError: it cannot be started here.
    """
    found = SlurmCluster(gpus, slurmd_timeout_s=slurmd_timeout_s, settings=settings)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def main(words: Sequence[str]) -> None:
    nodes, gpus = int(words[0]) if words else 4, int(words[1]) if len(words) > 1 else 4
    with slurm_cluster((gpus,) * nodes) as found:
        print(f"export SLURM_CONF={found.env['SLURM_CONF']}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
