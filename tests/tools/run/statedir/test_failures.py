"""Who is kept from what after new workers died: by hand, death by death."""

from __future__ import annotations

from pliant.tools.run.statedir.failures import FIRST_S, LONGEST_SUSPICION_S, Consequence, Suspects


def test_one_death_keeps_one_job_from_one_slot_and_each_further_one_for_twice_as_long() -> None:
    known = Suspects()
    for times in (1, 2, 4, 8):
        assert known.next_death("a", "n0/1") == Consequence(FIRST_S * times, for_all=False)
        known.died("a", "n0/1")
    assert known.next_death("a", "n0/2") == Consequence(FIRST_S, for_all=False)
    for _ in range(20):
        known.died("a", "n0/1")
    assert known.next_death("a", "n0/1").seconds == LONGEST_SUSPICION_S


def test_a_slot_on_which_two_jobs_failed_is_bad_for_all() -> None:
    known = Suspects()
    known.died("a", "n0/1")
    assert known.next_death("b", "n0/1") == Consequence(2 * FIRST_S, for_all=True)


def test_a_slot_on_which_three_jobs_failed_is_left_out_until_an_operator_says_otherwise() -> None:
    known = Suspects()
    known.died("a", "n0/1")
    known.died("b", "n0/1")
    assert not known.next_death("b", "n0/1").is_sick, "two jobs may both be at fault"
    assert known.next_death("c", "n0/1").is_sick


def test_a_job_that_fails_on_one_slot_after_the_other_keeps_its_size() -> None:
    known = Suspects()
    found = []
    for slot in ("n0/1", "n0/2", "n0/3", "n0/1"):
        found.append(known.wait_s("a", [slot]))
        known.died("a", slot)
    assert found == [None, None, FIRST_S, 2 * FIRST_S]


def test_slots_that_are_bad_for_others_too_are_not_held_against_a_job() -> None:
    known = Suspects()
    for slot in ("n0/1", "n0/2"):
        known.died("b", slot)
        known.died("a", slot)
    assert known.wait_s("a", ["n0/3"]) is None


def test_a_worker_that_grows_old_clears_its_slot_and_its_job() -> None:
    known = Suspects()
    for slot in ("n0/1", "n0/2", "n0/3"):
        known.died("a", slot)
    known.grew_old("a", "n0/3")
    assert known.deaths_on("n0/3") == 0
    assert known.deaths_on("n0/1") == 1, "it failed there, and can grow: the slot stays under suspicion"
    assert known.wait_s("a", ["n0/3"]) is None
