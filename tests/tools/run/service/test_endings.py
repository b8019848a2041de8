from __future__ import annotations

from functools import partial

import pytest

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.endings import Ending, broken, describe, judge
from pliant.tools.run.statedir.contract.plan import LOST_PEER, WorkerOutcome

KILLED = "killed by SIGKILL, which the system sends where memory runs out"
CLEAN = UnitStatus("exited", 0)
FAILED = UnitStatus("exited", 1)
LOST = UnitStatus("lost")


def said(outcome: str, samples: float = 100.0, message: str = "") -> WorkerOutcome:
    return WorkerOutcome.model_validate({"outcome": outcome, "samples_done": samples, "message": message})


def verdict(
    outcomes: dict[int, WorkerOutcome], *units: UnitStatus, elastic: bool = True, asked: bool = False
) -> Ending:
    return judge(outcomes, units, ranks=2, elastic=elastic, stop_requested=asked)


def test_done_is_what_rank_0_says_whatever_torchrun_returned() -> None:
    assert verdict({0: said("done"), 1: said("done")}, FAILED, FAILED) == Ending("done", "", 100.0)


def test_a_script_that_gives_up_in_its_training_has_failed() -> None:
    left = said("done").model_copy(update={"exit_counts": True})
    found = verdict({0: left, 1: left}, FAILED, FAILED)
    assert (found.end, found.message) == ("failed", "the script ended with exit code 1: its log tells more")
    assert verdict({0: left, 1: left}, CLEAN, CLEAN) == Ending("done", "", 100.0)
    assert verdict({0: left, 1: left}, LOST, LOST).end == "done", "a launcher that is gone says nothing"


def test_a_clean_stop_counts_though_torchrun_returned_1() -> None:
    found = verdict({0: said("stopped"), 1: said("stopped")}, FAILED, FAILED, asked=True)
    assert found == Ending("stopped", "", 100.0)


def test_a_stop_that_nobody_asked_for_is_a_failure() -> None:
    found = verdict({0: said("stopped"), 1: said("stopped")}, CLEAN, CLEAN)
    assert (found.end, found.message) == ("failed", "stopped by somebody else")


TAKEN = UnitStatus("exited", -15, displaced="its node was taken away")


@pytest.mark.parametrize(
    "outcomes",
    [
        {},
        {0: said("stopped"), 1: said("stopped")},
        {0: said("cut_off", message=f"{LOST_PEER} 1")},
        {0: said("stopped"), 1: said("crashed", message="KeyboardInterrupt")},
    ],
)
@pytest.mark.parametrize("units", [(CLEAN, TAKEN), (TAKEN, LOST), (TAKEN, FAILED)])
def test_an_attempt_whose_place_was_taken_away_has_not_failed(
    outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...]
) -> None:
    found = verdict(outcomes, *units)
    assert (found.end, found.message) == ("displaced", "its node was taken away")
    assert verdict(outcomes, *units, asked=True).end == "stopped"


def test_an_attempt_that_found_no_place_is_known_to_have_had_no_part_in_it() -> None:
    nowhere = UnitStatus("lost", displaced="nothing starts on node n0", began=False)
    assert verdict({}, nowhere, FAILED).began is False
    assert verdict({}, TAKEN, FAILED).began is True


def test_a_place_that_is_taken_away_from_a_job_that_is_done_changes_nothing() -> None:
    assert verdict({0: said("done"), 1: said("done")}, TAKEN, TAKEN).end == "done"


def test_a_crash_is_told_by_rank_and_message() -> None:
    found = verdict({0: said("stopped"), 1: said("crashed", message="out of memory")}, CLEAN, FAILED)
    assert (found.end, found.message) == ("failed", "rank 1 crashed: out of memory")


def test_the_crash_that_others_only_noticed_is_the_one_that_is_told() -> None:
    noticed = said("crashed", message=f"{LOST_PEER}: RuntimeError: closed by peer")
    found = verdict({0: noticed, 1: said("crashed", message="out of memory")}, FAILED, FAILED)
    assert found.message == "rank 1 crashed: out of memory"
    assert verdict({0: noticed, 1: noticed}, FAILED, FAILED).message == f"rank 0 crashed: {noticed.message}"


def test_a_group_that_the_script_makes_itself_is_named_as_the_mistake_of_an_elastic_job() -> None:
    twice = said("crashed", message="ValueError: trying to initialize the default process group twice!")
    assert verdict({0: twice}, FAILED).message == (
        'the elastic library connects the workers: leave out init_process_group, or set "elastic" to "none" '
        "(rank 0 crashed: ValueError: trying to initialize the default process group twice!)"
    )
    assert verdict({0: twice}, FAILED, elastic=False).message == f"rank 0 crashed: {twice.message}"


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        (
            "    fully_shard(model)",
            "ValueError: environment variable MASTER_ADDR expected, but not set",
            "leave out fully_shard; every worker has a whole copy of the model",
        ),
        (
            "    accelerator = Accelerator()",
            "ValueError: environment variable MASTER_ADDR expected, but not set",
            (
                "leave out Accelerator: job.prepare takes the place of its prepare, "
                "loss.backward() that of its backward"
            ),
        ),
        (
            "    model = DDP(model)",
            "ValueError: Default process group has not been initialized, please call it",
            "leave out DistributedDataParallel: job.prepare makes it",
        ),
    ],
)
def test_what_connects_the_workers_beside_the_library_is_named(line: str, message: str, advice: str) -> None:
    found = judge(
        {0: said("crashed", message=message)},
        [FAILED],
        ranks=1,
        elastic=True,
        stop_requested=False,
        trace=lambda: ["Traceback (most recent call last):", line, message],
    )
    assert found.message == (
        f'the elastic library connects the workers: {advice}, or set "elastic" to "none" '
        f"(rank 0 crashed: {message})"
    )


