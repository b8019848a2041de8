"""Examples that train in ways of their own: resized, preempted and killed, they end with the same weights."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pliant.tools.run.statedir.contract.presence import life
from tests.tools.run.elastic.gang import Gang, plain

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("exampled.py")
EXAMPLES = Path(__file__).parents[4] / "examples" / "after"
WORDS = {
    "get_batch": ("--steps", "48", "--batch", "6", "--accumulate", "2", "--evaluate-every", "10", "--last"),
    "rnn": ("--epochs", "3", "--size", "3400", "--batch", "12", "--out"),
    "gan": ("--epochs", "4", "--size", "120", "--batch", "12", "--width", "8", "--out"),
}
Make = Callable[..., Gang]
LOOK_S = 5.0


@pytest.mark.parametrize(("example", "optimizer"), [("get_batch", "Adam"), ("rnn", "SGD"), ("gan", "Adam")])
def test_a_resized_and_killed_example_trains_the_same(
    gang: Make, tmp_path: Path, example: str, optimizer: str
) -> None:
    lr, tolerance = {"SGD": ("0.05", 1e-12), "Adam": ("1e-3", 1e-9)}[optimizer]
    words = ["--optimizer", optimizer, "--lr", lr, *WORDS[example]]
    script = str(EXAMPLES / f"{example}.py")
    alone, found = (tmp_path / f"{name}.pt" for name in ("alone", "found"))
    plain(tmp_path / "alone", script=SCRIPT, example=script, words=[*words, str(alone)])
    job = gang(words=[*words, str(found)], example=script)
    (tmp_path / "allowed").write_text("3")
    job.start(1, global_batch=12, seed=None)
    trains_under(job, [0, 1])
    trains_under(job, [0, 1], accum=2)
    preempted(job, [0, 1])
    job.start(1, global_batch=12, seed=None)
    trains_under(job, [0, 1])
    trains_under(job, [1])
    trains_under(job, [1, 2])
    job.signal(1, signal.SIGKILL)
    trains_under(job, [2], accum=3)
    (tmp_path / "allowed").unlink()
    job.end()
    assert job.outcomes_of(2) == ["done"], job.errors()
    torch.testing.assert_close(torch.load(found), torch.load(alone), rtol=0, atol=tolerance)


def trains_under(job: Gang, members: Sequence[int], **plan: int) -> None:
    """A few steps under another plan, once its workers have come."""
    job.publish(members, global_batch=12, seed=None, **plan)
    for number in members:
        if number >= len(job.workers):
            job.add(number)
            job.until(lambda number=number: life(job.here.presence(number)) == "alive", "worker")
    go_on_until(job, lambda: job.generation in generations(job), f"generation {job.generation}")


def generations(job: Gang) -> set[object]:
    return {(event.detail or {}).get("generation") for event in job.events("progress")}


def preempted(job: Gang, members: Sequence[int]) -> None:
    """All workers save and leave."""
    job.publish(members, global_batch=12, seed=None, abort=True)
    go_on_until(job, lambda: all(worker.poll() is not None for worker in job.workers), "end")
    job.end()
    assert job.outcomes_of(*members) == ["stopped"] * len(members), job.errors()


def go_on_until(job: Gang, condition: Callable[[], bool], what: str) -> None:
    """Allow a few steps, and as many again where they were over before workers looked for a newer plan."""
    allowed, again_s = job.out / "allowed", 0.0

    def holds() -> bool:
        nonlocal again_s
        if condition():
            return True
        if time.monotonic() >= again_s:
            allowed.write_text(str(int(allowed.read_text()) + 4))
            again_s = time.monotonic() + LOOK_S
        return False

    job.until(holds, what)
