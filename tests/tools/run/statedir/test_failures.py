"""Who is kept from what after new workers died: by hand, death by death."""

from __future__ import annotations

from pliant.tools.run.statedir.failures import FIRST_S, LONGEST_SUSPICION_S, Consequence, Suspects


def test_deaths_keep_a_job_from_a_slot_and_more_of_them_all_jobs() -> None:
    """One death for a while, each further one for twice as long; a third job's until an operator acts."""
    known = Suspects()
    for times in (1, 2, 4, 8):
        assert known.next_death("a", "n0/1") == Consequence(FIRST_S * times, for_all=False)
        known.died("a", "n0/1")
    assert known.next_death("a", "n0/2") == Consequence(FIRST_S, for_all=False)
    for _ in range(20):
        known.died("a", "n0/1")
    assert known.next_death("a", "n0/1").seconds == LONGEST_SUSPICION_S
    known = Suspects()
    known.died("a", "n0/1")
    assert known.next_death("b", "n0/1") == Consequence(2 * FIRST_S, for_all=True)
    known = Suspects()
    known.died("a", "n0/1")
    known.died("b", "n0/1")
    assert not known.next_death("b", "n0/1").is_sick, "two jobs may both be at fault"
    assert known.next_death("c", "n0/1").is_sick


def test_a_job_that_fails_on_slot_after_slot_keeps_its_size() -> None:
    known = Suspects()
    result = []
    for slot in ("n0/1", "n0/2", "n0/3", "n0/1"):
        result.append(known.wait_s("a", [slot]))
        known.died("a", slot)
    assert result == [None, None, FIRST_S, 2 * FIRST_S]
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
