"""Run one command in a container, and end as it does.

Run as ``python -I -S contain.py SPEC COMMAND…`` in the folder where the command starts, with its
environment; SPEC is JSON (:class:`Spec`). SIGTERM and SIGUSR1 are passed on. Variables go into the container
by name: their values are on no command line, where every user of the node could read them.

The command has the node's process ids, network and shared memory, and finds its folders under the same paths,
so that all who know it by them still do: its supervisor, the launcher, other workers, torchrun, DataLoaders.

A file exists as long as there may be a container. Run as ``contain.py --remove SPEC`` it ends that: a
runtime's client that is killed leaves the container behind.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType

OF_HOST = frozenset(
    {
        *("PATH", "HOME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"),
        *("XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "CONTAINER_HOST", "SLURM_CONF"),
    }
)
"""Variables that are about files and services of the node: they stay there, unless the job states them."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
ENV_CONTAINER = "PLIANT_CONTAINER"
"""The container's name: all its processes bear it."""
ENV_SLURM = "PLIANT_SLURM_STEP"
"""Job and node that a Slurm step is of: pyxis starts the container in another step."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
PROGRAMS = {"pyxis": "srun"}
NOT_STARTED = (125, 126, 127)
"""Exit codes of podman and docker for their own failures; commands may end with them, too."""
SIGNALS = frozenset(
    {
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL, signal.SIGSEGV),
        *(signal.SIGINT, signal.SIGSYS, signal.SIGTERM, signal.SIGUSR1),
    }
)
"""Signals that end commands; other codes above 128 come from scripts."""
_SELF_ENDED = re.compile(r"FATAL:|(slurmstepd|srun): error: .*(pyxis|spank)|srun: error: Unable")
"""Last words of apptainer, or of srun with pyxis, if no container started."""
_OF_CLIENT = frozenset(
    {
        *("cgroup-manager", "config", "connection", "identity", "imagestore", "module", "root", "runroot"),
        *("runtime", "storage-driver", "storage-opt", "tmpdir", "url"),
    }
)
"""Options of podman that all its commands need alike."""
_PREFIX = re.compile(
    r"^(docker: |Error: |FATAL: +|Error response from daemon: |OCI runtime error: |crun: |runc: |"
    r"runc create failed: |unable to start container process: )*"
)
_EMPTY = re.compile(r"$|(See|Run) '|Error: container create failed \(no logs from conmon\)")
"""Lines that say nothing, or that there are others."""
_LIMITED = re.compile(r"/pliant-[0-9a-f]{32}\b|/job_\d+/")
"""Control groups of a unit, by the names that pliant and Slurm give them."""
_PID_MAX = "/proc/sys/kernel/pid_max"
_OUTSIDE = ("podman", "conmon")
"""Processes of podman that take note of an end."""
_REMOVE_S = 30
_END_BYTES = 4096


class ContainerError(Exception):
    """There can be no container."""


class Spec(NamedTuple):
    """What is to run, as :func:`pliant.tools.run.service.containers.words` writes it."""

    runtime: str
    image: str
    mounts: list[str]
    options: list[str]
    stated: list[str]
    """Names of the variables that the job states."""
    folders: list[str]
    """Folders mounted at their own paths, beside the working folder."""
    note: str
    """The file that exists as long as there may be a container."""
    name: str


class Host(NamedTuple):
    """What a command line depends on, of this process and its machine."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    limits: tuple[tuple[str, int, int], ...]
    """Name of ``--ulimit``, soft and hard."""
    hooks: str
    """Folder of hooks that podman is to obey; empty: none."""
    step: str
    """Slurm's job and node, as ``12:node3``."""
    umask: int = 0o022

    @classmethod
    def here(cls, env: Mapping[str, str]) -> Host:
        os.umask(mask := os.umask(0o077))
        ids = os.getuid(), os.getgid(), tuple(os.getgroups())
        scratch, limited = env.get("TMPDIR", ""), limited_groups()
        hooks = write_hook(scratch, limited) if scratch and limited else ""
        return cls(*ids, own_limits(), hooks, env.get(ENV_SLURM, ""), mask)


