"""Start one command, wait for it, and write its exit code to a file: outcomes outlive the launcher.

Run as ``python -I -S supervisor.py CODE_FILE FOLDER COMMAND…``; the command starts in the folder. It imports
little and starts in milliseconds. SIGTERM and SIGUSR1 are passed on to the command. The code file has the
exit code, or minus the signal's number. Nothing that the command started outlives it: daemons become children
of this process and are killed before the code file is written, and so is all else in its control group.

It also keeps the command's output from filling the disk. The command has its files open, so they cannot be
renamed or cut: holes are punched where they are old. The writer notices nothing and never waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import time
from functools import partial

TYPE_CHECKING = False  # typing takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Any, Protocol

    class SetuidAccount(Protocol):
        """Another account, as which the command runs; see ``supervisor_setuid.py``."""

        env: dict[str, str]

        def start(self, argv: list[str], *, unnoticing: bool = False) -> int: ...

        def kill(self, pid: int, number: int) -> None: ...

        def drop_root(self) -> None: ...

        def as_root(self) -> AbstractContextManager[None]: ...


LOG_BYTES = 64 << 20
"""Maximum bytes of each output file on disk, unless the environment says otherwise."""
ENV_LOG_BYTES = "PLIANT_LOG_BYTES"
ENV_NOTICES = "PLIANT_NOTICES"
ENV_OUTPUT = "PLIANT_OUTPUT"
"""Variable of the supervisor: files that ``write_output.py`` writes."""
ENV_CODE = "PLIANT_CODE"
"""Variable of the supervisor: code that ``record_code.py`` records."""
_HELPERS = {ENV_OUTPUT: "write_output", ENV_CODE: "record_code"}
_HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
HELPERS_S = 5.0
"""Seconds that helpers may go on after the command has ended."""
POLL_INTERVAL_S = 0.25
MIN_POLL_INTERVAL_S = 0.01
SEARCH_INTERVAL_S = 1.0
HEARTBEAT_S = 2.0
USAGE_INTERVAL_S = 5.0
ORDER_POLL_S = 0.5
_BLOCK = 1 << 16
_OPEN = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Never waits for the other end of a pipe that a job has put there."""
_NEW = _OPEN | os.O_CREAT
_PUNCH_HOLE_AND_KEEP_SIZE = 3
_PR_SET_CHILD_SUBREAPER = 36
ENV_GROUP = "PLIANT_GROUP"
"""The control group of the command, see ``cgroup.py``. The command does not get it."""
ENV_JOB_DIR = "PLIANT_JOB_DIR"
SECRETS = "secrets.json"
"""File in a job's folder with values of variables that are written nowhere else."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
CONTAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contain.py")
_KILL_S = 10.0
"""Seconds to wait for killed processes; one that hangs in the kernel is ignored."""


def main(arguments: list[str]) -> int:
    return supervise(arguments[0], arguments[1], arguments[2:], group=os.environ.pop(ENV_GROUP, ""))


def supervise(
    code_file: str,
    folder: str,
    argv: list[str],
    *,
    order: Callable[[], int] | None = None,
    account: SetuidAccount | None = None,
    shown: str = "",
    group: str = "",
) -> int:
    """Run a command in a folder, with the environment of this process.

    :param order: asked every :data:`ORDER_POLL_S` for a signal to the command; 0 for none. With it, a SIGTERM
        is Slurm's, which sends it to all processes: it is noted in a file and not passed on. So is a SIGUSR1,
        the notice that one follows. The launcher reads of it, so the command begins with SIGUSR1 ignored.
    :param account: whose the command is; None for this process's own.
    :param shown: the place of the code file in a folder of the account's, if ``code_file`` and what lies
        beside it are only this process's. Output lies there; the exit code and the beats are copied there,
        where the account could change them.
    :param group: the control group of the command, as text; empty: it has none of its own.
    """
    kill = os.kill if account is None else account.kill
    files = SupervisorFiles(code_file, shown, account)
    child, terminated = list[int](), list[int]()

    def send(number: int) -> None:
        terminated.append(number)
        for pid in child:
            kill(pid, number)

    def take(number: int, _frame: FrameType | None) -> None:
        if order is None:
            send(number)
        else:
            with files.own():
                note(code_file, number)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGUSR1, take)
    adopt_orphans()
    beat_s, ordered_s, used_s = [time.monotonic()], [time.monotonic()], [float("-inf")]
    meter, logs, limited = use_meter(files.shown), Logs(files.shown), CommandGroup(group, account)
    helpers = Helpers(files.shown, account, limited)

    def tick(_number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if order is not None and now_s - ordered_s[0] >= ORDER_POLL_S - POLL_INTERVAL_S / 2:
            ordered_s[0] = now_s
            if ordered := files.next_order(order):
                send(ordered)
        if now_s - beat_s[0] >= HEARTBEAT_S - POLL_INTERVAL_S / 2:
            beat_s[0] = now_s
            files.write(beat)
        if meter is not None and now_s - used_s[0] >= USAGE_INTERVAL_S:
            used_s[0] = now_s
            meter.look()
        before_s = logs.next_s
        if logs.look() != before_s:
            signal.setitimer(signal.ITIMER_REAL, logs.next_s, logs.next_s)

    files.write(beat)
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, logs.next_s, logs.next_s)
    entered = False
    try:
        os.chdir(folder)
        entered = True
        with limited.inside():
            child.append(start(argv, account, unnoticing=order is not None))
    except OSError as error:
        where = "" if entered else f" in {folder}"
        print(f"{argv[0]}: cannot be started{where}: {error.strerror}", file=sys.stderr)
        return files.end(127)
    if terminated:
        kill(child[0], terminated[-1])
    helpers.start()
    end_own = partial(end_container, files.note_of_container, container_of(argv), account, limited)
    return files.end(*end_of(child, limited, helpers, kill, end_own))


def end_of(
    child: list[int],
    limited: CommandGroup,
    helpers: Helpers,
    kill: Callable[[int, int], None],
    end_own: Callable[[], None],
) -> tuple[int, dict[str, int] | None]:
    """Wait for the command, and end what is left of it; returns what :meth:`SupervisorFiles.end` takes.

    :param child: its pid, which is taken away.
    :param end_own: see :func:`end_container`.
    """
    wait_for(child[0])
    pid = child.pop()  # before it is reaped, so that no signal goes to another process with its pid
    _, status = os.waitpid(pid, 0)
    end_own()
    helpers.wait(helpers.inside)
    killed = limited.end(kill, helpers.pids)
    helpers.finish(kill)
    return os.waitstatus_to_exitcode(status), killed


class Helpers:
    """Processes that a slow file system may hold up: they write the output and the code of a unit down.

    They are forks of the supervisor with the rights of the command, which may not read Python's files. They
    start after it, and an error keeps nothing from running. What starts programs of the job's, as its Python,
    is in the group of the command.
    """

    def __init__(self, code_file: str, account: SetuidAccount | None, limited: CommandGroup) -> None:
        env = os.environ if account is None else account.env
        self._orders = {name: env.pop(name) for name in _HELPERS if name in env}
        self._code_file, self._account, self._limited = code_file, account, limited
        # Their standard input ends when this does, also if this process is killed.
        self._end = -1
        self.pids: list[int] = []
        # Those of them in the group of the command.
        self.inside: list[int] = []

    @staticmethod
    def load(env: Mapping[str, str]) -> None:
        """Import what they run; later imports of a process for another account have its rights."""
        for name, module in _HELPERS.items():
            if name in env:
                find_module(module)

    def start(self) -> None:
        if not self._orders:
            return
        attempt, unit = os.path.dirname(self._code_file), _unit(self._code_file)
        places = {
            ENV_OUTPUT: (os.path.join(attempt, "logs", unit), os.path.join(attempt, "output")),
            ENV_CODE: (os.path.join(attempt, f"code-{unit}.json"),),
        }
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # no handler of this process runs there
        try:
            reads, self._end = os.pipe()
            for name, order in self._orders.items():
                pid = os.fork()
                if pid == 0:
                    os.dup2(reads, 0)
                    self._run(_HELPERS[name], [*places[name], order], before)
                self.pids.append(pid)
                self.inside += [pid] if name == ENV_CODE else []
            os.close(reads)
        except OSError as error:
            print(f"pliant: output and code are not written down: {error.strerror}", file=sys.stderr)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self, module: str, arguments: list[str], mask: Iterable[int]) -> None:
        """Give up all that is the supervisor's, run a module's main function, and end."""
        code = 1
        try:
            os.close(self._end)
            if module == _HELPERS[ENV_CODE]:
                self._limited.join()
            if self._account is not None:
                self._account.drop_root()
                os.environ.clear()
                os.environ.update(self._account.env)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = find_module(module).main(arguments)
        except BaseException as error:  # noqa: BLE001 - the supervisor's own code is not to go on in this process
            print(f"pliant: {module}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def finish(self, kill: Callable[[int, int], None]) -> None:
        """Let them end, and wait for that, but not for long."""
        if self._end >= 0:
            os.close(self._end)
        self.wait(self.pids)
        if any(pid not in self.inside for pid in self.pids):
            print(f"pliant: output not copied: no answer for {HELPERS_S:.0f} s", file=sys.stderr, flush=True)
        end_orphans(kill)

    def wait(self, pids: Collection[int]) -> None:
        """Wait for some of them to end, but not for long."""
        deadline_s = time.monotonic() + HELPERS_S
        while (left := [pid for pid in self.pids if pid in pids]) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    if not os.waitpid(pid, os.WNOHANG)[0]:
                        continue
                self.pids.remove(pid)
            time.sleep(0.005)


class SupervisorFiles:
    """Files between a supervisor and the launcher: the code file, those next to it, and public copies."""

    def __init__(self, code_file: str, shown: str, account: SetuidAccount | None) -> None:
        self.shown = shown or code_file
        # The rights for the code file and what lies beside it.
        self.own = contextlib.nullcontext if account is None or not shown else account.as_root
        self.note_of_container = _beside(self.shown, ".container")
        self._code_file = code_file
        self._scratch = give_scratch(self.shown, os.environ if account is None else account.env)

    def next_order(self, order: Callable[[], int]) -> int:
        with self.own():
            return order()

    def write(self, write: Callable[[str], object]) -> None:
        with self.own():
            write(self._code_file)
        if self.shown != self._code_file:
            with contextlib.suppress(OSError):
                write(self.shown)

    def end(self, code: int, killed: dict[str, int] | None = None) -> int:
        """:param killed: what is known if the system killed a part of the command for its memory."""
        signal.setitimer(signal.ITIMER_REAL, 0)  # Python gives up its handlers before it has ended
        remove_scratch(self._scratch)
        if killed is not None:
            with contextlib.suppress(OSError):
                self.write(lambda path: note_memory(path, killed))
        self.write(lambda path: write_code(path, code))
        return 0


def name_of(code_file: str) -> str:
    """A name for what belongs to a unit."""
    number = 0  # a hash without an import: with an account's rights Python's files may not be there
    for byte in code_file.encode("utf-8", "surrogateescape"):
        number = (number * 0x100000001B3 ^ byte) % (1 << 64)
    return f"pliant-{number:016x}"


def scratch_of(code_file: str, env: Mapping[str, str]) -> str:
    """The folder for temporary files of a unit. Its name is short: sockets are made there."""
    return os.path.join(env.get("TMPDIR") or "/tmp", name_of(code_file))  # noqa: S108 - as tempfile does


def give_scratch(code_file: str, env: MutableMapping[str, str]) -> str:
    """Make the folder that TMPDIR names in a unit. Returns its path, or "" if it cannot be had.

    What PyTorch has compiled outlives it, as it does without.
    """
    path = scratch_of(code_file, env)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)  # of a supervisor that was killed, or of someone who wants to know
        why = "" if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() else "is not its own"
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
    if why:
        print(f"pliant: {path} cannot be used for temporary files: {why}", file=sys.stderr)
        return ""
    env.setdefault(COMPILED, os.path.join(os.path.dirname(path), f"torchinductor_{os.geteuid()}"))
    env["TMPDIR"] = path
    return path


def remove_scratch(path: str) -> None:
    """What cannot be removed stays."""
    try:
        if path:
            os.rmdir(path)
    except OSError:
        with contextlib.suppress(Exception):
            import shutil

            shutil.rmtree(path, ignore_errors=True)


def give_secrets(env: MutableMapping[str, str]) -> None:
    """Add the variables that are kept in a file of the job's folder.

    :raises OSError: the file cannot be read.
    """
    try:
        with open(os.path.join(env[ENV_JOB_DIR], SECRETS), encoding="utf-8") as file:
            import json

            env.update(json.load(file))
    except (KeyError, FileNotFoundError):
        return


def container_of(argv: Sequence[str]) -> str:
    """What ``contain.py`` is told in a command line; empty: it starts no container."""
    return next((argv[at] for at, word in enumerate(argv[:-1], 1) if word == CONTAINER), "")


def end_container(note: str, spec: str, account: SetuidAccount | None, limited: CommandGroup) -> None:
    """End a container whose client was killed, within the group: the program is from the job's PATH.

    :param note: exists as long as there may be one.
    """
    if spec and os.path.lexists(note):
        with contextlib.suppress(OSError), limited.inside():
            os.waitpid(start([sys.executable, "-I", "-S", CONTAINER, "--remove", spec], account), 0)


class CommandGroup:
    """The control group of the command. Without one, and if it cannot be had, the command runs all the same.

    :param text: what ``cgroup.py`` makes of it; empty: there is none.
    """

    def __init__(self, text: str, account: SetuidAccount | None) -> None:
        self._root = contextlib.nullcontext if account is None else account.as_root
        self._group: Any = None
        try:
            group = find_module("cgroup").UnitCgroup.parse(text) if text else None
            if group is not None:
                with self._root():
                    for fault in group.make():
                        print(f"pliant: not limited: {fault}", file=sys.stderr)
            self._group = group
        except Exception as error:  # noqa: BLE001 - the command matters more than its limits
            print(f"pliant: the command has no limits, as it has no control group: {error}", file=sys.stderr)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be in it meanwhile, so that what is started is never outside."""
        if self._group is None:
            yield
            return
        self.join()
        started = False
        try:
            yield
            started = True
        finally:
            with self._root():
                self._group.leave()
                if not started:
                    self._group.remove()

    def join(self) -> None:
        """Let this process be in it, if there is one."""
        try:
            if self._group is not None:
                with self._root():
                    self._group.join()
        except OSError as error:
            print(f"pliant: the command has no limits: {error}", file=sys.stderr)

    def end(self, kill: Callable[[int, int], None], spared: Collection[int]) -> dict[str, int] | None:
        """End all that is left of the command; returns the limit and the most that was used if the system
        killed a part of it for its memory.

        :param spared: children that are none of the command's.
        """
        if self._group is None:
            end_orphans(kill, spared=spared)
            return None
        with self._root():
            self._group.kill()
        end_orphans(kill, spared=spared)
        with self._root():
            killed: dict[str, int] | None = self._group.memory_kill()
            self._group.remove()
        if killed is not None:
            limit, peak = ((killed[name] or 0) / 2**20 for name in ("limit", "peak"))
            print(f"pliant: killed for memory: limit {limit:,.0f} MiB, peak {peak:,.0f} MiB", file=sys.stderr)
        return killed


