"""A worker says where it is: in a collective operation, asleep, busy, or in a call that keeps Python."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.service.stacks import found_stack
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.stacks import (
    StackAnswer,
    ThreadStack,
    answer,
    ask_for_stacks,
    bytes_of_each,
    offer_stacks,
    parse_dump,
    read_answer,
    read_dump,
)
from tests.leftovers import started
from tests.tools.run.site import until

BEGINS = """
import os, pathlib, sys, threading, time
from pliant.tools.run.elastic.stacks import StackWatch
from pliant.tools.run.statedir.contract.folders import AttemptDir

StackWatch(AttemptDir(pathlib.Path(sys.argv[1])), 0, held_s=float(sys.argv[2])).begin()
"""
COLLECTIVE = """
import datetime, torch, torch.distributed as dist

def where_it_is():
    store = dist.FileStore(sys.argv[1] + "/store", 2)
    if len(sys.argv) > 3:
        dist.init_process_group("gloo", store=store, rank=1, world_size=2)
        print("here", flush=True)
        time.sleep(600)
    dist.init_process_group("gloo", store=store, rank=0, world_size=2)
    print("here", flush=True)
    dist.all_reduce(torch.zeros(1))

where_it_is()
"""
SLEEP = """
def where_it_is():
    print("here", flush=True)
    time.sleep(600)
where_it_is()
"""
BUSY = """
def where_it_is():
    print("here", flush=True)
    while True:
        pass
where_it_is()
"""
HELD = """
import ctypes
sleep = ctypes.PyDLL(None).sleep  # it keeps the interpreter while it sleeps

def where_it_is():
    print("here", flush=True)
    sleep(600)
where_it_is()
"""
FORKS = """
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
print("here", flush=True)
"""
IN_A_THREAD = """
def where_it_is():
    time.sleep(600)
threading.Thread(target=where_it_is, name="reader").start()
print("here", flush=True)
time.sleep(600)
"""


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(tmp_path / "with blank")
    found.path.mkdir()
    offer_stacks(found)
    return found


def functions(stack: ThreadStack) -> list[str]:
    return [frame.function for frame in stack.frames]


def hung(script: str, attempt: AttemptDir, held_s: float = 600.0, *more: str) -> AbstractContextManager[Any]:
    line = [sys.executable, "-c", BEGINS + script, str(attempt.path), str(held_s), *more]
    return started(line, stdout=subprocess.PIPE)


@pytest.mark.parametrize("script", [SLEEP, BUSY])
def test_a_worker_that_sleeps_or_computes_answers(script: str, attempt: AttemptDir) -> None:
    with hung(script, attempt) as worker:
        assert worker.stdout.readline() == b"here\n"
        mark = ask_for_stacks(attempt)
        until(lambda: read_answer(attempt, 0, mark))
    found = read_answer(attempt, 0, mark)
    assert found is not None
    (main,) = found.threads
    assert main.name == "MainThread"
    assert functions(main)[0] == "where_it_is"


def test_a_worker_in_a_collective_operation_answers(attempt: AttemptDir) -> None:
    def where() -> list[str]:
        mark = ask_for_stacks(attempt)
        until(lambda: read_answer(attempt, 0, mark))
        found = read_answer(attempt, 0, mark)
        return [] if found is None else functions(found.threads[0])

    with hung(COLLECTIVE, attempt) as worker, hung(COLLECTIVE, attempt, 600.0, "other") as other:
        assert worker.stdout.readline() == other.stdout.readline() == b"here\n"
        until(lambda: {"all_reduce", "where_it_is"} <= set(where()))


def test_a_worker_whose_interpreter_is_held_is_dumped(attempt: AttemptDir) -> None:
    with hung(HELD, attempt, 0.5) as worker:
        assert worker.stdout.readline() == b"here\n"
        until(lambda: any("where_it_is" in functions(stack) for stack in read_dump(attempt, 0)))
        assert functions(read_dump(attempt, 0)[0])[0] == "where_it_is", "the main thread is first"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_processes_that_a_script_forks_end(attempt: AttemptDir) -> None:
    with hung(FORKS, attempt) as worker:
        assert worker.stdout.readline() == b"here\n"


def test_other_threads_are_named(attempt: AttemptDir) -> None:
    with hung(IN_A_THREAD, attempt) as worker:
        assert worker.stdout.readline() == b"here\n"
        mark = ask_for_stacks(attempt)
        until(lambda: read_answer(attempt, 0, mark))
    found = read_answer(attempt, 0, mark)
    assert found is not None
    assert [stack.name for stack in found.threads] == ["MainThread", "reader"]


def test_less_is_read_of_each_of_many_workers(attempt: AttemptDir) -> None:
    """A script may write long answers for all of its workers, which fill the memory of who asks."""
    assert 64 * bytes_of_each(64) == 8 * bytes_of_each(8) == 4 << 20
    mark = ask_for_stacks(attempt)
    answer(attempt, 0, StackAnswer(question=mark, threads=(ThreadStack(name="x" * 200_000),)))
    assert found_stack(attempt, 0, "n0/0", mark, bytes_of_each(1)).threads
    assert not found_stack(attempt, 0, "n0/0", mark, bytes_of_each(64)).threads


def test_forged_answers_do_no_harm(attempt: AttemptDir) -> None:
    mark = ask_for_stacks(attempt)
    secret = attempt.path / "secret"
    secret.write_text("{}")
    attempt.stack(0).symlink_to(secret)
    attempt.stack(1).write_bytes(b"\xff{" * 1000)
    assert read_answer(attempt, 0, mark) is None
    assert read_answer(attempt, 1, mark) is None
    assert parse_dump("Timeout (0:00:12)!\nThread nonsense\n  File\n") == ()
    attempt.held_stack(0).write_text(f'Thread 0x1\n  File "x", line {"9" * 5000} in f\n')
    assert read_dump(attempt, 0) == (), "the run's loop reads it before it ends a job that hangs"
