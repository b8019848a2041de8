import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from pliant.tools.profile.measuring import worker
from pliant.tools.profile.measuring.launch import read_outcome
from pliant.tools.profile.measuring.request import MeasurementRequest, Point, best_visits, is_settled, spread
from pliant.tools.profile.measuring.worker import (
    OtherLoad,
    OutcomeRecorder,
    Sweep,
    _Load,
    device_of,
    own_share,
)
from pliant.tools.profile.throughput import BUSY

pytestmark = pytest.mark.torch


def test_nothing_more_is_measured_for_a_launcher_that_was_killed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    request = MeasurementRequest(result=str(tmp_path / "outcome.json"), launcher_pid=gone.pid)
    meter = device_of(torch.device("cpu"), None)
    with pytest.raises(SystemExit, match="who started it is gone"):
        OutcomeRecorder(request, 0, 1, meter).begin(Point(local_batch=1))
    waiting = request.model_copy(update={"launcher_pid": os.getpid()})
    OutcomeRecorder(waiting, 0, 1, meter).begin(Point(local_batch=1))
    found = read_outcome(tmp_path / "outcome.json")
    assert found is not None
    assert found.current == Point(local_batch=1)


def load(time_s: float, **clocks: float) -> _Load:
    names = ("own_s", "waited_s", "trainer_s", "busy_s", "stolen_s")
    return _Load(time_s, **dict.fromkeys(names, 0.0) | clocks)


@pytest.mark.parametrize(
    ("ended", "share"),
    [
        (load(10.0, own_s=9.9, busy_s=10.0), 0.0),  # alone
        (load(10.0, own_s=7.0, waited_s=3.0, busy_s=7.0), 0.0),  # its own threads wait for each other
        (load(10.0, own_s=9.9, waited_s=0.1, busy_s=19.9), 0.01),  # others work on other cores
        (load(10.0, own_s=5.0, waited_s=5.0, busy_s=20.0), 0.5),
        (load(10.0, own_s=9.0, waited_s=4.0, busy_s=11.0), 0.2),  # half of what it waited was its own doing
        (load(10.0, own_s=6.0, busy_s=6.0, stolen_s=4.0), 0.4),  # a hypervisor took its core
        (load(10.0, own_s=1.0, waited_s=20.0, busy_s=40.0), 1.0),
    ],
)
def test_other_load_is_waiting_while_cores_worked_for_others(monkeypatch, ended, share):
    monkeypatch.setattr(worker.os, "cpu_count", lambda: 1)
    times = iter([load(0.0), ended])
    monkeypatch.setattr(_Load, "now", lambda: next(times))
    assert OtherLoad(torch.device("cpu")).share() == pytest.approx(share, abs=1e-3)


def test_time_that_others_took_is_taken_off_steps_on_cpu_slots(monkeypatch) -> None:
    monkeypatch.setattr(worker.os, "cpu_count", lambda: 1)
    ended = load(10.0, own_s=4.0, waited_s=9.0, trainer_s=6.0, busy_s=20.0)
    times = iter([load(0.0), ended])
    monkeypatch.setattr(_Load, "now", lambda: next(times))
    seen = OtherLoad(torch.device("cpu"))
    assert seen.share() == pytest.approx(0.9)
    assert own_share(device_of(torch.device("cpu"), None), seen) == pytest.approx(0.4)
    point = Point(local_batch=4, step_s=(0.25, 0.25), compute_s=(0.2, 0.2), own_share=0.4)
    assert (point.mean_s, point.mean_compute_s) == (pytest.approx(0.1), pytest.approx(0.08))
    # Else one would measure a point again and the others would not.
    times = iter([load(0.0), load(10.0, own_s=5.0, waited_s=1.0, busy_s=6.1)])
    monkeypatch.setattr(_Load, "now", lambda: next(times))
    asked: list[float] = []

    def largest(values: list[float], _device: torch.device) -> list[float]:
        asked.extend(values)
        return [0.12, 0.0] if len(asked) == 5 else values  # another worker has read more

    monkeypatch.setattr(worker, "largest", largest)
    assert OtherLoad(torch.device("cpu")).share() == 0.12
    assert asked[3] == pytest.approx(0.1)


def test_where_the_system_keeps_no_count_other_load_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "Path", lambda path: Path("/nowhere") / path.lstrip("/"))
    assert OtherLoad(torch.device("cpu")).share() is None


