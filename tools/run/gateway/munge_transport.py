"""Requests of other hosts of a Slurm cluster: files that a credential of munge vouches for.

A client puts ``letters/NAME.letter`` into a folder where all may put files and none can list or replace
those of others (1733). The gateway takes it, asks munge whose it is, answers as at the socket, and writes
``answers/NAME``, which is that account's alone and which root's credential vouches for. A request file names
the state directory and itself in the credential: a copy of it, under any name or elsewhere, is refused.

On every host of a Slurm cluster munge says which account made a credential. The credential holds its subject
and the digest of the data, so it is valid for nothing else. munge refuses a used or an expired credential.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pliant.schemas.errors import BadInputError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import atomic_write, make_folder
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.protocol import as_line, error_document, with_value
from pliant.tools.run.statedir.directory import ROOT, StateDir

CREDENTIAL_TTL_S: Final = 60
"""Maximum age of a credential."""
MUNGE_TIMEOUT_S: Final = 30.0
"""Response timeout of munged."""


class _Credential(NamedTuple):
    """What a credential says."""

    uid: int
    credential_subject: dict[str, str]


@dataclass(frozen=True, slots=True)
class Munge:
    """:param socket: of munged; empty for its usual one."""

    socket: str = ""

    def encode(self, data: bytes, credential_subject: dict[str, str], *, only_for: int | None = None) -> str:
        """A credential of this account for some bytes.

        :param only_for: no other account can read it.
        :raises ServiceMissingError: munge does not answer.
        """
        payload = json.dumps({**credential_subject, "sha256": _digest(data)})
        restricted = () if only_for is None else (f"--restrict-uid={only_for}",)
        words = ["munge", f"--ttl={CREDENTIAL_TTL_S}", *restricted, *self._socket()]
        done = self._call(words, payload)
        if done.returncode:
            raise ServiceMissingError(f"munge does not work here: {done.stderr.strip()}")
        return done.stdout.strip()

    def decode(self, credential: str) -> _Credential:
        """Whose a credential is. It counts once.

        :raises UsageError: munge refuses it: it was used, is too old, or is no credential.
        :raises ServiceMissingError: munge does not answer.
        """
        words = ["unmunge", "--keys=STATUS,UID,TTL", *self._socket()]
        done = self._call(words, credential)
        head, _, payload = done.stdout.partition("\n\n")
        said = dict(line.split(":", 1) for line in head.splitlines() if ":" in line)
        if done.returncode:
            why = done.stderr.strip() or said.get("STATUS", "").strip() or f"code {done.returncode}"
            raise UsageError(f"munge refuses the credential: {why}")
        if not 0 < int(said["TTL"]) <= CREDENTIAL_TTL_S:
            raise UsageError(f"munge refuses the credential: it lives longer than {CREDENTIAL_TTL_S} s")
        try:
            credential_subject = json.loads(payload)
        except (ValueError, RecursionError):
            credential_subject = None
        if not isinstance(credential_subject, dict):
            raise UsageError("munge's credential is about something else")
        uid = int(said["UID"].rpartition("(")[2].rstrip(") "))  # after the name, if it has one
        return _Credential(uid, {str(name): str(value) for name, value in credential_subject.items()})

    def check(self, credential: str, data: bytes, credential_subject: dict[str, str]) -> int:
        """The account that vouches for these bytes; raises as :meth:`decode`."""
        decoded = self.decode(credential)
        if decoded.credential_subject != {**credential_subject, "sha256": _digest(data)}:
            raise UsageError("munge's credential is about something else")
        return decoded.uid

    def _socket(self) -> tuple[str, ...]:
        return (f"--socket={self.socket}",) if self.socket else ()

    @staticmethod
    def _call(words: list[str], given: str) -> subprocess.CompletedProcess[str]:
        if shutil.which(words[0]) is None:
            raise ServiceMissingError(f"{words[0]} is not installed here")
        try:
            return subprocess.run(
                words, input=given, capture_output=True, text=True, check=False, timeout=MUNGE_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise ServiceMissingError("munge does not answer: is munged there?") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


REQUEST_SUFFIX: Final = ".letter"
POLL_INTERVAL_S: Final = 0.2
MAX_REQUESTS_PER_POLL: Final = 256
"""Maximum request files taken at one poll."""
MAX_OVERHEAD_BYTES: Final = 4096
"""Maximum bytes of a request file, beside its request."""
MAX_REPLY_BYTES: Final = 16 << 20
"""Maximum bytes of a reply that has pieces at the socket."""
RESPONSE_TIMEOUT_S: Final = 45.0
"""Response timeout."""
REPLY_TTL_S: Final = 600.0
"""Seconds after which a reply that was not fetched is removed."""
_log = logging.getLogger("pliant")


class RequestGate(Protocol):
    """The gateway, as both transports use it."""

    def enter(self, who: Caller) -> dict[str, Any] | None: ...
    def leave(self, who: Caller, cpu_s: float) -> None: ...
    def most_bytes(self, who: Caller) -> int: ...
    def answer(self, line: bytes, who: Caller) -> bytes | Iterator[bytes]: ...
    def refused(self, who: Caller, error: PliantError) -> PliantError: ...


class MungeListener:
    """Takes request files and answers them in threads."""

    def __init__(self, dirs: StateDir, gate: RequestGate, munge: Munge) -> None:
        self._dirs = dirs
        self._requests, self._replies = requests_folder(dirs), replies_folder(dirs)
        self._gate = gate
        self._munge = munge
        self._swept_s = 0.0

    def open(self) -> None:
        """:raises PliantError: the folders cannot be made, or munge does not work."""
        self._munge.decode(self._munge.encode(b"", {}))
        for folder, mode in ((self._requests, 0o1733), (self._replies, 0o711)):
            make_folder(folder)
            os.chmod(folder, mode)
        what = {"host": os.uname().nodename, "socket": self._munge.socket}
        atomic_write(address_file(self._dirs), json.dumps(what).encode() + b"\n", mode=0o644)
        os.chmod(address_file(self._dirs), 0o644)

    def serve(self, closing: threading.Event) -> None:
        while not closing.wait(POLL_INTERVAL_S):
            try:
                self.look()
            except OSError as error:
                _log.warning("gateway: munge: %s", error)

    def look(self) -> None:
        """Take the request files that are there."""
        with os.scandir(self._requests) as entries:
            names = [entry.name for _, entry in zip(range(MAX_REQUESTS_PER_POLL), entries, strict=False)]
        for name in names:
            if name.endswith(REQUEST_SUFFIX):
                self._take(self._requests / name)
        if time.monotonic() - self._swept_s > REPLY_TTL_S:
            self._swept_s = time.monotonic()
            for folder in (self._requests, self._replies):
                _sweep(folder)

    def _take(self, path: Path) -> None:
        """Take one request file; delete anything but a regular file with one link."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            _remove(path)
            return
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            who = Caller.of(status.st_uid)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                self._gate.refused(who, UsageError("a letter that is a link or no plain file"))
                _remove(path)
                return
            refusal = self._gate.enter(who)
            data = b"" if refusal else file.read(self._gate.most_bytes(who) + MAX_OVERHEAD_BYTES + 1)
        _remove(path)
        if refusal is not None:
            self._write(path.stem, who, as_line(refusal))
            return
        threading.Thread(target=self._attend, args=(path.stem, data, who), daemon=True).start()

    def _attend(self, name: str, data: bytes, who: Caller) -> None:
        try:
            self._write(name, who, self._answer(name, data, who))
        except Exception:  # noqa: BLE001 - one request, of one account
            _log.exception("gateway: a request of %s by munge met an error", who.account)
        finally:
            self._gate.leave(who, time.thread_time())

    def _answer(self, name: str, data: bytes, who: Caller) -> bytes:
        try:
            line = self._opened(name, data, who)
            answered = self._gate.answer(line, who)
            return reply_of(answered)
        except PliantError as error:
            return as_line(error_document(error))

    def _opened(self, name: str, data: bytes, who: Caller) -> bytes:
        """The request in a file.

        :raises PliantError: munge does not say that it is of the account whose file it is.
        """
        try:
            if len(data) > self._gate.most_bytes(who) + MAX_OVERHEAD_BYTES:
                raise BadInputError(f"the request has more than {self._gate.most_bytes(who):,} bytes")
            try:
                letter = json.loads(data)
                line, credential = str(letter["request"]).encode(), str(letter["credential"])
            except (ValueError, TypeError, LookupError, RecursionError):
                raise BadInputError("a letter that is none") from None
            uid = self._munge.check(credential, line, credential_subject(self._dirs, name))
            if uid != who.uid:
                raise UsageError(f"munge says it is of user {uid}, and the file is of user {who.uid}")
        except PliantError as error:
            raise self._gate.refused(who, error) from error
        return line

    def _write(self, name: str, who: Caller, answer: bytes) -> None:
        """Put an answer where only its account can read it."""
        credential = self._munge.encode(answer, credential_subject(self._dirs, name), only_for=who.uid)
        letter = as_line({"credential": credential, "answer": answer.decode()})
        temporary = self._replies / f".{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(letter)
            os.fchown(descriptor, who.uid, who.gid)
        os.rename(temporary, self._replies / name)