def note_memory(code_file: str, killed: dict[str, int]) -> None:
    """Let the launcher know that the system killed the command, or a part of it, for its memory."""
    import json

    with open(os.open(_beside(code_file, ".memory"), _NEW | os.O_TRUNC, 0o600), "w") as file:
        json.dump(killed, file)


def use_meter(code_file: str) -> Any:
    """What measures the command. Returns None if it cannot be had."""
    try:
        return find_module("resource_usage").TreeMeter(
            _beside(code_file, ".use"), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        )
    except Exception as error:  # noqa: BLE001 - the command matters more than what it uses
        print(f"pliant: the use of slots is not measured: {error!r}", file=sys.stderr)
        return None


def find_module(name: str) -> Any:
    """A module of this folder, by its path, as this process has no packages."""
    import importlib

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[0]


def start(argv: list[str], account: SetuidAccount | None, *, unnoticing: bool = False) -> int:
    """Start the command; ``unnoticing``: see :func:`spawn_unnoticing`."""
    if account is not None:
        return account.start(argv, unnoticing=unnoticing)
    give_secrets(os.environ)
    return spawn_unnoticing(argv) if unnoticing else spawn(argv)


def spawn(argv: list[str]) -> int:
    return os.posix_spawnp(argv[0], argv, os.environ, setsigdef=[signal.SIGTERM, signal.SIGUSR1])


