from __future__ import annotations

from pliant.tools.run.losses import TOO_MANY, YOUNG_S, Losses
from pliant.tools.run.slots import Slot

HERE, THERE = Slot("n0", 0), Slot("n0", 1)


def test_workers_that_die_young_one_after_the_other_give_their_slot_away() -> None:
    losses = Losses()
    for worker in range(TOO_MANY):
        assert not losses.blame
        losses.train({worker: HERE}, 100.0 * worker)
        losses.lose(worker, HERE, 100.0 * worker + YOUNG_S / 2)
    assert losses.blame == f"lost {TOO_MANY} workers in a row on n0/0"


def test_slots_are_counted_each_for_itself() -> None:
    losses = Losses()
    for worker in range(2 * (TOO_MANY - 1)):
        losses.lose(worker, (HERE, THERE)[worker % 2], 1.0)
    assert not losses.blame


def test_one_that_grows_old_clears_its_slot_also_when_it_is_not_lost() -> None:
    losses = Losses()
    for worker in range(TOO_MANY - 1):
        losses.lose(worker, HERE, 1.0)
    losses.train({9: HERE}, 10.0)
    losses.train({9: HERE}, 10.0 + YOUNG_S)
    losses.lose(10, HERE, 20.0)
    assert not losses.blame