def own_limits(pid_max: str = _PID_MAX) -> tuple[tuple[str, int, int], ...]:
    """The limits of this process. Runtimes have defaults of their own, which need rights."""
    raised = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        soft, hard = resource.getrlimit(number)
        if name == "nproc":  # podman takes no more than there can be
            with contextlib.suppress(OSError, ValueError), open(pid_max) as file:
                most = int(file.read())
                soft, hard = (min(each, most) if each >= 0 else most for each in (soft, hard))
        raised.append((name, soft, hard))
    return tuple(raised)


def limited_groups() -> list[str]:
    """Folders of the unit's control groups, or of Slurm's, that this process may put others into."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # this process has no packages
    own: Mapping[str, str] = importlib.import_module("cgroup").own_folders()
    folders = dict.fromkeys(filter(_LIMITED.search, own.values()))
    return [folder for folder in folders if os.access(f"{folder}/cgroup.procs", os.W_OK)]


def write_hook(scratch: str, groups: Sequence[str]) -> str:
    """Have the first process of a container put into these groups before it begins.

    podman would give it a group of its own, where no limit of the unit holds, and knows one parent for all
    controllers at most. Returns the folder of the hook, a new one: no link of others leads away.
    """
    import tempfile

    folder = tempfile.mkdtemp(prefix="hooks-", dir=scratch)
    args = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--join", *groups]
    hook = {"version": "1.0.0", "when": {"always": True}, "stages": ["prestart"]}
    with open(os.path.join(folder, "join.json"), "x") as file:
        json.dump({**hook, "hook": {"path": sys.executable, "args": args}}, file)
    return folder


def join(groups: Sequence[str], state: str) -> None:
    """Put the process that a runtime is about to start into groups.

    :param state: what the runtime says of it on standard input.
    """
    for group in groups:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(json.loads(state)["pid"]))


class Launch(NamedTuple):
    """A container to start, and what starts it."""

    spec: Spec
    env: Mapping[str, str]
    """Environment of the command."""
    cwd: str
    host: Host
    mounts: list[tuple[str, str, str]]
    """Source, target, and ro or rw."""

    @classmethod
    def of(cls, spec: Spec, env: Mapping[str, str], cwd: str, host: Host) -> Launch:
        """:raises ContainerError: something cannot be mounted."""
        asked = [*spec.folders, cwd, env.get("TMPDIR", ""), env.get(COMPILED, "")]
        own = dict.fromkeys(folder for folder in asked if folder not in ("", "/") and os.path.isdir(folder))
        mounts = [(folder, folder, "rw") for folder in own]
        mounts += [mount_of(text, cwd) for text in spec.mounts]
        for source, target, _ in mounts:
            if any(sign in source + target for sign in ":,"):
                raise ContainerError(f"{source} cannot be mounted: its path has a colon or a comma")
        return cls(spec, env, cwd, host, mounts)

    @property
    def names(self) -> list[str]:
        """The variables that go into the container."""
        return sorted(name for name in self.env if name not in OF_HOST or name in self.spec.stated)

    @property
    def has_gpus(self) -> bool:
        return bool(self.env.get(VISIBLE))

    def words(self, command: Sequence[str]) -> list[str]:
        """The command line, the name of the program first.

        :raises ContainerError: the runtime cannot do that here.
        """
        build = {"podman": _podman, "docker": _docker, "apptainer": _apptainer, "pyxis": _pyxis}
        return [*build[self.spec.runtime](self), *command]

    def client_environment(self) -> dict[str, str]:
        """The environment of the program: apptainer takes variables from it under other names."""
        if self.spec.runtime != "apptainer":
            return dict(self.env)
        given = {f"APPTAINERENV_{name}": self.env[name] for name in self.names}
        return {**{name: value for name, value in self.env.items() if name in OF_HOST}, **given}


def mount_of(text: str, cwd: str) -> tuple[str, str, str]:
    """:raises ContainerError: there is nothing to mount."""
    source, *rest = text.split(":")
    path = os.path.normpath(os.path.join(cwd, source))
    if not os.path.exists(path):
        raise ContainerError(f"no such file or folder to mount: {path}")
    return path, rest[0] if rest else path, rest[1] if rest[1:] else "rw"


def _shared(launch: Launch) -> list[str]:
    """What podman and docker are told alike: the node's own everything, and the command as it is."""
    host = launch.host
    return [
        *("run", f"--name={launch.spec.name}", "--entrypoint=", f"--workdir={launch.cwd}"),
        *("--network=host", "--pid=host", "--ipc=host", "--security-opt=label=disable"),
        f"--user={host.uid}:{host.gid}",
        *(f"--ulimit={name}={soft}:{hard}" for name, soft, hard in host.limits),
        *(f"--volume={':'.join(mount)}" for mount in launch.mounts),
        *(f"--env={name}" for name in launch.names),
    ]


