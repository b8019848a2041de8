"""A worker says where it is: in a collective operation, asleep, busy, or in a call that keeps Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.stacks import (
    StackAnswer,
    ThreadStack,
    answer,
    bytes_of_each,
    found_stack,
    offer_stacks,
    parse_dump,
    read_answer,
    read_dump,
    request_stacks,
)
from tests.leftovers import PATIENCE_S
from tests.tools.run.elastic.nursery import Worker
from tests.tools.run.site import until

BEGINS = """
import datetime, os, pathlib, sys, threading, time
from pliant.tools.run.elastic.stack_watch import StackWatch
from pliant.tools.run.statedir.contract.folders import AttemptDir

attempt = pathlib.Path(sys.argv[1])
number = int(os.environ["NUMBER"])
StackWatch(AttemptDir(attempt), number, held_s=float(os.environ["HELD_UP_AFTER_S"])).begin()

def here():
    (attempt / f"here-{number}").touch()
"""
IN_A_COLLECTIVE = """
import torch, torch.distributed as dist

def where_it_is():
    store = dist.FileStore(str(attempt / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    here()
    if number == 1:
        time.sleep(600)
    dist.all_reduce(torch.zeros(1))
where_it_is()
"""
ASLEEP = """
def where_it_is():
    threading.Thread(target=lambda: time.sleep(600), name="reader", daemon=True).start()
    here()
    time.sleep(600)
where_it_is()
"""
BUSY = """
def where_it_is():
    here()
    while True:
        pass
where_it_is()
"""
HELD = """
import ctypes
sleep = ctypes.PyDLL(None).sleep  # it keeps the interpreter while it sleeps

def where_it_is():
    here()
    sleep(600)
where_it_is()
"""
FORKING = """
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
here()
"""


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    made = AttemptDir(tmp_path / "with blank")
    made.path.mkdir()
    offer_stacks(made)
    return made


def functions(stack: ThreadStack) -> list[str]:
    return [frame.function for frame in stack.frames]


@contextmanager
def hung(text: str, attempt: AttemptDir, number: int = 0, held_s: float = 600.0) -> Iterator[None]:
    """While a worker stands where the script brings it."""
    script = attempt.path / f"script-{number}.py"
    script.write_text(BEGINS + text)
    env = {**os.environ, "NUMBER": str(number), "HELD_UP_AFTER_S": str(held_s)}
    worker = Worker(script, str(attempt.path), env, attempt.path / f"errors-{number}")
    try:
        until((attempt.path / f"here-{number}").exists)
        yield
    finally:
        worker.kill()


def answered(attempt: AttemptDir) -> tuple[ThreadStack, ...]:
    mark = request_stacks(attempt)
    until(lambda: read_answer(attempt, 0, mark))
    given = read_answer(attempt, 0, mark)
    return () if given is None else given.threads


@pytest.mark.parametrize(
    ("script", "threads"),
    [(ASLEEP, ["MainThread", "reader"]), (BUSY, ["MainThread"])],
    ids=["asleep", "busy"],
)
def test_a_worker_that_sleeps_or_computes_answers(
    script: str, threads: list[str], attempt: AttemptDir
) -> None:
    with hung(script, attempt):
        stacks = answered(attempt)
    assert [stack.name for stack in stacks] == threads
    assert functions(stacks[0])[0] == "where_it_is"


def test_a_worker_in_a_collective_operation_answers(attempt: AttemptDir) -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as workers:
        other = pool.submit(workers.enter_context, hung(IN_A_COLLECTIVE, attempt, 1))
        with hung(IN_A_COLLECTIVE, attempt):
            other.result(60)
            until(lambda: {"all_reduce", "where_it_is"} <= set(functions(answered(attempt)[0])))


def test_a_worker_whose_interpreter_is_held_is_dumped(attempt: AttemptDir) -> None:
    with hung(HELD, attempt, held_s=0.5):
        until(lambda: any("where_it_is" in functions(stack) for stack in read_dump(attempt, 0)))
        assert functions(read_dump(attempt, 0)[0])[0] == "where_it_is", "the main thread is first"


def test_processes_that_a_script_forks_end(attempt: AttemptDir) -> None:
    """An interpreter of their own: it waits for threads at its end."""
    line = [sys.executable, "-W", "ignore", "-c", BEGINS + FORKING, str(attempt.path)]
    subprocess.run(
        line, env={**os.environ, "NUMBER": "0", "HELD_UP_AFTER_S": "600"}, check=True, timeout=PATIENCE_S
    )
    assert (attempt.path / "here-0").exists()


def test_less_is_read_of_each_of_many_workers(attempt: AttemptDir) -> None:
    """A script may write long answers for all of its workers, which fill the memory of who asks."""
    assert 64 * bytes_of_each(64) == 8 * bytes_of_each(8) == 4 << 20
    mark = request_stacks(attempt)
    answer(attempt, 0, StackAnswer(question=mark, threads=(ThreadStack(name="x" * 200_000),)))
    assert found_stack(attempt, 0, "n0/0", mark, bytes_of_each(1)).threads
    assert not found_stack(attempt, 0, "n0/0", mark, bytes_of_each(64)).threads


def test_forged_answers_do_no_harm(attempt: AttemptDir) -> None:
    mark = request_stacks(attempt)
    secret = attempt.path / "secret"
    secret.write_text("{}")
    attempt.stack(0).symlink_to(secret)
    attempt.stack(1).write_bytes(b"\xff{" * 1000)
    assert read_answer(attempt, 0, mark) is None
    assert read_answer(attempt, 1, mark) is None
    assert parse_dump("Timeout (0:00:12)!\nThread nonsense\n  File\n") == ()
    attempt.held_stack(0).write_text(f'Thread 0x1\n  File "x", line {"9" * 5000} in f\n')
    assert read_dump(attempt, 0) == (), "the run's loop reads it before it ends a job that hangs"