def spawn_unnoticing(argv: list[str]) -> int:
    """Start a command that ignores SIGUSR1 until it sets a handler of its own.

    A signal that comes meanwhile stays pending for this process: what is blocked is never dropped as ignored.
    """
    before = signal.getsignal(signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        env = {**os.environ, ENV_NOTICES: "1"}
        return os.posix_spawnp(argv[0], argv, env, setsigmask=[], setsigdef=[signal.SIGTERM])
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


def note(code_file: str, number: int) -> None:
    """Let the launcher know that Slurm ends this unit, or is about to."""
    ending = ".displaced" if number == signal.SIGTERM else ".notice"
    with contextlib.suppress(OSError):
        os.close(os.open(_beside(code_file, ending), _NEW, 0o600))


def beat(code_file: str) -> None:
    """Show that this process runs. A failure to do so is no reason to end."""
    path = _beside(code_file, ".alive")
    with contextlib.suppress(OSError):
        try:
            os.utime(path, follow_symlinks=False)
        except FileNotFoundError:
            os.close(os.open(path, _NEW, 0o600))


def _beside(code_file: str, ending: str) -> str:
    return os.path.join(os.path.dirname(code_file), f"unit-{_unit(code_file)}{ending}")


def _unit(code_file: str) -> str:
    return os.path.basename(code_file).removeprefix("exit-")


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, if the system can do that."""
    import ctypes

    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for(pid: int) -> None:
    """Wait until a child has ended, and reap orphans meanwhile. The timer does not interrupt it."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid == pid:
            return
        if ended is not None:
            os.waitpid(ended.si_pid, os.WNOHANG)


def end_orphans(kill: Callable[[int, int], None] | None = None, *, spared: Collection[int] = ()) -> None:
    """Kill all that is left, repeatedly: children of what is killed become children of this process.

    :param spared: children that stay.
    """
    deadline_s = time.monotonic() + _KILL_S
    while time.monotonic() < deadline_s:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        orphans = [pid for pid in children() if pid not in spared]
        if spared and not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(PermissionError):  # it runs as another user now
                (kill or os.kill)(pid, signal.SIGKILL)
        time.sleep(0.01)


def children() -> list[int]:
    """The children of this process, ended or not; they cannot vanish before it reaps them."""
    pids = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):  # no process, or gone
            continue
        if parent == os.getpid():
            pids.append(int(name))
    return pids