def _podman(launch: Launch) -> list[str]:
    """Output goes to the files of this process by ``passthrough``: nothing relays it."""
    return [
        *("podman", *_shared(launch), "--log-driver=passthrough", "--cgroups=no-conmon"),
        *([f"--hooks-dir={launch.host.hooks}"] if launch.host.hooks else []),
        *(f"--umask={launch.host.umask:04o}", *(["--userns=keep-id"] if launch.host.uid else [])),
        *(["--device=nvidia.com/gpu=all"] if launch.has_gpus else []),
        *(*launch.spec.options, launch.spec.image),
    ]


def _docker(launch: Launch) -> list[str]:
    """An id without an account in the image has / as its home, where nothing can be written."""
    host, scratch = launch.host, launch.env.get("TMPDIR", "")
    homeless = host.uid and scratch and "HOME" not in launch.spec.stated
    return [
        *("docker", *_shared(launch), "--log-driver=none"),
        *(f"--group-add={group}" for group in host.groups),
        *([f"--env=HOME={scratch}"] if homeless else []),
        *(["--gpus=all"] if launch.has_gpus else []),
        *(*launch.spec.options, launch.spec.image),
    ]


def _apptainer(launch: Launch) -> list[str]:
    return [
        *("apptainer", "exec", "--cleanenv", f"--pwd={launch.cwd}"),
        *(f"--bind={':'.join(mount)}" for mount in launch.mounts),
        *(["--nv"] if launch.has_gpus else []),
        *(*launch.spec.options, launch.spec.image),
    ]


def _pyxis(launch: Launch) -> list[str]:
    """A step of the same job on the same node, as pyxis is a plugin of srun.

    srun tells a step all GPUs of the job, so those of the unit are said behind it.
    """
    job, _, node = launch.host.step.partition(":")
    if not node:
        raise ContainerError("pyxis is a plugin of Slurm, and this is no step of Slurm: name another runtime")
    mounts = ",".join(":".join(mount if mount[2] == "ro" else mount[:2]) for mount in launch.mounts)
    return [
        *("srun", f"--jobid={job}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0"),
        *("--export=ALL", f"--chdir={launch.cwd}", f"--container-image={launch.spec.image}"),
        *(f"--container-workdir={launch.cwd}", f"--container-mounts={mounts}"),
        *(f"--container-env={','.join(launch.names)}", "--no-container-entrypoint", *launch.spec.options),
        *("env", f"{VISIBLE}={launch.env.get(VISIBLE, '')}"),
    ]


def of_client(options: Sequence[str]) -> list[str]:
    """Those of the options that also the commands need that look for a container, or remove it."""
    kept, takes_next = list[str](), False
    for option in options:
        name, _, value = option.partition("=")
        if takes_next or name.removeprefix("--") in _OF_CLIENT:
            kept.append(option)
            takes_next = not takes_next and not value
    return kept


class Running:
    """The client of a container, from its start to its end."""

    def __init__(self, spec: Spec) -> None:
        self._spec, self._pid = spec, 0
        self._sent = 0
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._sent = number
        if self._pid and self._spec.runtime == "pyxis":  # srun would end the step
            send(first_of(self._spec.name), number)
        elif self._pid:
            os.kill(self._pid, number)

    def wait(self, argv: list[str], env: Mapping[str, str]) -> int:
        """Start the client, and wait for it; returns its exit code, negative for a signal.

        :raises OSError: it cannot be started.
        """
        self._pid = os.posix_spawnp(argv[0], argv, env, setsigdef=[signal.SIGTERM, signal.SIGUSR1])
        if self._sent:
            self._pass_on(self._sent, None)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)


