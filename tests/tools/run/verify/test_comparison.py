"""What recordings of the same training show, beside that of the plain process: no process is started."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.run.statedir.contract.recording import RecordedScript, RecordedStep, RunFolder
from pliant.tools.run.verify.comparison import Comparison, Recording, compare, difference
from pliant.tools.run.verify.report import causes, page, text_of
from pliant.tools.run.verify.trials import places_of
from pliant.tools.run.verify.verify import REPEATED, SCENARIOS, Verified
from tests.builders import job

ROOT = Path(__file__).parents[4]
BATCH, STEPS = 4, 6
Change = Callable[[RecordedStep], RecordedStep]


def part(number: int, rows: Sequence[int], **fields: Any) -> RecordedStep:
    """One worker's part of a step of two epochs, each of 12 samples; the loss is its sample's number."""
    epoch, at = divmod(number - 1, 3)
    found = {at * BATCH + row: f"{epoch}-{at * BATCH + row}" for row in rows}
    numbers = {"loss": float(sum(found)), "counted": len(found), "rates": [0.1], "draws": False}
    return RecordedStep(number, epoch, at * BATCH, BATCH, **{**numbers, "rows": found, **fields})


def recording(
    workers: Sequence[Sequence[int]] = (range(BATCH),), change: Change = lambda one: one
) -> Recording:
    """A training whose batches are divided like that."""
    by_step = {
        number: [(worker, change(part(number, rows))) for worker, rows in enumerate(workers)]
        for number in range(1, STEPS + 1)
    }
    return Recording(by_step, {})


PLAIN = recording()


def lost(other: Recording) -> set[str]:
    return {name for name, aspect in compare("", PLAIN, other, 1e-6).aspects.items() if not aspect.kept}


@given(st.integers(0, BATCH))
def test_any_division_of_the_batches_is_the_same_training(first: int) -> None:
    assert lost(recording([range(first), range(first, BATCH)])) == set()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda one: replace(one, rows=dict([*one.rows.items()][1:])), {"samples"}),
        (lambda one: replace(one, rows=dict.fromkeys(one.rows, "other")), {"samples", "order"}),
        (lambda one: replace(one, rows={at: f"{one.epoch}-{at ^ 1}" for at in one.rows}), {"order"}),
        (lambda one: replace(one, samples=3), {"order"}),
        (lambda one: replace(one, rates=[0.2 if one.step > 3 else 0.1]), {"learning rates"}),
        (lambda one: replace(one, loss=1.01 * one.loss), {"loss"}),
        (lambda one: replace(one, loss=float("nan")), {"loss"}),
        (lambda one: replace(one, counted=0), {"loss"}),
    ],
)  # fmt: skip
def test_what_is_lost_is_named(change: Change, expected: set[str]) -> None:
    assert lost(recording(change=change)) == expected


def test_samples_that_are_no_rows_count_by_their_place() -> None:
    unseen: Change = lambda one: replace(one, rows={})  # noqa: E731
    plain, other = recording(change=unseen), recording([range(2), range(2, 4)], unseen)
    assert compare("", plain, other, 1e-6).kept
    assert len(plain.samples) == len(other.samples) == STEPS * BATCH


def test_the_last_try_of_a_step_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.steps(1, 0).write_text("".join(part(number, range(4)).line() for number in (1, 2, 3)))
    files.steps(1, 1).write_text(part(1, ()).line() + part(2, ()).line()[:20])
    files.steps(2, 0).write_text("".join(part(number, range(4)).line() for number in (3, 4, 5, 6)))
    found = Recording.read(files)
    assert found.samples == PLAIN.samples
    assert (found.workers, list(found.by_step)) == ({0, 1}, [1, 2, 3, 4, 5, 6])


def test_weights_are_compared_by_the_largest_of_their_tensor(tmp_path: Path) -> None:
    def saved(name: str, *workers: Sequence[float]) -> Recording:
        files = RunFolder(tmp_path / name)
        files.path.mkdir()
        for worker, values in enumerate(workers):
            np.savez(files.weights(1, worker, 6), a=np.array([8.0]), b=np.array(values))
        return replace(PLAIN, weights=Recording.read(files).weights)

    plain = saved("plain", [1.0, -2.0])
    found = compare("", plain, saved("other", [1.0, -2.0], [1.1, -2.0]), 1e-6)
    assert found.aspects["weights"].difference == pytest.approx(0.05)
    assert (found.tensor, found.alike, found.kept) == ("b", False, False)
    assert compare("", plain, saved("alike", [1.0, -2.0 + 1e-9]), 1e-6).kept
    assert not compare("", plain, PLAIN, 1e-6).kept  # the last weights are missing


def test_differences_of_what_is_no_number_or_has_no_partner() -> None:
    values, infinite = np.array([np.nan, np.inf, 1.0]), float("inf")
    assert difference({"a": values}, {"a": values}) == (0.0, "a")
    assert difference({"a": values}, {"a": np.array([0.0, np.inf, 1.0])}) == (infinite, "a")
    assert difference({"a": values}, {"a": values, "b": values}) == (infinite, "b")
    assert difference({"a": values}, {"a": values[:2]}) == (infinite, "a")


def verified(*runs: Comparison, plain: Comparison | None = None) -> Verified:
    again = compare(REPEATED, PLAIN, PLAIN, 1e-6) if plain is None else plain
    script = RecordedScript(BATCH, 1, dropouts=2, norms=1)
    return Verified(job("a"), script, STEPS, True, 1e-6, (again, *runs))


def run(name: str, change: Change = lambda one: one, **fields: Any) -> Comparison:
    return replace(compare(name, PLAIN, recording(change=change), 1e-6), **fields)


STEADY, CHANGED = SCENARIOS[0].name, SCENARIOS[2].name
FAULTS = {
    "unseeded": verified(plain=run(REPEATED, lambda one: replace(one, loss=2 * one.loss))),
    "crash": verified(run(STEADY), Comparison(CHANGED, "rank 1 crashed: KeyError: 'x'")),
    "unregistered": verified(run(STEADY), run(CHANGED, lambda one: replace(one, rates=[0.1 * one.step]))),
    "loss": verified(run(STEADY, lambda one: replace(one, loss=2 * one.loss))),
    "count": verified(run(STEADY, lambda one: replace(one, rows={}) if one.step == 3 else one)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_likely_causes(fault: str, golden_text: Callable[..., None]) -> None:
    found = FAULTS[fault]
    assert not found.kept
    assert json.loads(text_of([found]))["jobs"][0]["causes"]
    golden_text(page(found, 100))
    for cause in causes(found):
        file, _, anchor = cause.link.partition("#")
        titles = re.findall(r"^## (.*)$", (ROOT / file).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_a_kept_training_has_no_causes() -> None:
    found = verified(*(run(scenario.name) for scenario in SCENARIOS))
    assert (found.kept, causes(found)) == (True, [])


@given(st.integers(3, 100))
def test_changes_come_within_the_training_and_in_order(steps: int) -> None:
    early, late = places_of(steps)
    assert 1 <= early < late < steps
