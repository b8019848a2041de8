"""Loops over steps, several models and several optimizers: resized and killed, they train as one process."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pliant.tools.profile.measuring.request import ENV_PROFILE, LaunchOutcome, MeasurementRequest, best_visits
from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from tests.tools.run.elastic.gang import Gang, final, plain

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("stepping.py")
KINDS = (
    "inner",
    "passes",
    "gan",
    "gan steps",
    "gan inner",
    "muon",
    "closure",
    "stream",
    "stateful stream",
    "carried",
    "thaw",
    "thaw groups",
)
PLACES = (
    ("inner", "top", 2),
    ("inner", "mid", 2),
    ("inner", "end", 1),
    ("passes", "top", 1),
    ("passes", "mid", 2),
    ("passes", "end", 2),
    ("gan", "first", 2),
    ("gan", "second", 1),
    ("gan steps", "second", 2),
    ("gan inner", "second", 2),
)
Make = Callable[..., Gang]


@pytest.mark.parametrize("kind", KINDS)
def test_resized_killed_and_relaunched_it_trains_the_same(gang: Make, tmp_path: Path, kind: str) -> None:
    job = gang(kind=kind, step_s=0.02)
    job.start(1)
    job.wait_for("progress")
    job.goes_through([0, 1])
    job.publish([0, 1], accum=2)
    job.reaches()
    job.publish([1], accum=3)
    job.reaches()
    job.goes_through([1, 2])
    job.signal(1, signal.SIGKILL)
    job.goes_through([2], [2, 3])
    job.publish([2, 3], abort=True)
    job.end()
    assert job.outcomes_of(2, 3) == ["stopped"] * 2, job.errors()
    assert job.run_and_stop(2, accum=2) == ["stopped"] * 2
    assert_trained_as_alone(job, tmp_path, kind)


@pytest.mark.parametrize(("kind", "place", "accum"), PLACES)
def test_rank_0_dies_at_a_place_while_another_joins(
    gang: Make, tmp_path: Path, kind: str, place: str, accum: int
) -> None:
    job = gang(kind=kind, step_s=0.01, die=[0, 12, place])
    job.start(2, accum=accum)
    job.until(lambda: job.workers[0].poll() == -signal.SIGKILL, "kill")
    job.options["die"] = None
    job.publish([1, 2], accum=accum)
    job.add(2)
    job.reaches()
    job.wait_for("progress", len(job.events("progress")) + 10)  # what is amiss may show after some steps
    job.publish([1, 2], accum=accum, abort=True)
    job.end()
    assert job.outcomes_of(1, 2) == ["stopped"] * 2, job.errors()
    assert_trained_as_alone(job, tmp_path, kind)


def assert_trained_as_alone(job: Gang, folder: Path, kind: str) -> None:
    """The checkpoint has the weights of one process after as many steps, which agreed on the same values."""
    saved = Checkpoints(job.dir.checkpoints).load().state
    assert saved is not None
    steps = saved["counters"]["step"]
    plain(folder / "alone", script=SCRIPT, kind=kind, stop_at=steps)
    expected = final(folder / "alone")["model"]
    got = saved["model"] if kind.startswith("gan") else {f"net.{k}": v for k, v in saved["model"].items()}
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    alone = {(step, place): loss for step, place, loss in agreed(folder / "alone")}
    for step, place, loss in agreed(folder):
        if step < steps and place == "top":
            assert loss == pytest.approx(alone[step, place], rel=1e-9), (step, place)


def test_a_joining_worker_reads_a_stateful_stream_from_there(gang: Make, tmp_path: Path) -> None:
    job = gang(kind="stateful stream", step_s=0.02)
    job.start(1)
    job.wait_for("progress")
    job.goes_through([0, 1])
    job.publish([0, 1], abort=True)
    job.end()
    first, second = sorted(map(Path.read_text, tmp_path.glob("read-*")), key=len, reverse=True)
    assert first.endswith(second), "it has read nothing that was trained before"


@pytest.mark.parametrize(("kind", "workers"), [(kind, 1) for kind in KINDS] + [("gan", 2), ("inner", 2)])
def test_a_measurement_takes_the_place_of_the_training(tmp_path: Path, kind: str, workers: int) -> None:
    result, order = tmp_path / "outcome.json", tmp_path / "request.json"
    more = {"global_batches": (9,)} if workers == 1 else {"costs": True}
    request = MeasurementRequest(result=str(result), local_batches=(4,), least_seconds=0, **more)
    order.write_text(request.model_dump_json())
    plain(tmp_path, script=SCRIPT, kind=kind, workers=workers, env={ENV_PROFILE: str(order)})
    outcome = LaunchOutcome.model_validate_json(result.read_bytes())
    assert outcome.done
    assert (outcome.checkpoint_s is not None) == (outcome.rescale_s is not None) == (workers > 1)
    assert 0 <= (outcome.rescale_s or 0) < 60, "the workers have rehearsed a change in place"
    points = [(point.local_batch, point.accum) for point in best_visits(outcome.points)]
    assert points == [(4, 1), (3, 3)][: 3 - workers]
    assert not list(tmp_path.glob("agreed-*")), "no time is spent on evaluation"


def agreed(folder: Path) -> list[tuple[int, str, float]]:
    return [json.loads(line) for path in folder.glob("agreed-*") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_torchrun_and_cut_micro_batches_train_the_same(tmp_path: Path, kind: str) -> None:
    plain(tmp_path / "alone", script=SCRIPT, kind=kind, stop_at=12)
    plain(tmp_path / "two", script=SCRIPT, kind=kind, stop_at=12, workers=2, micro=2)
    expected = final(tmp_path / "alone")["model"]
    torch.testing.assert_close(final(tmp_path / "two")["model"], expected, rtol=1e-9, atol=1e-11)
    if kind.endswith("inner"):
        plain(tmp_path / "cut", script=SCRIPT, kind=kind, stop_at=12, micro=4)
        torch.testing.assert_close(final(tmp_path / "cut")["model"], expected, rtol=1e-9, atol=1e-11)
