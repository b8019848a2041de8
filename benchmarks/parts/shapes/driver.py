"""Runs a shape in each mode, and says what became of it: right, refused, warned, or wrong without a word.

``python -m benchmarks.parts.shapes [SHAPE…] [--modes MODE…]`` prints a line for each shape and mode.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.parts.shapes.table import Shape, shapes
from pliant.tools.run.statedir.contract.liveness import life
from tests.tools.run.elastic.gang import BASE, Gang
from tests.tools.run.elastic.nursery import Worker, preload

SCRIPT: Final = Path(__file__).with_name("script.py")
TOLERANCE: Final = 1e-9
"""Relative to the largest number; all are 64-bit."""
_PLAN: Final[dict[str, Any]] = {"global_batch": 32, "seed": 0, "timeout_s": 20, "patience_s": 10}
_LIMIT_S: Final = 120.0
AT_ONCE: Final = 4
"""Runs at the same time."""


@dataclass(frozen=True, slots=True)
class Mode:
    """Workers and micro-steps at the start, and what comes later, at which pass of worker 0."""

    workers: int = 1
    accum: int = 1
    teams: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By pass, who trains on."""
    restarts_at: int | None = None


MODES: Final = {
    "two workers": Mode(workers=2),
    "micro-steps": Mode(accum=2),
    "1-2-1": Mode(teams={5: (0, 1), 19: (0,)}),
    "join in an epoch": Mode(teams={11: (0, 1)}),
    "restart in an epoch": Mode(restarts_at=11),
}


