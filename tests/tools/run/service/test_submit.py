"""What is said of jobs that are submitted: what is not heeded of them, and names that are free."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.job import Job, Utility
from pliant.tools.run.service.submit import Submitted, check_new, free_id, order_nodes
from tests.builders import cluster, job
from tests.tools.run.live_states import a_queue, live_state

PLAIN = job("plain", gpu_seconds=100.0)
URGENT = PLAIN.model_copy(update={"priority": 2.0})
HEAVY = PLAIN.model_copy(update={"weight": 2.0})
DUE = PLAIN.model_copy(update={"utility": Utility(shape="step", value=1.0, target=100.0)})


@pytest.mark.parametrize(
    ("policy", "ignores"),
    [
        ("ares", {"priority", "deadline"}),
        ("fifo", {"weight", "deadline"}),
        ("pollux", {"priority", "weight", "deadline"}),
        ("shadow-price", set()),
    ],
)
def test_what_the_policy_ignores_is_said_of_jobs_that_state_it_and_of_no_others(
    tmp_path: Path, policy: str, ignores: set[str]
) -> None:
    state = live_state(tmp_path / "live", a_queue(1), cluster(4), policy=policy)

    def said(*jobs: Job) -> set[str]:
        ids = [one.id for one in jobs]
        found = Submitted.of(state, jobs, ids)
        assert found.ids == ids
        if found.overlooked_deadlines is not None:
            assert found.overlooked_deadlines.startswith(f'policy "{policy}" does not look at ')
        assert {found.deaf_to_priorities, found.deaf_to_weights} <= {policy, None}
        told = {
            "priority": found.deaf_to_priorities,
            "weight": found.deaf_to_weights,
            "deadline": found.overlooked_deadlines,
        }
        return {what for what, words in told.items() if words is not None}

    assert said(PLAIN) == set()
    assert said(PLAIN, URGENT) == ignores & {"priority"}
    assert said(PLAIN, HEAVY) == ignores & {"weight"}
    assert said(PLAIN, DUE) == ignores & {"deadline"}
    assert said(URGENT, HEAVY, DUE) == ignores


def test_of_a_folder_without_a_run_nothing_is_said(tmp_path: Path) -> None:
    assert Submitted.of(tmp_path, [URGENT, HEAVY, DUE], []) == Submitted([])


def test_what_would_be_refused_is_refused_in_a_question_too(tmp_path: Path) -> None:
    state = live_state(tmp_path / "live", a_queue(1), cluster(4))
    (found,) = check_new(state, [PLAIN.model_copy(update={"submit_time": 5.0})], "jobs", 2e9)
    assert found.submit_time == 2e9 + 5.0
    waits = PLAIN.model_copy(update={"after": {"nobody": "ok"}})
    for wrong, words in ((job("j0"), "before"), (job("big", gpus=9), "9 GPUs"), (waits, "nobody")):
        with pytest.raises(BadInputError, match=words):
            check_new(state, [PLAIN, wrong], "jobs", 2e9)


def test_a_name_gets_the_first_number_that_is_free_for_all_its_endings() -> None:
    assert free_id("a", ()) == free_id("a", ("a-2", "b")) == "a"
    assert free_id("a", ("a", "a-2")) == "a-3"
    assert free_id("a", ("a-1", "a-2-0"), ("-0", "-1")) == "a-3"


def test_of_several_nodes_none_is_drained_if_one_is_not_there(tmp_path: Path) -> None:
    state = live_state(tmp_path / "live", a_queue(1), cluster(2, 2))
    with pytest.raises(UsageError, match="has no node n7; it has: n0, n1"):
        order_nodes(state, "drain", ["n0", "n7"])
    assert list((state / "spool").glob("*.order.json")) == []
    order_nodes(state, "drain", ["n0", "n1", "n0"])
    assert len(list((state / "spool").glob("*.order.json"))) == 2