class Logs:
    """The output files of a command, trimmed one look at a time.

    No error does harm: the command matters more than its output.
    """

    def __init__(self, code_file: str) -> None:
        # Seconds until the next look: fewer while output grows fast.
        self.next_s = POLL_INTERVAL_S
        self._folder = os.path.join(os.path.dirname(code_file), "logs")
        self._unit, self._sizes = _unit(code_file), dict[str, int]()
        self._looked_s = self._sought_s = float("-inf")
        self._is_looking = False

    def look(self) -> float:
        """Trim what would soon be too large; returns :attr:`next_s`."""
        if self._is_looking:  # a look took longer than the time to the next one
            return self.next_s
        self._is_looking = True
        try:
            self._trim()
        except Exception as error:  # noqa: BLE001
            print(f"pliant: output is not looked after: {error!r}", file=sys.stderr)
        finally:
            self._is_looking = False
        return self.next_s

    def _trim(self) -> None:
        most, now_s = int(os.environ.get(ENV_LOG_BYTES, LOG_BYTES)), time.monotonic()
        if now_s - self._sought_s >= SEARCH_INTERVAL_S:
            self._sought_s = now_s
            self._sizes = {path: self._sizes.get(path, 0) for path in self._paths()}
        passed_s, fastest = now_s - self._looked_s, 0
        self._looked_s = now_s
        for path, before in self._sizes.items():
            try:
                self._sizes[path] = size = os.stat(path).st_size
                grown = max(0, size - before)
                fastest = max(fastest, grown)
                trim(path, most, grown)
            except OSError:  # the next look tries again
                continue
        if fastest > most // 8:
            self.next_s = max(MIN_POLL_INTERVAL_S, min(POLL_INTERVAL_S, passed_s * (most / 8) / fastest))
        else:
            self.next_s = min(POLL_INTERVAL_S, 2 * self.next_s)

    def _paths(self) -> list[str]:
        paths = [os.path.join(self._folder, f"launcher-{self._unit}.log")]
        for folder, _, names in os.walk(os.path.join(self._folder, self._unit)):
            paths += [os.path.join(folder, name) for name in names if name.endswith(".log")]
        return paths