@dataclass(slots=True)
class Run:
    """What one run has left behind."""

    finals: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By worker, what its models ended with."""
    seen: dict[int, Counter[int]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    """Of the workers that failed."""
    warnings: list[str] = field(default_factory=list)
    errors: str = ""
    lacks: str = ""
    """What should have happened and has not."""


class Judgement(NamedTuple):
    """What became of a run."""

    kind: str
    """right, refused, warned, wrong (without a word), crashed or not run."""
    why: str
    distance: float = math.inf
    """Of its weights, learning rates and result from those expected, relative to the largest number."""


def plain(shape: Shape) -> Run:
    """One process of PyTorch, or of the library where PyTorch has no such loop."""
    folder = Path(tempfile.mkdtemp(prefix="shape-"))
    try:
        options = {"out": str(folder), "shape": shape.name, "plain": shape.plain}
        worker = Worker(SCRIPT, json.dumps(options), {**BASE, "OMP_NUM_THREADS": "1"}, folder / "errors")
        end([worker])
        return _left_in(folder, Run(errors=(folder / "errors").read_text()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(shape: Shape, mode: Mode) -> Run:
    """A job of the shape, under plans as ``pliant run`` writes them."""
    folder = Path(tempfile.mkdtemp(prefix="shape-"))
    holds = [*mode.teams, *([] if mode.restarts_at is None else [mode.restarts_at])]
    slow_s = 0.04 if mode.teams else 0.0
    gang = Gang(folder, script=SCRIPT, shape=shape.name, holds=holds, slow_s=slow_s)
    gone = Run()
    try:
        gang.start(mode.workers, accum=mode.accum, **_PLAN)
        for at, team in mode.teams.items():
            if not _holds(folder, at, gang):
                break
            gang.publish(team, **_PLAN)
            gang.add(*(number for number in team if number >= len(gang.workers)))
            there = _until(partial(_are_alive, gang, team), gang)
            (folder / f"go-{at}").touch()
            if not there or not _until(lambda: _has_begun(gang), gang):
                gone.lacks = f"no change at pass {at}"
        if mode.restarts_at is not None and _holds(folder, mode.restarts_at, gang):
            gang.publish(mode.workers, abort=True, **_PLAN)
            time.sleep(0.3)
            (folder / f"go-{mode.restarts_at}").touch()
            end(gang.workers)
            gang.options["holds"] = []
            gang.start(mode.workers, **_PLAN)
        end(gang.workers)
        gone.messages, gone.warnings, gone.errors = outcomes(gang)
        return _left_in(folder, gone)
    finally:
        gang.kill()
        shutil.rmtree(folder, ignore_errors=True)


def outcomes(gang: Gang) -> tuple[list[str], list[str], str]:
    """Why workers failed, what they warned of, and what they wrote to standard error."""
    messages = []
    for number in range(len(gang.workers)):
        try:
            outcome = gang.outcome(number)
        except AssertionError:
            messages.append(f"worker {number} left no outcome")
        else:
            if outcome.outcome not in {"done", "left", "stopped"}:
                messages.append(outcome.message or outcome.outcome)
    return messages, gang.warnings(), gang.errors()


def _left_in(folder: Path, into: Run) -> Run:
    into.finals = {one.stem[6:]: json.loads(one.read_text()) for one in folder.glob("final-*.json")}
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    for path in folder.glob("seen-*.jsonl"):
        for line in path.read_text().splitlines():
            epoch, numbers = json.loads(line)
            seen[epoch].update(numbers)
    into.seen = dict(seen)
    return into


def _holds(folder: Path, at: int, gang: Gang) -> bool:
    return _until((folder / f"holds-{at}").exists, gang)


def _are_alive(gang: Gang, team: Sequence[int]) -> bool:
    return all(life(gang.here.presence(worker)) == "alive" for worker in team)


def _has_begun(gang: Gang) -> bool:
    wanted = gang.generation
    return any((event.detail or {}).get("generation") == wanted for event in gang.events("progress"))


def _until(condition: Callable[[], bool], gang: Gang) -> bool:
    """False if it does not come about."""
    deadline = time.monotonic() + _LIMIT_S / 2
    while not condition():
        if time.monotonic() > deadline or all(worker.poll() is not None for worker in gang.workers):
            return condition()
        time.sleep(0.02)
    return True


def end(workers: Sequence[Worker]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    for worker in workers:
        if worker.poll() is None:
            worker.kill()


def judged(mine: Run, reference: Run, *, is_cut: bool) -> Judgement:
    """What became of a run.

    :param is_cut: it has micro-steps, whose passes come again where optimizers take turns.
    """
    if mine.messages:
        refused = [one for one in mine.messages if "UsageError" in one]
        return Judgement("refused", refused[0]) if refused else Judgement("crashed", mine.messages[0])
    if mine.lacks or not mine.finals or not reference.finals:
        return Judgement("not run", mine.lacks or _last_line(mine.errors))
    apart = _distances(mine, reference)
    off = [f"{what} {distance:.1e}" for what, distance in apart.items() if not distance <= TOLERANCE]
    if mine.seen != reference.seen and not (is_cut and _same_samples(mine.seen, reference.seen)):
        off.append(f"samples { ({epoch: one.total() for epoch, one in sorted(mine.seen.items())}) }")
    text, most = ", ".join(off), max(apart.values())
    if not off:
        return Judgement("right", "", most)
    if mine.warnings:
        return Judgement("warned", f"{text}: {mine.warnings[0]}", most)
    return Judgement("wrong", text, most)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _same_samples(mine: Mapping[int, Counter[int]], expected: Mapping[int, Counter[int]]) -> bool:
    """Whether each sample came as often as expected; a multiple of that where passes come again for turns."""
    return mine.keys() == expected.keys() and all(
        mine[epoch].keys() == expected[epoch].keys()
        and all(mine[epoch][number] % count == 0 for number, count in expected[epoch].items())
        for epoch in mine
    )


def _distances(mine: Run, reference: Run) -> dict[str, float]:
    """Of what each worker ended with, by its kind."""
    (expected,) = reference.finals.values()
    kinds = [kind for kind in expected if kind != "buffers"]  # those of batch normalization are local
    return {
        kind: max(_distance(final[kind], expected[kind]) for final in mine.finals.values()) for kind in kinds
    }


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        return math.inf
    scale = max((abs(number) for number in other), default=1.0) or 1.0
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return math.inf if any(map(math.isnan, apart)) else max(apart, default=0.0) / scale


def results(
    chosen: Sequence[Shape],
    modes: Mapping[str, Mode] = MODES,
    told: Callable[[str, str, Judgement], None] = lambda *_: None,
) -> dict[str, dict[str, Judgement]]:
    """By shape and mode, what became of it. ``told`` gets each as it comes."""
    preload("benchmarks.parts.shapes.script")
    preload("benchmarks.parts.shapes.driver")

    def of(shape: Shape) -> dict[str, Judgement]:
        reference = plain(shape)
        if not reference.finals and shape.decision != "refused":
            return {"plain": Judgement("not run", _last_line(reference.errors))}
        found = {}
        for name, mode in modes.items():
            found[name] = judged(run(shape, mode), reference, is_cut=mode.accum > 1)
            told(shape.name, name, found[name])
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip([one.name for one in chosen], pool.map(of, chosen), strict=True))


def main(words: Sequence[str]) -> int:
    """Run shapes, and print a line for each mode. Exits with 1 if one is wrong without a word."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("shapes", nargs="*", metavar="SHAPE")
    options.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES), metavar="MODE")
    given = options.parse_args(words)
    table = shapes()
    chosen = [one for one in table.values() if not given.shapes or one.name in given.shapes]

    def told(name: str, mode: str, found: Judgement) -> None:
        print(f"{name:46s} {mode:18s} {found.kind:7s} {found.why}", flush=True)

    judged = results(chosen, {mode: MODES[mode] for mode in given.modes}, told)
    silent = [
        name
        for name, by_mode in judged.items()
        if any(one.kind in {"wrong", "not run"} for one in by_mode.values()) and not table[name].is_documented
    ]
    print(f"{len(silent)} of {len(judged)} wrong without a word: {', '.join(silent) or 'none'}")
    return int(bool(silent))
