"""Studies carried out with launches that answer at once: what is asked, and what rows come of it."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import JobsFailedError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.measuring import run
from pliant.tools.profile.measuring.launch import Advance, LaunchEnd, Script
from pliant.tools.profile.measuring.plan import MeasuringOptions
from pliant.tools.profile.measuring.request import LaunchOutcome, MeasurementRequest, Point
from pliant.tools.profile.measuring.run import Launch, measure
from pliant.tools.profile.throughput import APART
from tests.builders import cluster, job
from tests.tools.profile.measuring.machine import Machine
from tests.tools.profile.rows_builder import reduce


def profiled(
    machine: Launch, nodes: Cluster, *, options: MeasuringOptions | None = None, more: Any = None, **spec: Any
) -> Profile:
    jobs = [job("a", model="net", command=("train.py",), **spec)]
    asked = options or MeasuringOptions()
    return measure(jobs, nodes, asked, clock=lambda: 1e9, start=machine, **(more or {})).profile


def found(profile: Profile) -> dict[tuple[int, int, int], ProfileRow]:
    return {(row.gpus, row.local_batch, row.accum_steps): row for row in profile.rows if row.kind == "train"}


CPUS = cluster(2, slots="cpu", gpu_type="cpu")


def test_one_launch_a_size_and_memory_that_runs_out() -> None:
    machine, steps = Machine(), list[tuple[int, int | None]]()
    count = {"progress": lambda done, total: steps.append((done, total))}
    rows = found(profiled(machine, CPUS, low=1, high=2, batch=8, more=count))
    assert [(name, workers) for name, workers, _ in machine.launches] == [("net", 1), ("net", 2)]
    assert set(rows) == {(1, 2, 1), (1, 4, 1), (1, 8, 1), (2, 2, 1), (2, 4, 1)}
    gang = rows[2, 4, 1]
    assert gang.step_seconds == pytest.approx(0.045)
    assert gang.compute_seconds == pytest.approx(0.04)
    assert gang.sync_seconds == pytest.approx(0.005)
    assert gang.samples_per_second == pytest.approx(8 / 0.045)
    alone = rows[1, 8, 1]
    assert (alone.compute_seconds, alone.sync_seconds) == (alone.step_seconds, 0.0)
    assert (alone.parameters, alone.peak_memory, alone.iterations) == (7, 100, 3)
    assert steps == sorted(steps)
    assert all(total is not None and done <= total for done, total in steps)
    assert steps[-1][0] == steps[-1][1]
    # Running out of memory starts again below.
    machine = Machine(limit=20)
    rows = found(profiled(machine, CPUS, low=1, high=2, batch=64))
    fits = {local for (gpus, local, _), row in rows.items() if gpus == 1 and row.feasible}
    misfits = {local for (gpus, local, _), row in rows.items() if gpus == 1 and not row.feasible}
    assert max(fits) == 20
    assert min(misfits) == 22
    assert rows[1, 32, 1].step_seconds is None
    assert rows[1, 16, 4].feasible
    assert rows[2, 16, 2].step_seconds == pytest.approx(0.325), "a gang accumulates, too"
    no_batch = found(profiled(Machine(limit=20), CPUS, gpus=2, batch={"size": None}))
    assert no_batch[2, 20, 1].feasible, "the largest that fits, on each worker"


def test_below_a_batch_that_fitted_only_once_the_search_goes_on() -> None:
    machine, late = Machine(limit=20), list[Point]()

    def close_to_the_limit(
        script: Script, workers: int, request: MeasurementRequest, advance: Advance
    ) -> LaunchEnd:
        ended = machine(script, workers, request, advance)
        if ended.out_of_memory or late:
            return ended
        fits = [point for point in (*request.known, *ended.outcome.points) if point.feasible]
        late.append(max(fits, key=lambda point: point.local_batch).model_copy(update={"feasible": False}))
        points = (*ended.outcome.points, *late)
        return replace(ended, outcome=ended.outcome.model_copy(update={"points": points}))

    rows = found(profiled(close_to_the_limit, CPUS, gpus=1, batch=64))
    fits = {local for (_, local, _), row in rows.items() if row.feasible}
    misfits = {local for (_, local, _), row in rows.items() if not row.feasible}
    assert (max(fits), min(misfits)) == (18, 20)


def test_where_nothing_fits_no_gang_starts_and_reduces_are_once() -> None:
    machine = Machine()

    def nothing_fits(
        script: Script, workers: int, request: MeasurementRequest, advance: Advance
    ) -> LaunchEnd:
        machine.launches.append((script.name, workers, request))
        if request.misfit == 1:
            return LaunchEnd(LaunchOutcome(done=True))
        local = (request.misfit or 9) // 2
        return LaunchEnd(LaunchOutcome(current=Point(local_batch=local)), out_of_memory=True)

    notes: list[str] = []
    profile = profiled(nothing_fits, CPUS, low=1, high=2, batch=8, more={"note": notes.append})
    assert not any(row.feasible for row in profile.rows)
    assert {workers for _, workers, _ in machine.launches} == {1}
    assert notes == ['model "net": no batch fits one worker; no gang was measured']
    # All reduces are measured on a grid once.
    nodes, asked = cluster(4, slots="cpu", gpu_type="cpu"), MeasuringOptions(allreduce=True)
    sums = [row for row in profiled(Machine(), nodes, options=asked).rows if not row.model]
    grid = [100_000, 1_000_000, 5_000_000, 10_000_000]
    assert [(row.gpus, row.parameters) for row in sums] == [(gpus, size) for gpus in (2, 4) for size in grid]
    assert {(row.kind, row.local_batch) for row in sums} == {("allreduce", 0)}
    # All reduces that are known are not measured again.
    machine, known = Machine(), (reduce(2, 100_000, 0.5, "cpu"),)
    made = profiled(machine, CPUS, options=MeasuringOptions(allreduce=True), more={"allreduce": known})
    assert known[0] in made.rows
    assert not any(request.weights for _, _, request in machine.launches)
    # The file says where it comes from.
    facts = dict(profiled(Machine(), CPUS, more={"command_line": "pliant profile j"}).metadata)
    assert facts["command"] == "pliant profile j"
    assert facts["torch"] == "2"
    assert {"tool", "host", "device", "driver", "seed"} <= set(facts)


def crashes(script: Script, workers: int, request: MeasurementRequest, advance: Advance) -> LaunchEnd:
    if script.name == "bad":
        raise JobsFailedError("bad: KeyError: 7")
    return Machine()(script, workers, request, advance)


def test_failing_scripts_cost_one_model_and_disturbed_ones_wait() -> None:
    jobs = [job(name, model=name, command=("train.py",)) for name in ("bad", "good")]
    made = measure(jobs, CPUS, MeasuringOptions(), clock=lambda: 1e9, start=crashes)
    assert {row.model for row in made.profile.rows} == {"good"}
    assert made.failures == ("bad: KeyError: 7",)
    with pytest.raises(JobsFailedError, match="bad: KeyError: 7"):
        measure(jobs[:1], CPUS, MeasuringOptions(), clock=lambda: 1e9, start=crashes)
    # A launch whose times disagree is repeated in quiet.
    machine, waited, notes = Machine(), list[int](), list[str]()
    slowed(machine, visits=6)

    def quiet(workers: int, _most_s: float) -> bool:
        waited.append(workers)
        return True

    options = MeasuringOptions(gpus=(1, 2), batches=(4,), patience_s=60.0)
    more = {"wait": quiet, "note": notes.append}
    row = found(profiled(machine, CPUS, options=options, batch=8, more=more))[2, 4, 1]
    assert [workers for _, workers, _ in machine.launches] == [1, 2, 2]
    assert waited == [2]
    assert row.step_seconds == pytest.approx(0.045)
    assert row.spread == pytest.approx(0.0)
    assert any("disturbed: measuring again" in text for text in notes)


def slowed(machine: Machine, visits: int) -> None:
    """The first visits of the gang are disturbed, each by more than the next."""
    left = [1.5**number for number in range(visits, 0, -1)]

    def disturbed(workers: int, _local: int) -> tuple[float, float | None]:
        return (left.pop(0) if workers > 1 and left else 1.0), None

    machine.disturbed = disturbed


@pytest.mark.parametrize(("patience_s", "is_quiet"), [(0.0, True), (60.0, False)])
def test_what_could_not_be_measured_again_keeps_its_spread(patience_s: float, is_quiet: bool) -> None:
    machine = Machine()
    slowed(machine, visits=40)
    options = MeasuringOptions(gpus=(1, 2), batches=(4,), patience_s=patience_s)
    more = {"wait": lambda _workers, _most_s: is_quiet}
    rows = found(profiled(machine, CPUS, options=options, batch=8, more=more))
    assert [workers for _, workers, _ in machine.launches] == [1, 2]
    assert (rows[1, 4, 1].spread, rows[1, 4, 1].visits) == (0.0, 2)
    assert (rows[2, 4, 1].spread or 0.0) > APART


@pytest.mark.parametrize(
    ("workers", "busy", "is_quiet"),
    [(1, [100.0, 50.0], True), (2, [60.0, 20.0], True), (2, [100.0] * 4, False)],
    ids=["one core is enough for one worker", "two need both", "never"],
)
def test_what_is_waited_for_is_as_many_free_cores_as_workers(monkeypatch, workers, busy, is_quiet):
    left, now_s = iter(busy), [0.0]

    def percent(interval: float) -> float:
        now_s[0] += interval
        return next(left)

    monkeypatch.setattr(run.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(run.psutil, "cpu_percent", percent)
    monkeypatch.setattr(run.time, "monotonic", lambda: now_s[0])
    assert run.wait_for_quiet(workers, 3.5) is is_quiet
    assert next(left, None) is None
