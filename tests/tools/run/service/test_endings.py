from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.members import Ending, broken, describe, judge
from pliant.tools.run.statedir.contract.plan import LOST_PEER, WorkerOutcome

KILLED = "killed by SIGKILL, which the system sends where memory runs out"
CLEAN = UnitStatus("exited", 0)
FAILED = UnitStatus("exited", 1)
KILL = UnitStatus("exited", -9)
LOST = UnitStatus("lost")
RUNS = UnitStatus("running")


def said(outcome: str, samples: float = 100.0, message: str = "") -> WorkerOutcome:
    return WorkerOutcome.model_validate({"outcome": outcome, "samples_done": samples, "message": message})


def verdict(
    outcomes: dict[int, WorkerOutcome], *units: UnitStatus, elastic: bool = True, asked: bool = False
) -> Ending:
    return judge(outcomes, units, ranks=2, elastic=elastic, stop_requested=asked)


BOTH_DONE = {0: said("done"), 1: said("done")}
BOTH_STOPPED = {0: said("stopped"), 1: said("stopped")}
NOTICED = said("crashed", message=f"{LOST_PEER}: RuntimeError: closed by peer")
NO_MEMORY, NO_FILE = said("crashed", message="out of memory"), said("crashed", message="no file")


OUT_OF_MEMORY = "rank 1 crashed: out of memory"
VANISHED = f"rank 1 vanished ({KILLED})"
JUST_NOTICED = f"rank 0 crashed: {NOTICED.message}"


@pytest.mark.parametrize(
    ("asked", "outcomes", "units", "end", "message"),
    [
        (False, BOTH_DONE, (FAILED, FAILED), "done", ""),  # whatever torchrun says
        (False, BOTH_STOPPED, (CLEAN, CLEAN), "failed", "stopped by somebody else"),
        (False, {0: said("stopped"), 1: NO_MEMORY}, (CLEAN, FAILED), "failed", OUT_OF_MEMORY),
        (False, {0: NOTICED, 1: NO_MEMORY}, (FAILED, FAILED), "failed", OUT_OF_MEMORY),  # what comes first
        (False, {0: NOTICED, 1: NOTICED}, (FAILED, FAILED), "failed", JUST_NOTICED),
        (False, {0: NO_FILE, 1: NO_MEMORY}, (FAILED, FAILED), "failed", "rank 0 crashed: no file"),
        (False, {0: NOTICED}, (FAILED, KILL), "failed", VANISHED),
        (False, {1: NOTICED}, (RUNS, FAILED), "failed", f"rank 1 crashed: {NOTICED.message}"),
        (False, {0: said("stopped")}, (CLEAN, KILL), "failed", VANISHED),
        (True, BOTH_STOPPED, (FAILED, FAILED), "stopped", ""),  # as torchrun exits
        (True, {0: NOTICED}, (FAILED, KILL), "stopped", JUST_NOTICED),
        (True, {0: said("stopped")}, (CLEAN, LOST), "stopped", "rank 1 vanished (killed, no exit code)"),
        (True, BOTH_DONE, (CLEAN, CLEAN), "done", ""),
    ],
)
def test_an_elastic_job_is_judged_by_what_its_workers_say(
    asked: bool, outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...], end: Any, message: str
) -> None:
    assert verdict(outcomes, *units, asked=asked) == Ending(end, message, 100.0)


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
def test_an_attempt_whose_place_was_taken_is_displaced(
    outcomes: dict[int, WorkerOutcome], units: tuple[UnitStatus, ...]
) -> None:
    found = verdict(outcomes, *units)
    assert (found.end, found.message, found.began) == ("displaced", "its node was taken away", True)
    assert verdict(outcomes, *units, asked=True).end == "stopped"
    assert verdict(BOTH_DONE, *units).end == "done"
    nowhere = UnitStatus("lost", displaced="nothing starts on node n0", began=False)
    assert verdict({}, nowhere, FAILED).began is False


TWICE = "ValueError: trying to initialize the default process group twice!"
NO_ADDRESS = "ValueError: environment variable MASTER_ADDR expected, but not set"
NO_GROUP = "ValueError: Default process group has not been initialized, please call it"


def test_an_obstacle_in_the_script_is_named_with_its_remedy(golden_text: Callable[..., None]) -> None:
    """It connects the workers besides the elastic library, or needs torchrun on its one GPU."""
    ask, found = partial(judge, units=[FAILED], ranks=1, stop_requested=False), []
    for line, message in (
        ("", TWICE),
        ("fully_shard(model)", NO_ADDRESS),
        ("accelerator = Accelerator()", NO_ADDRESS),
        ("model = DDP(model)", NO_GROUP),
    ):
        trace = ["Traceback (most recent call last):", f"    {line}", message]
        crashed = {0: said("crashed", message=message)}
        found += [ask(crashed, elastic=True, trace=lambda trace=trace: trace).message]
        if message != NO_ADDRESS:
            plain = verdict(crashed, FAILED, elastic=message == NO_GROUP)
            assert plain.message == f"rank 0 crashed: {message}", "not elastic, or no line that shows why"
    for words in ("KeyError: 'LOCAL_RANK'", "ValueError: environment variable RANK expected"):
        found += [ask({}, elastic=False, words=lambda _, words=words: words).message]
    golden_text("\n".join(found))


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
def test_a_plain_script_is_judged_by_its_exit_code(units: list[UnitStatus], end: str, message: str) -> None:
    ending = verdict({}, *units, elastic=False)
    assert (ending.end, ending.message, ending.samples_done) == (end, message, None)
    assert verdict({}, UnitStatus("exited", -15), elastic=False, asked=True).end == "stopped"
    unused = verdict({}, CLEAN, CLEAN)
    assert (unused.end, 'set "elastic" to "none"' in unused.message) == ("failed", True)


def test_what_breaks_a_gang() -> None:
    done = {1: said("done")}
    assert broken([RUNS, FAILED], {})
    assert broken([RUNS, LOST], {})
    assert broken([RUNS, RUNS], {1: said("crashed")})
    assert not broken([RUNS, CLEAN], done)
    assert broken([RUNS, FAILED], done), "its script failed after the training"
    assert not broken([RUNS, LOST], done), "a launcher that was killed says nothing"
    assert not broken([RUNS, KILL], done)


def test_an_exit_in_words() -> None:
    words = {0: "", 1: "KeyError: 7"}
    assert describe([CLEAN, FAILED], words.__getitem__) == "exit code 1: KeyError: 7"
    assert describe([FAILED, CLEAN], words.__getitem__) == "exit code 1"
    assert describe([CLEAN, KILL], words.__getitem__) == KILLED
    assert describe([UnitStatus("exited", -40)]) == "killed by signal 40"
    assert describe([CLEAN, UnitStatus("exited", -11)]) == "killed by SIGSEGV"
    assert describe([CLEAN]) == "no exit code"


def test_a_stop_names_the_signal_and_the_exit_code_alone() -> None:
    """torchrun exits with 1 after a SIGTERM, and its workers printed a warning last, or a progress bar."""

    def printed(_: int) -> str:
        return "local_plan = storage_writer.prepare_local_plan()"

    ask = partial(judge, {}, ranks=1, elastic=False, stop_requested=True, words=printed)
    assert ask([FAILED], sent="SIGTERM").message == (
        "ended by SIGTERM, which was sent to stop it (exit code 1)"
    )
    killed = ask([KILL], sent="SIGKILL")
    assert (killed.end, killed.message) == ("stopped", "ended by SIGKILL, which was sent to stop it")
    assert ask([FAILED]).message == "exit code 1"