def test_a_group_that_is_missing_for_another_reason_is_told_as_it_is() -> None:
    missing = "ValueError: Default process group has not been initialized, please call init_process_group."
    assert verdict({0: said("crashed", message=missing)}, FAILED).message == f"rank 0 crashed: {missing}"


@pytest.mark.parametrize(
    "words", ["KeyError: 'LOCAL_RANK'", "ValueError: environment variable RANK expected"]
)
def test_a_script_on_one_gpu_that_needs_torchrun_is_told_how_to_ask_for_it(words: str) -> None:
    found = judge({}, [FAILED], ranks=1, elastic=False, stop_requested=False, words=lambda _: words)
    assert found.message == (
        'a script on one GPU is started by python: let "command" begin with "torchrun" '
        f"(exit code 1: {words})"
    )


def test_a_rank_without_a_word_was_killed() -> None:
    found = verdict({0: said("stopped")}, CLEAN, UnitStatus("exited", -9))
    assert (found.end, found.message) == ("failed", f"rank 1 vanished ({KILLED})")


def test_a_kill_during_a_requested_stop_is_a_stop_with_a_remark() -> None:
    found = verdict({0: said("stopped")}, CLEAN, LOST, asked=True)
    assert (found.end, found.message) == ("stopped", "rank 1 vanished (killed, no exit code)")


def test_a_job_that_ended_while_it_was_asked_to_stop_is_done() -> None:
    assert verdict({0: said("done"), 1: said("done")}, CLEAN, CLEAN, asked=True).end == "done"


@pytest.mark.parametrize(
    ("unit", "end", "message"),
    [
        (CLEAN, "done", ""),
        (UnitStatus("exited", 3), "failed", "exit code 3"),
        (UnitStatus("exited", -15), "failed", "killed by SIGTERM"),
        (LOST, "failed", "killed, no exit code"),
    ],
)
def test_a_script_without_the_library_is_judged_by_its_exit_code(
    unit: UnitStatus, end: str, message: str
) -> None:
    found = verdict({}, unit, elastic=False)
    assert (found.end, found.message, found.samples_done) == (end, message, None)


def test_a_script_without_the_library_that_was_asked_to_stop_has_stopped() -> None:
    assert verdict({}, UnitStatus("exited", -15), elastic=False, asked=True).end == "stopped"


def test_an_elastic_job_must_use_the_library() -> None:
    found = verdict({}, CLEAN, CLEAN)
    assert found.end == "failed"
    assert 'set "elastic" to "none"' in found.message


def test_what_was_never_started_has_failed() -> None:
    assert verdict({}, elastic=False) == Ending("failed", "no exit code")


def test_a_gang_is_broken_by_a_bad_exit_a_vanished_worker_or_a_crash_but_not_by_an_early_end() -> None:
    running = UnitStatus("running")
    assert broken([running, FAILED], {})
    assert broken([running, LOST], {})
    assert broken([running, running], {1: said("crashed")})
    assert not broken([running, CLEAN], {1: said("done")})


def test_an_exit_in_words() -> None:
    words = {0: "", 1: "KeyError: 7"}
    assert describe([CLEAN, FAILED], words.__getitem__) == "exit code 1: KeyError: 7"
    assert describe([FAILED, CLEAN], words.__getitem__) == "exit code 1"
    assert describe([CLEAN, UnitStatus("exited", -9)], words.__getitem__) == KILLED
    assert describe([UnitStatus("exited", -40)]) == "killed by signal 40"
    assert describe([CLEAN, UnitStatus("exited", -11)]) == "killed by SIGSEGV"
    assert describe([CLEAN]) == "no exit code"


def test_a_stop_names_the_signal_and_the_exit_code_and_nothing_of_what_was_printed() -> None:
    """torchrun exits with 1 after a SIGTERM, and its workers printed a warning last, or a progress bar."""

    def printed(_: int) -> str:
        return "local_plan = storage_writer.prepare_local_plan()"

    ask = partial(judge, {}, ranks=1, elastic=False, stop_requested=True, words=printed)
    assert ask([FAILED], sent="SIGTERM").message == (
        "ended by SIGTERM, which was sent to stop it (exit code 1)"
    )
    killed = ask([UnitStatus("exited", -9)], sent="SIGKILL")
    assert (killed.end, killed.message) == ("stopped", "ended by SIGKILL, which was sent to stop it")
    assert ask([FAILED]).message == "exit code 1"