def trim(path: str, most: int, grows: int = 0) -> None:
    """If more than ``most`` bytes of a file are on disk, or soon will be, keep the newest half of that.

    All of it goes if the file system has no holes; the writer goes on at its own place.

    :param grows: bytes by which it grows until the next look.
    """
    status = os.stat(path)
    end = (status.st_size - most // 2) // _BLOCK * _BLOCK
    if 512 * status.st_blocks + 2 * grows <= most or end <= 0:
        return
    descriptor = os.open(path, _OPEN)
    try:
        if not punch(descriptor, end):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def punch(descriptor: int, end: int) -> bool:
    """Free the first ``end`` bytes of a file. Returns whether the file system can do that.

    :raises OSError: it can, but not at the moment.
    """
    import ctypes

    allocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if allocate is None:
        return False
    hole = (ctypes.c_int(_PUNCH_HOLE_AND_KEEP_SIZE), ctypes.c_int64(0), ctypes.c_int64(end))
    if allocate(ctypes.c_int(descriptor), *hole) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))


def write_code(path: str, code: int) -> int:
    """Write the exit code as a whole or not at all, even if the job has removed its own folder."""
    temporary, jobs = f"{path}.tmp", os.path.dirname(path)
    for _ in ("attempt", "attempts", "job"):
        jobs = os.path.dirname(jobs)
    if os.path.isdir(jobs) and not os.path.isdir(os.path.dirname(path)):
        os.umask(0o077)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(temporary, _NEW | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{code}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
