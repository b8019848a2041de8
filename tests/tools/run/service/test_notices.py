"""Notices reach a server that hangs, fails and comes back, and a command; none is lost over restarts."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.cluster import Notify
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.service import notices
from pliant.tools.run.service.notices import Notices, passed_by_all
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.slot_faults import UNTIL_RESUMED_S
from tests.builders import job

RETRY_S = (0.02, 0.05)


class Server:
    """A web server that answers each request as ``mood`` says."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.mood: Callable[[int], int] = lambda _number: 200
        self.requests, outer = 0, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests += 1
                code = outer.mood(outer.requests)
                if code == 200:
                    outer.taken.append(body)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, seconds in (("POLL_S", 0.02), ("TIMEOUT_S", 0.3), ("WAITING_POLL_S", 0.02)):
        monkeypatch.setattr(notices, name, seconds)
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


@contextmanager
def log_of(folder: Path) -> Iterator[tuple[StateDir, Callable[..., None]]]:
    """A state directory, and what appends events to its log."""
    dirs = StateDir(folder)
    began = {"policy": "fifo", "simulated": False, "trace_hash": "0" * 64, "pliant_version": "1"}
    writer = EventWriter(dirs.events)
    writer.append(
        [Event(0.0, "decision", detail={**began, "cluster": {"nodes": [{"name": "n", "gpus": 1}]}})]
    )
    yield dirs, lambda *events: writer.append(list(events))
    writer.close()


def failed(number: int) -> Event:
    return Event(1.0 + number, "fail", f"j{number}", 0, (), detail={"reason": "it fell", "exit_code": 7})


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_no_notice_is_lost_while_a_server_hangs_and_fails(tmp_path: Path, server: Server) -> None:
    server.mood = lambda number: time.sleep(0.5) or 200 if number == 1 else 200 if number % 2 else 503
    target = Notify(on=("failed",), url=server.url)
    with log_of(tmp_path) as (dirs, append):
        with Notices(dirs, [target], RETRY_S):
            until(lambda: list((tmp_path / "notices").glob("*.json")))
            append(*(submit_event(job(f"j{number}", user="ada"), 0.5) for number in range(30)))
            append(*map(failed, range(20)), Event(99.0, "finish", "other", 0, ()))
            until(lambda: len(server.taken) > 5)
        append(*map(failed, range(20, 30)))  # while no run is there
        with Notices(dirs, [target], RETRY_S):
            until(lambda: {each["job"] for each in server.taken} == {f"j{number}" for number in range(30)})
    first = {"on": "failed", "user": "ada", "reason": "it fell", "exit_code": 7}
    assert first.items() <= server.taken[0].items()
    assert len({each["id"] for each in server.taken}) == 30


def test_commands_hear_of_waiting_jobs_and_sick_slots(tmp_path: Path, server: Server) -> None:
    out = tmp_path / "heard"
    code = f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read())"
    target = Notify(on=("waiting", "quarantined"), command=(sys.executable, "-c", code), waiting_seconds=5.0)
    with log_of(tmp_path) as (dirs, append), Notices(dirs, [target], RETRY_S):
        until(lambda: list((dirs.path / "notices").glob("*.json")))
        append(submit_event(job("slow"), time.time() - 9.0), submit_event(job("new"), time.time()))
        append(Event(2.0, "slot_down", detail={"slot": "n/0", "seconds": 60.0}))
        append(Event(3.0, "slot_down", detail={"slot": "n/1", "seconds": UNTIL_RESUMED_S, "reason": "dies"}))
        until(lambda: out.exists() and len(out.read_text().splitlines()) == 2)
    heard = {each["on"]: each for each in map(json.loads, out.read_text().splitlines())}
    assert heard["waiting"]["job"] == "slow"
    assert (heard["quarantined"]["slot"], heard["quarantined"]["reason"]) == ("n/1", "dies")


def test_a_place_is_saved_though_no_notice_is_sent(tmp_path: Path, server: Server) -> None:
    target = Notify(on=("quarantined",), url=server.url)
    with log_of(tmp_path) as (dirs, append), Notices(dirs, [target], RETRY_S):
        until(lambda: passed_by_all(dirs, [target]))
        append(failed(1))
    assert passed_by_all(dirs, [target]) == dirs.events.stat().st_size
