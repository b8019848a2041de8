"""How an attempt ended: judged from what its workers wrote, and from exit codes where they wrote nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pliant.tools.profile.torchrun.start import is_usage_error
from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.statedir.contract.plan import ENDED_EARLY, LOST_PEER, WorkerOutcome

_FAILED: Final = ("crashed", "cut_off")
_OWN_GROUP: Final = (
    "environment variable MASTER_ADDR expected",
    "initialize the default process group twice",
)
"""Messages of PyTorch if the script of an elastic job calls ``init_process_group`` itself."""
_NO_GROUP: Final = "Default process group has not been initialized"
"""Message of PyTorch if a group is needed before the library has connected the workers."""
_WHOLE: Final = "; every worker has a whole copy of the model"
_CONNECTS: Final = (
    (r"\bfully_shard\(|_fully_shard\.py", "fully_shard", _WHOLE),
    (r"\bFullyShardedDataParallel\(|\bFSDP\(", "FullyShardedDataParallel", _WHOLE),
    (r"\bDistributedDataParallel\(|\bDDP\(", "DistributedDataParallel", ": job.prepare makes it"),
    (
        r"\bAccelerator\(",
        "Accelerator",
        ": job.prepare takes the place of its prepare, loss.backward() that of its backward",
    ),
    (r"\bdeepspeed\.initialize\(", "deepspeed.initialize", _WHOLE),
    (r"/lightning\w*/", "Lightning's Trainer or Fabric", ": job.prepare and job.epochs take their place"),
    (r"\binit_device_mesh\(", "init_device_mesh", _WHOLE),
)
"""Calls that connect workers, or need them connected: mark in a traceback, name, advice."""
_LAUNCHED: Final = re.compile(
    r"KeyError: '(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)'|environment variable \w+ expected"
)
"""Messages of a script that expects torchrun."""
_ASK_FOR_TORCHRUN: Final = 'a script on one GPU is started by python: let "command" begin with "torchrun"'


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended.

    ``stopped``: on request; it can go on from its last checkpoint. ``displaced``: likewise, but by another
    party than itself or this launcher.
    """

    end: Literal["done", "stopped", "displaced", "failed"]
    message: str = ""
    samples_done: float | None = None
    """Samples trained so far; None if the script does not say."""
    began: bool = True
    """False if a part of it never ran, so that the job cannot have caused its end."""
    exit_code: int | None = None
    """Exit code of the unit that failed first, negative for a signal; None if not known."""
    by_itself: bool = False
    """The script failed, and nobody else ended it: where it was, it would fail again."""
    is_final: bool = False
    """No retry helps, as where its command line is wrong or names no script."""


def judge(
    outcomes: Mapping[int, WorkerOutcome],
    units: Sequence[UnitStatus],
    *,
    ranks: int,
    elastic: bool,
    stop_requested: bool,
    at_break: Sequence[UnitStatus] = (),
    words: Callable[[int], str] = lambda _unit: "",
    trace: Callable[[], Sequence[str]] = tuple,
    sent: str = "",
    leaves: bool = False,
) -> Ending:
    """How an attempt ended whose units are all gone.

    :param outcomes: what each rank wrote as its last act.
    :param elastic: the script uses the elastic library, so outcomes are expected.
    :param stop_requested: a stop was asked for, so the job is not at fault.
    :param at_break: the units when the first of them was found gone; the launcher ended the others.
    :param words: the last words on stderr of a unit, by its place in ``units``.
    :param trace: the end of what workers wrote on stderr.
    :param sent: the signal that a slow stop sent in the end; empty if none.
    :param leaves: an exit code of 0 means that the script has saved and can go on.
    """
    cause = describe(at_break or units, words)
    if stop_requested:
        cause = _stopped(units, sent) if sent else describe(at_break or units)
    verdict = (
        _by_outcomes(
            outcomes,
            units,
            ranks,
            cause,
            at_break=() if stop_requested else at_break or units,
            words=words,
        )
        if outcomes
        else _by_codes(units, cause, elastic=elastic, leaves=leaves)
    )
    if verdict.end == "failed":
        verdict = _cause(verdict, outcomes, at_break or units)
    if elastic and (advice := _on_own_group(verdict.message, trace)):
        verdict = replace(verdict, message=f"{advice} ({verdict.message})")
    elif not elastic and ranks == 1 and _LAUNCHED.search(verdict.message):
        verdict = replace(verdict, message=f"{_ASK_FOR_TORCHRUN} ({verdict.message})")
    taken = next((unit for unit in (*at_break, *units) if unit.displaced), None)
    if taken is not None and not stop_requested and verdict.end != "done":
        return Ending("displaced", taken.displaced, verdict.samples_done, taken.began)
    if stop_requested and verdict.end == "failed":
        return Ending("stopped", verdict.message, verdict.samples_done)
    if not stop_requested and verdict.end == "stopped":
        return Ending("failed", "stopped by somebody else", verdict.samples_done)
    return verdict


_CODES_OF_MISUSE: Final = (1, 2, 127)
"""argparse, click and Python itself end with 2 if they are called wrongly, ``python -m NOTHING`` with 1. 127:
a program is not there.
"""


