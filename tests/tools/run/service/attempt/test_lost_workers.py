from __future__ import annotations

from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.members import TOO_MANY, YOUNG_S, Lifetimes, Setback

HERE, THERE = Slot("n0", 0), Slot("n0", 1)


def lost(losses: Lifetimes, worker: int, slot: Slot, now_s: float, trained: bool = True) -> Setback | None:
    return losses.mark_lost({worker: slot}, {worker} if trained else set(), lambda worker: "no memory", now_s)


def test_workers_that_die_young_one_after_the_other_give_their_slot_away() -> None:
    losses, found = Lifetimes(), []
    for worker in range(TOO_MANY):
        losses.train({worker: HERE}, 100.0 * worker)
        found.append(lost(losses, worker, HERE, 100.0 * worker + YOUNG_S / 2))
    assert found[:-1] == [None] * (TOO_MANY - 1)
    assert found[-1] == Setback((HERE,), f"lost {TOO_MANY} workers in a row on n0/0")


def test_slots_are_counted_each_for_itself() -> None:
    losses = Lifetimes()
    for worker in range(2 * (TOO_MANY - 1)):
        assert lost(losses, worker, (HERE, THERE)[worker % 2], 1.0) is None


def test_one_that_grows_old_clears_its_slot_also_when_it_is_not_lost() -> None:
    losses = Lifetimes()
    for worker in range(TOO_MANY - 1):
        lost(losses, worker, HERE, 1.0)
    losses.train({9: HERE}, 10.0)
    losses.train({9: HERE}, 10.0 + YOUNG_S)
    assert lost(losses, 10, HERE, 20.0) is None


def test_one_that_never_trained_gives_its_slot_away_at_once() -> None:
    found = lost(Lifetimes(), 3, THERE, 1.0, trained=False)
    assert found == Setback((THERE,), "the new workers on n0/1 ended before they trained: no memory")


def test_a_newcomer_that_says_what_it_died_of_gives_its_slot_away_at_once() -> None:
    losses = Lifetimes()
    losses.train({0: HERE}, 1.0)
    losses.train({0: HERE, 1: THERE}, 100.0)
    assert losses.newcomers({0, 1}, 101.0) == {1}
    found = losses.mark_lost({1: THERE}, {0, 1}, lambda worker: "no memory", 101.0)
    assert found == Setback((THERE,), "the new workers on n0/1 ended in their first steps: no memory")
    assert losses.newcomers({0, 1}, 100.0 + YOUNG_S) == frozenset()


def test_workers_that_began_together_are_no_newcomers() -> None:
    losses = Lifetimes()
    losses.train({0: HERE, 1: THERE}, 1.0)
    assert losses.newcomers({0, 1}, 1.0) == frozenset()
    found = losses.mark_lost({1: THERE}, {0, 1}, lambda worker: "no memory", 1.5)
    assert found is None, "the first of them may be bad luck"