def test_processes_that_take_the_cores_away_are_noticed() -> None:
    spin = "print('here', flush=True)\nwhile True: pass"
    there = [
        subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        assert [process.stdout.readline() for process in there if process.stdout] == [b"here\n"] * len(there)
        seen = OtherLoad(torch.device("cpu"))
        until_s = time.process_time() + 0.15
        while time.process_time() < until_s:
            pass
        share = seen.share()
    finally:
        for process in there:
            process.kill()
            process.communicate()
    if share is None:
        pytest.skip("this system does not count the time in which threads wait for a core")
    assert share > BUSY


def swept(monkeypatch: pytest.MonkeyPatch, folder: Path, shares: dict[int, list[float]]) -> list[Point]:
    """What a sweep over local batches measures whose visits are disturbed so, batch by batch."""
    under_way: list[int] = []
    left = {batch: iter(each) for batch, each in shares.items()}

    class Scripted:
        of_steps = 0.0

        def __init__(self, _device: torch.device) -> None:
            pass

        def share(self) -> float:
            return next(left[under_way[-1]])

    def batches(lists: Iterable[list[int]]) -> Iterator[torch.Tensor]:
        for indices in lists:
            under_way.append(len(indices))
            yield torch.zeros(len(indices), 1)

    monkeypatch.setattr(worker, "OtherLoad", Scripted)
    monkeypatch.setattr(worker.CpuDevice, "seconds", lambda _self, marks: [0.01] * len(marks))
    once = {"iterations": 1, "warmup": 1, "least_seconds": 0.0}
    request = MeasurementRequest(result=str(folder / "outcome.json"), local_batches=tuple(shares), **once)
    with pytest.raises(SystemExit):
        for _ in Sweep(request, torch.nn.Linear(1, 1), 8, batches):
            pass
    found = read_outcome(folder / "outcome.json")
    assert found is not None
    assert found.done
    return list(found.points)


def test_disturbed_points_are_measured_again_round_by_round(monkeypatch, tmp_path):
    shares = {1: [0.5, 0.0, 0.0], 2: [0.0, 0.0], 4: [0.3, 0.2, 0.25, 0.22]}
    points = swept(monkeypatch, tmp_path, shares)
    assert [(point.local_batch, point.busy_share) for point in points] == [
        *((1, 0.5), (2, 0.0), (4, 0.3)),
        *((1, 0.0), (2, 0.0), (4, 0.2)),
        *((1, 0.0), (4, 0.25)),
        (4, 0.22),
    ]
    best = {point.local_batch: point.busy_share for point in best_visits(points)}
    assert best == {1: 0.0, 2: 0.0, 4: 0.2}


@pytest.mark.parametrize(
    ("shares", "visited"),
    [
        pytest.param({1: [0.0] * 2, 2: [BUSY] * 2}, [1, 2, 1, 2], id="in peace each is measured twice"),
        pytest.param({1: [0.5, 0.6], 2: [0.9, 0.4]}, [1, 2, 1, 2], id="busy throughout: no more"),
    ],
)
def test_a_whole_round_of_disturbed_points_is_the_last(monkeypatch, tmp_path, shares, visited):
    assert [point.local_batch for point in swept(monkeypatch, tmp_path, shares)] == visited


def visits(*steps: float, busy_share: float | None = None) -> list[Point]:
    return [Point(local_batch=4, step_s=(step_s,), busy_share=busy_share) for step_s in steps]


def test_fastest_visit_counts_once_undisturbed_one_confirms_it() -> None:
    assert not is_settled(visits(1.0))
    assert not is_settled(visits(1.77, 1.0))
    assert is_settled(visits(1.77, 1.0, 1.09))
    (best,) = best_visits(visits(1.77, 1.0, 1.09))
    assert best.step_s == (1.0,)
    assert spread(visits(1.77, 1.0, 1.25)) == pytest.approx(0.25)
    # A visit beside others is no confirmation however fast.
    disturbed = visits(0.9, 0.9, busy_share=0.5)
    assert not is_settled([*visits(1.0, busy_share=0.0), *disturbed])
    assert best_visits([*disturbed, *visits(1.0, busy_share=0.0)])[0].step_s == (1.0,)
    assert best_visits([*visits(1.2, busy_share=0.3), *disturbed])[0].step_s == (0.9,)
    # A batch that did not fit stays so whatever was measured.
    fits, misfit = Point(local_batch=4, busy_share=0.0), Point(local_batch=4, feasible=False)
    assert best_visits([fits, misfit]) == best_visits([misfit, fits]) == [misfit]
