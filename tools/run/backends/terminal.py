"""A terminal on a node: a shell behind a socket in its job's folder, and what connects a terminal to it.

Run as ``python -I -S terminal.py serve COMMAND…`` it is the command of a job: it starts the shell once a
client has come, and ends with it, or when the client is gone. ``terminal.py attach FOLDER`` is that client.
It is run on the node, as the job's account: the socket is this account's alone.

The shell has a pseudo-terminal of its own, so that keys reach what runs in front of it, and all of its
processes end with the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKET = "shell.socket"
PLACE = "shell.json"
"""File that says where the shell waits for its client."""
ENV_JOB_DIR = "PLIANT_JOB_DIR"
CONNECT_S = 30.0
"""Seconds to wait for a client."""
END_S = 3.0
"""Seconds for the shell to end once its terminal is gone."""
POLL_S = 0.25
LOST = 255
"""Exit code of a client whose session ended otherwise than by its shell."""
_BLOCK = 1 << 16
_HEAD = struct.Struct("!cI")
_SIZE = struct.Struct("HHHH")
_OF_SLURM = {"slurm": b"SLURM_JOB_ID", "node": b"SLURMD_NODENAME"}


class Frames:
    """Messages over a stream: a kind, and bytes."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._left = b""
        self.unsent = b""

    def send(self, kind: bytes, data: bytes = b"") -> None:
        self.stream.sendall(_HEAD.pack(kind, len(data)) + data)

    def add(self, kind: bytes, data: bytes) -> None:
        """A message for :meth:`send_some`."""
        self.unsent += _HEAD.pack(kind, len(data)) + data

    def send_some(self) -> None:
        """Send what the other end takes without a wait."""
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.stream.send(self.unsent, socket.MSG_DONTWAIT) :]

    def receive(self) -> list[tuple[bytes, bytes]] | None:
        """The messages that have come; None: the other end is gone."""
        try:
            data = self.stream.recv(_BLOCK)
        except OSError:
            data = b""
        if not data:
            return None
        self._left += data
        messages = []
        while len(self._left) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._left)
            if length > _BLOCK:
                return None
            if len(self._left) < _HEAD.size + length:
                break
            messages.append((kind, self._left[_HEAD.size : _HEAD.size + length]))
            self._left = self._left[_HEAD.size + length :]
        return messages


