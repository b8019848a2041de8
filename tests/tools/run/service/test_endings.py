from __future__ import annotations

from functools import partial

import pytest

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.members import Ending, broken, describe, judge
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


BOTH_DONE = {0: said("done"), 1: said("done")}
BOTH_STOPPED = {0: said("stopped"), 1: said("stopped")}
NOTICED = said("crashed", message=f"{LOST_PEER}: RuntimeError: closed by peer")
NO_MEMORY = said("crashed", message="out of memory")


@pytest.mark.parametrize(
    ("outcomes", "units", "ending"),
    [
        pytest.param(BOTH_DONE, (FAILED, FAILED), ("done", ""), id="rank 0 is done, whatever torchrun says"),
        pytest.param(BOTH_STOPPED, (CLEAN, CLEAN), ("failed", "stopped by somebody else"), id="not asked to"),
        pytest.param(
            {0: said("stopped"), 1: NO_MEMORY},
            (CLEAN, FAILED),
            ("failed", "rank 1 crashed: out of memory"),
            id="a crash is told by rank and message",
        ),
        pytest.param(
            {0: NOTICED, 1: NO_MEMORY},
            (FAILED, FAILED),
            ("failed", "rank 1 crashed: out of memory"),
            id="the crash that others only noticed is told",
        ),
        pytest.param(
            {0: NOTICED, 1: NOTICED},
            (FAILED, FAILED),
            ("failed", f"rank 0 crashed: {NOTICED.message}"),
            id="all only noticed one",
        ),
        pytest.param(
            {0: said("crashed", message="no file"), 1: NO_MEMORY},
            (FAILED, FAILED),
            ("failed", "rank 0 crashed: no file"),
            id="of two crashes that of the lower rank is told",
        ),
        pytest.param(
            {0: NOTICED},
            (FAILED, UnitStatus("exited", -9)),
            ("failed", f"rank 1 vanished ({KILLED})"),
            id="one was killed, the other noticed",
        ),
        pytest.param(
            {1: NOTICED},
            (UnitStatus("running"), FAILED),
            ("failed", f"rank 1 crashed: {NOTICED.message}"),
            id="one noticed a break, and the other still runs",
        ),
        pytest.param(
            {0: said("stopped")},
            (CLEAN, UnitStatus("exited", -9)),
            ("failed", f"rank 1 vanished ({KILLED})"),
            id="a rank without a word was killed",
        ),
    ],
)
def test_an_elastic_job_is_judged_by_what_its_workers_say(
    outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...], ending: tuple[str, str]
) -> None:
    found = verdict(outcomes, *units)
    assert (found.end, found.message, found.samples_done) == (*ending, 100.0)


@pytest.mark.parametrize(
    ("outcomes", "units", "ending"),
    [
        (BOTH_STOPPED, (FAILED, FAILED), ("stopped", "")),  # as torchrun exits
        ({0: NOTICED}, (FAILED, UnitStatus("exited", -9)), ("stopped", f"rank 0 crashed: {NOTICED.message}")),
        ({0: said("stopped")}, (CLEAN, LOST), ("stopped", "rank 1 vanished (killed, no exit code)")),
        (BOTH_DONE, (CLEAN, CLEAN), ("done", "")),
    ],
)
def test_a_job_that_was_asked_to_stop_has_stopped_or_is_done(
    outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...], ending: tuple[str, str]
) -> None:
    assert verdict(outcomes, *units, asked=True) == Ending(*ending, 100.0)  # type: ignore[arg-type]


def test_a_script_that_gives_up_in_its_training_has_failed() -> None:
    left = said("done").model_copy(update={"exit_counts": True})
    found = verdict({0: left, 1: left}, FAILED, FAILED)
    assert (found.end, found.message) == ("failed", "the script ended with exit code 1: its log tells more")
    assert verdict({0: left, 1: left}, CLEAN, CLEAN) == Ending("done", "", 100.0)
    assert verdict({0: left, 1: left}, LOST, LOST).end == "done", "a launcher that is gone says nothing"


TAKEN = UnitStatus("exited", -15, displaced="its node was taken away")


