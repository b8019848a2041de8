"""What goes wrong with jobs, in the words of a loop that nobody watches."""

from __future__ import annotations

from pliant.schemas.event import Event
from pliant.tools.run.watch.trouble import trouble


def test_failures_rejections_and_retries_are_said_with_their_reason() -> None:
    events = [
        Event(1.0, "start", "a", gpus=1, placement=(("n0", 1),)),
        Event(2.0, "requeue", "a", gpus=0, placement=(), detail={"reason": "exit code 1: KeyError: 7"}),
        Event(3.0, "fail", "a", gpus=0, placement=(), detail={"reason": "killed by SIGKILL"}),
        Event(4.0, "reject", "b", gpus=0, placement=(), detail={"reason": "needs 9 GPUs"}),
        Event(5.0, "finish", "c", gpus=0, placement=(), detail={"attempt": 1}),
    ]
    assert list(trouble(events)) == [
        "job a waits again: exit code 1: KeyError: 7",
        "job a failed: killed by SIGKILL",
        "job b is rejected: needs 9 GPUs",
    ]
