"""How often the workers agree: as often as steps allow, and all at the same steps."""

from __future__ import annotations

import pytest

from pliant.tools.run.elastic.membership.agreement import (
    BETWEEN_VOTES_S,
    MOST_STEPS,
    Vote,
    steps_between_votes,
)


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0.0, 1), (10.0, 1), (BETWEEN_VOTES_S, 1), (BETWEEN_VOTES_S / 4, 4), (1e-6, MOST_STEPS)],
)
def test_short_steps_leave_out_votes(step_s: float, steps: int) -> None:
    assert steps_between_votes(step_s) == steps


class Pair:
    """Two workers whose all-reduces are made here."""

    def __init__(self) -> None:
        self.votes = [Vote(alone=True), Vote(alone=True)]

    def step(self, *usual_s: float, forced: bool = False) -> int | None:
        """One step of both: what was agreed; None: there was no vote."""
        due = [vote.is_due() or forced for vote in self.votes]
        assert due[0] == due[1]
        if not due[0]:
            return None
        for number, (vote, step_s) in enumerate(zip(self.votes, usual_s, strict=True)):
            vote.cast(7 + number)
            vote._numbers[1] = -steps_between_votes(step_s)
        largest = [max(pair) for pair in zip(*(vote._numbers.tolist() for vote in self.votes), strict=True)]
        for vote in self.votes:
            vote._numbers[:] = largest
        (agreed,) = {vote.result() for vote in self.votes}
        assert not any(vote.is_open for vote in self.votes)
        return agreed


def test_workers_of_different_speed_vote_at_the_same_steps_as_often_as_the_slower_one_would() -> None:
    both, quick = Pair(), BETWEEN_VOTES_S / 8
    found = [both.step(quick, BETWEEN_VOTES_S / 3) for _ in range(7)]
    assert found == [8, None, None, 8, None, None, 8]


def test_a_vote_that_must_be_is_held_out_of_turn_and_the_count_begins_anew() -> None:
    both, quick = Pair(), BETWEEN_VOTES_S / 3
    assert [both.step(quick, quick) for _ in range(2)] == [8, None]
    assert both.step(quick, quick, forced=True) == 8
    assert [both.step(quick, quick) for _ in range(3)] == [None, None, 8]


def test_workers_that_meet_anew_vote_at_their_first_step() -> None:
    both = Pair()
    assert both.step(1e-6, 1e-6) == 8
    for vote in both.votes:
        vote.drop(alone=True)
    assert both.step(1e-6, 1e-6) == 8


def test_a_worker_alone_votes_at_every_step() -> None:
    vote = Vote(alone=True)
    for number in (2, 3):
        assert vote.is_due()
        vote.cast(number, 1e-6)
        assert vote.result() == number
    assert vote.result() == 0