def _cause(verdict: Ending, outcomes: Mapping[int, WorkerOutcome], units: Sequence[UnitStatus]) -> Ending:
    """A failure with its exit code, and whether the script caused it."""
    code = next((unit.code for unit in units if _ended_badly(unit) and unit.code is not None), None)
    crashed = [found.message for found in outcomes.values() if found.outcome == "crashed"]
    is_own = code is not None and code != -signal.SIGKILL  # that one also ends those that are not at fault
    if crashed:
        is_own = not all(message.startswith(LOST_PEER) for message in crashed)
    is_final = code in _CODES_OF_MISUSE and is_usage_error(verdict.message)
    return replace(verdict, exit_code=code, by_itself=is_own, is_final=is_final)


def _on_own_group(message: str, trace: Callable[[], Sequence[str]]) -> str:
    """What the script does that the library does, too, and what to do instead; empty if nothing."""
    makes = any(said in message for said in _OWN_GROUP)
    if not makes and _NO_GROUP not in message:
        return ""
    text = "\n".join(trace())
    found = next(((name, instead) for sign, name, instead in _CONNECTS if re.search(sign, text)), None)
    if found is None and not makes:
        return ""
    name, instead = found or ("init_process_group", "")
    return f'the elastic library connects the workers: leave out {name}{instead}, or set "elastic" to "none"'


def _by_outcomes(
    outcomes: Mapping[int, WorkerOutcome],
    units: Sequence[UnitStatus],
    ranks: int,
    cause: str,
    *,
    at_break: Sequence[UnitStatus],
    words: Callable[[int], str],
) -> Ending:
    """:param at_break: the units when the first was found gone; none if they were asked to go."""
    samples = max(outcome.samples_done for outcome in outcomes.values())
    crashed = {rank: found for rank, found in sorted(outcomes.items()) if found.outcome in _FAILED}
    if 0 in outcomes and outcomes[0].outcome == "done":
        return _by_first(outcomes[0], units, words)
    missing = sorted(set(range(ranks)) - set(outcomes))
    gone = [rank for rank in missing if rank < len(at_break) and _ended_badly(at_break[rank])]
    if crashed and not (gone and all(found.message.startswith(LOST_PEER) for found in crashed.values())):
        # the others noticed only that this one was gone
        rank, found = min(crashed.items(), key=lambda one: (one[1].message.startswith(LOST_PEER), one[0]))
        if found.message == ENDED_EARLY and rank < len(at_break) and _ended_badly(at_break[rank]):
            return Ending("failed", f"rank {rank} crashed: {found.message}: {words(rank)}", samples)
        return Ending("failed", f"rank {rank} crashed: {found.message or cause}", samples)
    if crashed:
        cause = describe(at_break[gone[0] : gone[0] + 1], lambda _: words(gone[0]))
    if missing:
        return Ending("failed", f"rank {(gone or missing)[0]} vanished ({cause})", samples)
    return Ending("stopped", samples_done=samples)


def _ended_badly(unit: UnitStatus) -> bool:
    return unit.state != "running" and unit.code != 0


def _by_first(outcome: WorkerOutcome, units: Sequence[UnitStatus], words: Callable[[int], str]) -> Ending:
    """Rank 0 is done, unless its script exits with an error: ``sys.exit("diverged")``."""
    code = units[0].code if units else None
    if outcome.exit_counts and code is not None and code > 0:
        reason = ": ".join(filter(None, (f"the script ended with exit code {code}", words(0))))
        return Ending("failed", reason)
    return Ending("done", samples_done=outcome.samples_done)


def _by_codes(units: Sequence[UnitStatus], cause: str, *, elastic: bool, leaves: bool) -> Ending:
    clean = bool(units) and all(unit.code == 0 for unit in units)
    if clean and not elastic:
        return Ending("stopped" if leaves else "done")
    if clean:
        message = 'the script ended without an outcome: use the elastic library, or set "elastic" to "none"'
        return Ending("failed", message)
    return Ending("failed", cause)


def broken(units: Sequence[UnitStatus], outcomes: Mapping[int, WorkerOutcome]) -> bool:
    """Whether a part of a running gang is gone, so that the rest only waits for it.

    A launcher that was killed after its worker's last word does not count.
    """
    reported = {rank for rank, outcome in outcomes.items() if outcome.outcome != "crashed"}
    return any(
        unit.state == "exited" and unit.code is not None and unit.code > 0
        if rank in reported
        else unit.state == "lost" or (unit.state == "exited" and unit.code != 0)
        for rank, unit in enumerate(units)
    ) or any(outcome.outcome == "crashed" for outcome in outcomes.values())


def describe(units: Sequence[UnitStatus], words: Callable[[int], str] = lambda _unit: "") -> str:
    """The exit of the first unit that did not end well, in words.

    :param words: the last words of a unit, by its place in ``units``.
    """
    place = next((i for i, unit in enumerate(units) if _ended_badly(unit)), None)
    if place is None:
        return "no exit code"
    code = units[place].code
    if code is None:
        return "killed, no exit code"
    if code < 0:
        by_whom = ", which the system sends where memory runs out" if -code == signal.SIGKILL else ""
        return f"killed by {_name(-code)}{by_whom}"
    return ": ".join(filter(None, (f"exit code {code}", words(place))))


def _stopped(units: Sequence[UnitStatus], sent: str) -> str:
    code = next((unit.code for unit in units if unit.code is not None and unit.code > 0), None)
    return f"ended by {sent}, which was sent to stop it" + ("" if code is None else f" (exit code {code})")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