@contextlib.contextmanager
def _path_in(folder: str) -> Iterator[str]:
    """A path of the socket that is short enough, whatever the folder is called."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


# On the node.


def serve(argv: list[str]) -> int:
    """Start a command in a terminal for the first client that comes, and end with it."""
    folder = os.environ[ENV_JOB_DIR]
    stream = _first_client(folder)
    if stream is None:
        print(f"no client came within {CONNECT_S:.0f} s", file=sys.stderr)
        return 1
    return Session(Frames(stream)).run(argv)


def _first_client(folder: str) -> socket.socket | None:
    with _path_in(folder) as path, socket.socket(socket.AF_UNIX) as listener:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        try:
            listener.listen(4)
            _say_where(folder)
            return _accepted(listener, time.monotonic() + CONNECT_S)
        finally:
            for name in (SOCKET, PLACE):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))


def _say_where(folder: str) -> None:
    """Write where the shell is; under Slurm in which job, which its supervisor's first environment says."""
    place = {"host": os.uname().nodename}
    with contextlib.suppress(OSError), open(f"/proc/{os.getppid()}/environ", "rb") as file:
        given = dict(each.partition(b"=")[::2] for each in file.read().split(b"\0"))
        place |= {name: given[key].decode() for name, key in _OF_SLURM.items() if key in given}
    temporary = os.path.join(folder, f"{PLACE}.tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(place, file)
    os.replace(temporary, os.path.join(folder, PLACE))


def _accepted(listener: socket.socket, until_s: float) -> socket.socket | None:
    """The first client of this account, or root's."""
    while (left_s := until_s - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            stream = listener.accept()[0]
        except TimeoutError:
            return None
        _, uid, _ = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid in (os.geteuid(), 0):
            stream.settimeout(None)
            return stream
        stream.close()
    return None


class Session:
    """A shell and its client."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._pid = self._master = -1
        # What was typed, and the shell has not read yet.
        self._typed = b""

    def run(self, argv: list[str]) -> int:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._end)
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            try:
                os.execvp(argv[0], argv)  # noqa: S606 - no shell around the shell
            except OSError as error:
                print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
                os._exit(127)
        os.set_blocking(self._master, False)
        with contextlib.suppress(OSError):  # the client is gone
            while self._turn():
                pass
        code = self._ended()
        if code is not None:
            with contextlib.suppress(OSError):
                self._frames.send(b"x", str(code).encode())
        return 0

    def _turn(self) -> bool:
        """Pass on what there is; returns False once the shell or the client is gone."""
        stream = self._frames.stream.fileno()
        reads = [self._master] + ([stream] if len(self._typed) < _BLOCK else [])
        ready, writable, _ = select.select(reads, [self._master] if self._typed else [], [], POLL_S)
        if self._master not in ready and self._shell_ended():
            return False  # what it has left in the background may hold the terminal
        if self._master in ready:
            try:
                data = os.read(self._master, _BLOCK)
            except BlockingIOError:
                data = None
            except OSError:  # no process has the terminal any more
                data = b""
            if data == b"":
                return False
            if data:
                self._frames.send(b"d", data)
        if writable:
            with contextlib.suppress(BlockingIOError):
                self._typed = self._typed[os.write(self._master, self._typed[:_BLOCK]) :]
        if stream in ready:
            messages = self._frames.receive()
            for kind, data in messages or ():
                if kind == b"d":
                    self._typed += data
                elif kind == b"w" and len(data) == _SIZE.size:
                    fcntl.ioctl(self._master, termios.TIOCSWINSZ, data)
            return messages is not None
        return True

    def _shell_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _ended(self) -> int | None:
        """Close the terminal, which hangs up what runs in it; the exit code of the shell, if it has ended."""
        with contextlib.suppress(OSError):
            os.close(self._master)
        until_s = time.monotonic() + END_S
        while time.monotonic() < until_s:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            time.sleep(0.02)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return None

    def _end(self, _number: int, _frame: object) -> None:
        """The job is to end; this may wait for a client that does not read."""
        if self._pid > 0:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGHUP)
        with contextlib.suppress(OSError):
            self._frames.stream.shutdown(socket.SHUT_RDWR)


# Where the user is.


def attach(folder: str, source: int = 0, sink: int = 1) -> int:
    """Connect a terminal to the shell of a job; returns the shell's exit code, or :data:`LOST`.

    :raises OSError: there is no such shell.
    """
    stream = socket.socket(socket.AF_UNIX)
    with _path_in(folder) as path:
        stream.connect(path)
    frames, before = Frames(stream), termios.tcgetattr(source)
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    previous = {
        number: signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP)
    }
    fd_before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in previous:
        signal.signal(number, lambda *_: None)
    try:
        tty.setraw(source)
        _send_size(frames, source)
        while (code := _passed_on(frames, source, sink, wakes)) is None:
            pass
    except OSError:
        return LOST
    else:
        return code
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(source, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(fd_before)
        for number, handler in previous.items():
            signal.signal(number, handler)
        stream.close()


def _passed_on(frames: Frames, source: int, sink: int, wakes: int) -> int | None:
    """Pass on what there is; returns the exit code once the session is over.

    No send waits here: the other end may wait itself until its output is read.

    :raises OSError: one of its ends is gone.
    """
    stream = frames.stream.fileno()
    reads = [stream, wakes] + ([source] if len(frames.unsent) < _BLOCK else [])
    ready, writable, _ = select.select(reads, [stream] if frames.unsent else [], [])
    if wakes in ready:
        if {*os.read(wakes, _BLOCK)} - {signal.SIGWINCH}:
            return LOST
        _send_size(frames, source)
    if stream in ready:
        messages = frames.receive()
        for kind, data in messages or ():
            if kind == b"x":
                return int(data)
            _write_all(sink, data)
        if messages is None:
            return LOST
    if source in ready:
        data = os.read(source, _BLOCK // 2)
        if not data:
            return LOST
        frames.add(b"d", data)
    if writable:
        frames.send_some()
    return None


def _send_size(frames: Frames, terminal: int) -> None:
    empty = _SIZE.pack(0, 0, 0, 0)
    with contextlib.suppress(OSError):
        frames.add(b"w", fcntl.ioctl(terminal, termios.TIOCGWINSZ, empty))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve(sys.argv[2:]))
    sys.exit(attach(sys.argv[2]))