@pytest.mark.parametrize(
    "outcomes",
    [
        {},
        BOTH_STOPPED,
        {0: said("cut_off", message=f"{LOST_PEER} 1")},
        {0: said("stopped"), 1: said("crashed", message="KeyboardInterrupt")},
    ],
)
@pytest.mark.parametrize("units", [(CLEAN, TAKEN), (TAKEN, LOST), (TAKEN, FAILED)])
def test_an_attempt_whose_place_was_taken_away_has_not_failed(
    outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...]
) -> None:
    found = verdict(outcomes, *units)
    assert (found.end, found.message, found.began) == ("displaced", "its node was taken away", True)
    assert verdict(outcomes, *units, asked=True).end == "stopped"
    assert verdict(BOTH_DONE, *units).end == "done"


def test_an_attempt_that_found_no_place_is_known_to_have_had_no_part_in_it() -> None:
    nowhere = UnitStatus("lost", displaced="nothing starts on node n0", began=False)
    assert verdict({}, nowhere, FAILED).began is False


def test_a_group_that_the_script_makes_itself_is_named_as_the_mistake_of_an_elastic_job() -> None:
    twice = said("crashed", message="ValueError: trying to initialize the default process group twice!")
    assert verdict({0: twice}, FAILED).message == (
        'the elastic library connects the workers: leave out init_process_group, or set "elastic" to "none" '
        "(rank 0 crashed: ValueError: trying to initialize the default process group twice!)"
    )
    assert verdict({0: twice}, FAILED, elastic=False).message == f"rank 0 crashed: {twice.message}"


NO_ADDRESS = "ValueError: environment variable MASTER_ADDR expected, but not set"
NO_GROUP = "ValueError: Default process group has not been initialized, please call it"


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        ("fully_shard(model)", NO_ADDRESS, "fully_shard; every worker has a whole copy of the model"),
        (
            "accelerator = Accelerator()",
            NO_ADDRESS,
            "Accelerator: job.prepare takes the place of its prepare, loss.backward() that of its backward",
        ),
        ("model = DDP(model)", NO_GROUP, "DistributedDataParallel: job.prepare makes it"),
    ],
)
def test_what_connects_the_workers_beside_the_library_is_named(line: str, message: str, advice: str) -> None:
    trace = ["Traceback (most recent call last):", f"    {line}", message]
    crashed = {0: said("crashed", message=message)}
    found = judge(crashed, [FAILED], ranks=1, elastic=True, stop_requested=False, trace=lambda: trace)
    assert found.message == (
        f'the elastic library connects the workers: leave out {advice}, or set "elastic" to "none" '
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


@pytest.mark.parametrize(
    ("units", "end", "message"),
    [
        ([CLEAN], "done", ""),
        ([UnitStatus("exited", 3)], "failed", "exit code 3"),
        ([UnitStatus("exited", -15)], "failed", "killed by SIGTERM"),
        ([LOST], "failed", "killed, no exit code"),
        ([], "failed", "no exit code"),  # never started
    ],
)
def test_a_script_without_the_library_is_judged_by_its_exit_code(
    units: list[UnitStatus], end: str, message: str
) -> None:
    found = verdict({}, *units, elastic=False)
    assert (found.end, found.message, found.samples_done) == (end, message, None)


def test_a_script_without_the_library_that_was_asked_to_stop_has_stopped() -> None:
    assert verdict({}, UnitStatus("exited", -15), elastic=False, asked=True).end == "stopped"


def test_an_elastic_job_must_use_the_library() -> None:
    found = verdict({}, CLEAN, CLEAN)
    assert found.end == "failed"
    assert 'set "elastic" to "none"' in found.message


def test_a_gang_is_broken_by_a_bad_exit_a_vanished_worker_or_a_crash_but_not_by_an_early_end() -> None:
    running = UnitStatus("running")
    assert broken([running, FAILED], {})
    assert broken([running, LOST], {})
    assert broken([running, running], {1: said("crashed")})
    assert not broken([running, CLEAN], {1: said("done")})
    assert broken([running, FAILED], {1: said("done")}), "its script failed after the training"
    assert not broken([running, LOST], {1: said("done")}), "a launcher that was killed says nothing"
    assert not broken([running, UnitStatus("exited", -9)], {1: said("done")})


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