@contextmanager
def munge_listener(dirs: StateDir, gate: RequestGate, socket: str | None) -> Iterator[None]:
    """Serve other hosts, too, if there is a munge.

    :param socket: of munged, empty for its usual one; None: only this host can ask.
    :raises PliantError: munge does not work, or the folders cannot be made.
    """
    _remove(address_file(dirs))
    if socket is None:
        yield
        return
    listener, closing = MungeListener(dirs, gate, Munge(socket)), threading.Event()
    listener.open()
    thread = threading.Thread(target=listener.serve, args=(closing,), name="letters", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
        _remove(address_file(dirs))


def reply_of(found: bytes | Iterator[bytes]) -> bytes:
    """An answer as one value; pieces are text then.

    :raises UsageError: they have no end, or are too many.
    """
    if isinstance(found, bytes):
        return with_value(found)
    data = bytearray()
    for piece in found:
        if not piece:
            raise UsageError("this goes on, and works only on the host of the run: leave -f out there")
        data += piece
        if len(data) > MAX_REPLY_BYTES:
            raise UsageError(f"this is more than {MAX_REPLY_BYTES >> 20} MiB: ask for less with --tail")
    return with_value(json.dumps(data.decode("utf-8", "surrogateescape")).encode())


def send(dirs: StateDir, line: bytes, munge: Munge) -> bytes:
    """Send a request as a file, and wait for its reply.

    :raises PliantError: no answer of root's came.
    """
    name = secrets.token_hex(16)
    credential = munge.encode(line, credential_subject(dirs, name))
    letter = requests_folder(dirs) / f"{name}{REQUEST_SUFFIX}"
    draft = letter.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(as_line({"credential": credential, "request": line.decode()}))
    os.rename(draft, letter)
    until_s, path = time.monotonic() + RESPONSE_TIMEOUT_S, replies_folder(dirs) / name
    while not os.path.lexists(path):
        if time.monotonic() > until_s:
            with suppress(FileNotFoundError):
                letter.unlink()
                raise ServiceMissingError(f"no run answers at {dirs.path} now, and nothing was done")
            text = "the run has taken the request and does not answer: see pliant status whether it was done"
            raise ServiceMissingError(text)
        os.listdir(dirs.door)  # so that a network file system looks again
        time.sleep(POLL_INTERVAL_S)
    reply = json.loads(path.read_bytes())
    answer = str(reply["answer"]).encode()
    if (uid := munge.check(str(reply["credential"]), answer, credential_subject(dirs, name))) != ROOT:
        raise UsageError(f"user {uid} answered, and a run of root should: do not use this state directory")
    return answer


def credential_subject(dirs: StateDir, name: str) -> dict[str, str]:
    """Subject of a credential, without the digest."""
    return {"state": str(dirs.path), "letter": name}


def requests_folder(dirs: StateDir) -> Path:
    return dirs.door / "letters"


def replies_folder(dirs: StateDir) -> Path:
    return dirs.door / "answers"


def address_file(dirs: StateDir) -> Path:
    """The file with the host and the munge socket of the run."""
    return dirs.door / "munge.json"


def munge_for(dirs: StateDir) -> Munge | None:
    """How to ask from another host than the run's. Returns None on that host, or without this transport."""
    try:
        address = json.loads(address_file(dirs).read_bytes())
        return None if address["host"] == os.uname().nodename else Munge(str(address["socket"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _sweep(folder: Path) -> None:
    """Remove old files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > REPLY_TTL_S:
                    os.unlink(entry.path)