def main(arguments: list[str]) -> int:
    if arguments[0] == "--remove":
        remove(Spec(**json.loads(arguments[1])))
        return 0
    if arguments[0] == "--join":
        join(arguments[1:], sys.stdin.read())
        return 0
    spec, command = Spec(**json.loads(arguments[0])), arguments[1:]
    os.environ[ENV_CONTAINER] = spec.name
    start, hooks = end_of(2), ""
    running = Running(spec)
    try:
        program = find_program(PROGRAMS.get(spec.runtime, spec.runtime), os.environ)
        host = Host.here(os.environ)
        hooks = host.hooks
        launch = Launch.of(spec, os.environ, os.getcwd(), host)
        client = [program, *of_client(spec.options)]
        os.close(os.open(spec.note, os.O_WRONLY | os.O_CREAT, 0o600))
        code = running.wait([program, *launch.words(command)[1:]], launch.client_environment())
        why = output_since(start) if failed_itself(spec, client, code, start) else ""
    except (ContainerError, OSError) as error:
        code, why = 127, str(error)
    if why:
        text = f"ContainerError: {spec.runtime} did not start {spec.image}: {why}"
        print(text, file=sys.stderr, flush=True)
    remove(spec)
    if hooks:
        shutil.rmtree(hooks, ignore_errors=True)
    if code < 0 or code - 128 in SIGNALS:
        end_by(-code if code < 0 else code - 128)
    return code


def end_by(number: int) -> None:
    """End by a signal, as the command did; runtimes say so by a code above 128."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def find_program(name: str, env: Mapping[str, str]) -> str:
    """:raises ContainerError: the node has none."""
    program = shutil.which(name, path=env.get("PATH")) or shutil.which(name, path=DEFAULT_PATH)
    if program is None:
        raise ContainerError(f"there is no {name} on {socket.gethostname()}")
    return program


def failed_itself(spec: Spec, client: Sequence[str], code: int, start: int) -> bool:
    """Whether an exit code is the runtime's, because there was no container."""
    if spec.runtime not in ("podman", "docker"):
        return code != 0 and _SELF_ENDED.match(last_line(start)) is not None
    if code not in NOT_STARTED:
        return False
    shown = output([*client, "inspect", "--type=container", "--format={{.State.StartedAt}}", spec.name])
    return shown.startswith("0001") or not shown.strip()


def output_since(start: int) -> str:
    """What the client said last, without what it puts before each message."""
    return _PREFIX.sub("", last_line(start)) or "it does not say why"


def last_line(start: int) -> str:
    """The last line on standard error that says something, of those after a place in its file."""
    with contextlib.suppress(OSError), open("/proc/self/fd/2", "rb") as file:
        file.seek(max(start, end_of(file.fileno()) - _END_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        telling = [line for each in lines if not _EMPTY.match(line := each.strip())]
        return telling[-1] if telling else ""
    return ""


def end_of(descriptor: int) -> int:
    """The size of a file that is open; 0 if it is none."""
    return os.fstat(descriptor).st_size


def output(argv: list[str]) -> str:
    """What a command says; nothing if it fails."""
    import subprocess

    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_REMOVE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def removal(spec: Spec) -> list[str]:
    """The command that ends the container.

    :raises ContainerError: the node has no such program.
    """
    at_once = ("--ignore", "--time=0") if spec.runtime == "podman" else ()
    program = find_program(spec.runtime, os.environ)
    return [program, *of_client(spec.options), "rm", "--force", *at_once, spec.name]


def remove(spec: Spec) -> None:
    """End a container, and what is left of its processes; harmless if there is none.

    Its own processes first: runtimes look for them in the control group that they have made.
    """
    if not os.path.lexists(spec.note):
        return
    inside = [pid for pid in found_processes(spec.name) if _stat(pid)[0] not in _OUTSIDE]
    send(inside, signal.SIGKILL)
    with contextlib.suppress(ContainerError):
        if spec.runtime in ("podman", "docker"):
            output(removal(spec))
    send(found_processes(spec.name), signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.unlink(spec.note)


def found_processes(name: str) -> Iterator[int]:
    """Ids of the processes that bear the name of a container, except this one and its client."""
    mark = f"{ENV_CONTAINER}={name}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) in (os.getpid(), os.getppid()):
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                yield int(entry)


def first_of(name: str) -> list[int]:
    """Processes of a container whose parent is none of them: what srun has started, on whichever way."""
    known = {pid: stat for pid in found_processes(name) if (stat := _stat(pid))[0] != "srun"}
    return [pid for pid, (_, parent) in known.items() if parent not in known]


def _stat(pid: int) -> tuple[str, int]:
    """The name of a process, and its parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, tail = file.read().decode(errors="replace").rpartition(")")
        return head.partition("(")[2], int(tail.split()[1])
    except (OSError, IndexError, ValueError):
        return "", 0


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
