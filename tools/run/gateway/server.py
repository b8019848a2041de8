"""Process of the gateway: it listens, finds out who asks, and limits each account.

It is the run's child and ends with it. The loop of the run does not share its time: requests are written to
the spool, as any process of root's could do. Each connection has a thread and limits: requests in a time,
connections at one time, bytes, and the time for a request to be there. A refused connection costs no thread.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pliant.schemas.errors import BadInputError, LockedError, PliantError
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.text import counted, harmless
from pliant.tools.run.gateway.caller import Caller, peer_of
from pliant.tools.run.gateway.handlers import RequestHandlers
from pliant.tools.run.gateway.munge_transport import munge_listener
from pliant.tools.run.gateway.permissions import AccountLimits, RolesFile
from pliant.tools.run.gateway.protocol import (
    REQUEST,
    REQUEST_TIMEOUT_S,
    SEND_TIMEOUT_S,
    as_line,
    error_document,
    gateway_address,
    last_piece,
    piece,
    read_line,
    with_value,
)
from pliant.tools.run.statedir.directory import StateDir

BACKLOG: Final = 512
MAX_CONNECTIONS: Final = 512
"""Maximum connections of all accounts."""
REFUSAL_LOG_LIMITS: Final = AccountLimits(burst=30, requests_per_second=0.1)
"""Rate of log lines about refusals of one account."""
RETRY_AFTER_S: Final = 1.0
MAX_TRACKED_ACCOUNTS: Final = 10_000
"""Maximum accounts whose requests are counted at a time."""
MAX_CORE_SHARE: Final = 0.5
"""Share of a core that the requests of one account may use."""
ACCOUNT_IDLE_S: Final = 600.0
_log = logging.getLogger("pliant")


@dataclass(slots=True)
class TokenBucket:
    """How many requests an account may make now: they come back with time, up to a burst."""

    left: float
    at_s: float

    def take(self, limits: AccountLimits, now_s: float) -> bool:
        gained = (now_s - self.at_s) * limits.requests_per_second
        self.left, self.at_s = min(float(limits.burst), self.left + gained), now_s
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def charge(self, limits: AccountLimits, cpu_s: float) -> None:
        """Count what a request has cost: its account gets no more than a part of a core in the long run."""
        self.left -= cpu_s * limits.requests_per_second / MAX_CORE_SHARE

    def wait_s(self, limits: AccountLimits) -> float:
        """After how long the next request is taken."""
        return max(0.0, 1 - self.left) / limits.requests_per_second


class RefusalLog:
    """A line for each refusal; of an account that is refused all the time a few, and how many there were."""

    def __init__(self) -> None:
        self._lines: dict[int, TokenBucket] = {}
        self._left_out: Counter[int] = Counter()
        self._lock = threading.Lock()

    def note(self, who: Caller, text: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            if len(self._lines) > MAX_TRACKED_ACCOUNTS:
                self._lines.clear()
                self._left_out.clear()
            if not self._lines.setdefault(who.uid, TokenBucket(REFUSAL_LOG_LIMITS.burst, now_s)).take(
                REFUSAL_LOG_LIMITS, now_s
            ):
                self._left_out[who.uid] += 1
                return
            count = self._left_out.pop(who.uid, 0)
        more = f" (and {counted(count, 'time')} before)" if count else ""
        _log.warning("gateway: %s: refused: %s%s", who.account, harmless(text), more)


class GatewayServer:
    """Serves the requests of other accounts until it is closed."""

    def __init__(self, answers: RequestHandlers, roles: RolesFile) -> None:
        self._answers = answers
        self._roles = roles
        self._allowances: dict[int, TokenBucket] = {}
        self._open: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._complaints = RefusalLog()

    def serve(self, listening: socket.socket, is_over: Callable[[float], bool]) -> None:
        """:param is_over: waits for a connection at most that long; returns whether the gateway is closed."""
        listening.setblocking(False)
        while not is_over(1.0):
            while True:
                try:
                    connection, _ = listening.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    break
                except OSError as error:  # out of descriptors: those that are open will end
                    _log.warning("gateway: %s", error)
                    time.sleep(0.1)
                    break
                try:
                    self._admit(connection)
                except OSError:
                    connection.close()

    def _admit(self, connection: socket.socket) -> None:
        who = Caller.of(peer_of(connection).uid)
        refusal = self.enter(who)
        if refusal is not None:
            with closing(connection):
                connection.setblocking(False)
                connection.send(as_line(refusal))
            return
        threading.Thread(target=self._attend, args=(connection, who), daemon=True).start()

    def enter(self, who: Caller) -> dict[str, Any] | None:
        """Count a request of an account as begun; returns the answer to one that is above a limit."""
        refusal, wait_s = self._refusal(who, self._limits(who))
        if not refusal:
            return None
        self._complaints.note(who, refusal)
        return {**error_document(LockedError(f"{refusal}: try again in a moment")), "wait_s": wait_s}

    def leave(self, who: Caller, cpu_s: float) -> None:
        """Count it as over."""
        limits = self._limits(who)
        cpu_s += self._answers.spent_s(who.uid)
        with self._lock:
            if who.uid in self._allowances:
                self._allowances[who.uid].charge(limits, cpu_s)
            self._open[who.uid] -= 1
            if not self._open[who.uid]:
                del self._open[who.uid]

    def most_bytes(self, who: Caller) -> int:
        return self._limits(who).request_bytes

    def answer(self, line: bytes, who: Caller) -> bytes | Iterator[bytes]:
        """The answer to a request.

        :raises PliantError: it is refused; the log says so.
        """
        try:
            request, limits = REQUEST.validate_json(line), self._limits(who)
            with self._lock:
                if who.uid in self._allowances:
                    self._allowances[who.uid].left -= request.counts_as - 1
            return self._answers.to(request, who, self._roles(), limits)
        except ValidationError as error:
            raise self.refused(who, BadInputError(problems_of(error, "request")[:1])) from error
        except PliantError as error:
            raise self.refused(who, error) from error

    def refused(self, who: Caller, error: PliantError) -> PliantError:
        """The error, of which a line is in the log from now on."""
        self._complaints.note(who, (str(error).splitlines() or [""])[0])
        return error

    def _limits(self, who: Caller) -> AccountLimits:
        return self._roles().limits_for(who.account)

    def _refusal(self, who: Caller, limits: AccountLimits) -> tuple[str, float]:
        """Why a connection is refused, and for how long; empty if it counts as open from now on."""
        now_s = time.monotonic()
        with self._lock:
            if len(self._allowances) > MAX_TRACKED_ACCOUNTS:
                self._allowances = {
                    uid: each for uid, each in self._allowances.items() if now_s - each.at_s < ACCOUNT_IDLE_S
                }
            allowance = self._allowances.setdefault(who.uid, TokenBucket(limits.burst, now_s))
            if not allowance.take(limits, now_s):
                text = f"more than {limits.requests_per_second:g} requests a second from {who.name}"
                return text, allowance.wait_s(limits)
            if self._open[who.uid] >= limits.connections:
                return f"{limits.connections} connections of {who.name} are open", RETRY_AFTER_S
            if self._open.total() >= MAX_CONNECTIONS:
                return f"{MAX_CONNECTIONS} connections are open", RETRY_AFTER_S
            self._open[who.uid] += 1
        return "", 0.0

    def _attend(self, connection: socket.socket, who: Caller) -> None:
        try:
            with closing(connection), suppress(OSError):
                self._serve(connection, who)
        except Exception:  # noqa: BLE001 - one request, of one account
            _log.exception("gateway: a request of %s met an error that is a bug in pliant", who.account)
        finally:
            self.leave(who, time.thread_time())

    def _serve(self, connection: socket.socket, who: Caller) -> None:
        try:
            answer = self.answer(self._read(connection, who), who)
        except PliantError as error:
            connection.settimeout(SEND_TIMEOUT_S)
            connection.sendall(as_line(error_document(error)))
            return
        connection.settimeout(SEND_TIMEOUT_S)
        if isinstance(answer, Iterator):
            connection.sendall(as_line({"ok": True, "pieces": True}))
            _pass_on(connection, answer)
        else:
            connection.sendall(with_value(answer))

    def _read(self, connection: socket.socket, who: Caller) -> bytes:
        try:
            return read_line(connection, self.most_bytes(who), REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise self.refused(
                who, BadInputError(f"no request came within {REQUEST_TIMEOUT_S:g} s")
            ) from None
        except ValueError as error:
            raise self.refused(who, BadInputError(str(error))) from error


def _pass_on(connection: socket.socket, pieces: Iterator[bytes]) -> None:
    """Send pieces until they end or the client leaves."""
    error: PliantError | None = None
    try:
        for data in pieces:
            connection.sendall(piece(data))
            if not data and select.select([connection], [], [], 0)[0]:
                return
    except PliantError as found:
        error = found
    connection.sendall(last_piece(error))


def listen(dirs: StateDir) -> socket.socket:
    """The socket of the gateway, in the place of one that an earlier run left."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with gateway_address(dirs) as address:
        with suppress(FileNotFoundError):
            os.unlink(address)
        listening.bind(address)
        os.chmod(address, 0o666)  # noqa: S103 - all may ask; who asks, the kernel says
    listening.listen(BACKLOG)
    return listening


def main(state: str, roles: str = "", munge: str | None = None) -> int:
    """Serve the gateway of a state directory until stdin ends; a byte on stdout says that it is open.

    :param munge: the socket of munged, empty for its usual one; None: only this host can ask.
    """
    _log.handlers = [logging.StreamHandler()]  # the run puts its own words before each line
    dirs = StateDir(Path(state))
    os.setgroups([])
    try:
        in_force = RolesFile(Path(roles) if roles else None)
        gateway = GatewayServer(RequestHandlers(dirs), in_force)
        with closing(listen(dirs)) as listening, munge_listener(dirs, gateway, munge):
            os.write(1, b"!")

            def is_over(within_s: float) -> bool:
                ready, _, _ = select.select([0, listening.fileno()], [], [], within_s)
                return 0 in ready and not os.read(0, 1)

            gateway.serve(listening, is_over)
    except (PliantError, OSError) as error:
        print(error, file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    logging.shutdown()
    os._exit(code)  # threads that wait for slow clients end with it
