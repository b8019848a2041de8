"""Replays under ``--compat pollux`` against the simulator written down a second time, job by job."""

import csv
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from tests.tools.replay.importers.importing import pollux_inputs
from tests.tools.replay.pollux_by_hand import Application, Optimus, Tiresias, simulated

Row = Mapping[str, object]
COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
BY_HAND = {"tiresias": Tiresias, "optimus": Optimus}


def sheet(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@cache
def measured(data: Path) -> dict[str, Application]:
    return {
        folder.name: Application(folder) for folder in sorted((data / "traces").iterdir()) if folder.is_dir()
    }


def agree(data: Path, apps: Mapping[str, Application], rows: Sequence[Row], nodes: int, folder: Path) -> None:
    """Both policies end every job at the very second that the simulator does."""
    workload = sheet(folder / "workload.csv", rows)
    inputs = pollux_inputs(data, workload, nodes, folder)
    for policy, by_hand in BY_HAND.items():
        log = replay(inputs, Run(policy, conditions=Conditions(compat="pollux"))).log
        ends = {event.job: event.time for event in log.events() if event.event == "finish"}
        assert ends == simulated(apps, workload, [4] * nodes, by_hand()), policy


def random_rows(
    rng: random.Random, apps: Mapping[str, Application], count: int, gpus: int, until_s: int
) -> list[Row]:
    """Jobs of any validated or other batch, in a file that is not in order of time, many at one moment."""
    rows = []
    for number in range(count):
        app = rng.choice(list(apps.values()))
        batch = rng.choice([rng.choice(app.batches), rng.randint(app.batches[0], app.batches[-1])])
        most = min(16, gpus, int(batch / app.locals[0]))
        at_s = rng.choice([rng.randint(0, until_s), 60 * rng.randint(0, 10)])
        values = (f"{app.name}-{number}", at_s, app.name, rng.randint(1, most), batch)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def made_up(
    rng: random.Random, folder: Path, batches: Sequence[int], locals_: Sequence[int], epochs: int
) -> None:
    """Measurements of an application, in files as the simulator has them."""
    places = [(gpus,) for gpus in (1, 2, 3, 4)] + [(4, low) for low in (1, 3, 4)] + [(1, 2, 4), (1, 4, 2)]
    sizes = [(nodes, width * nodes) for nodes in (2, 3, 5, 8, 16) for width in (1, 2, 4)]

    def times(nodes: int, gpus: int, local: int) -> dict[str, float]:
        sync_s = rng.uniform(0.01, 0.02) * (gpus - 1) + 0.05 * (nodes - 1)
        step_s = rng.uniform(0.9, 1.1) * local / 16 + sync_s
        return {"local_bsz": local, "step_time": step_s, "sync_time": sync_s}

    measured = [
        {"placement": "".join(map(str, place))} | times(len(place), sum(place), local)
        for place in places
        for local in locals_
    ]
    sheet(folder / "placements.csv", measured)
    measured = [
        {"num_nodes": nodes, "num_replicas": gpus} | times(nodes, gpus, local)
        for nodes, gpus in sizes
        for local in locals_
    ]
    sheet(folder / "scalability.csv", measured)
    for batch in batches:
        steps = [epoch * 400 * batches[0] / batch + rng.uniform(0, 9) for epoch in range(1, epochs + 1)]
        epochs_ = [
            {"progress": 400 * epoch + rng.uniform(0, 9), "iteration": int(done), "metric": 1.0}
            | {"grad_sqr": rng.uniform(1, 2), "grad_var": rng.uniform(1, 20) * batches[0]}
            for epoch, done in enumerate(steps, 1)
        ]
        sheet(folder / f"validation-{batch}.csv", epochs_)


@pytest.mark.parametrize(("seed", "nodes"), [(0, 2), (2, 18)])
def test_every_job_of_a_made_up_world_ends_at_the_same_second(tmp_path: Path, seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    traces = tmp_path / "data" / "traces"
    made_up(rng, traces / "tiny", (16, 64, 200), (4, 8, 32), epochs=4)
    made_up(rng, traces / "ncf", (32, 128), (8, 16, 64), epochs=10)
    made_up(rng, traces / "yolov3", (8, 32, 64), (4, 8, 16), epochs=50)
    apps = measured(tmp_path / "data")
    rows = random_rows(rng, apps, 25, 4 * nodes, until_s=3000)
    agree(tmp_path / "data", apps, rows, nodes, tmp_path / "in")


@pytest.mark.parametrize(("seed", "nodes"), [(0, 4), (2, 16)])
def test_every_job_of_all_applications_ends_at_the_same_second(
    reference_data: Path, tmp_path: Path, seed: int, nodes: int
) -> None:
    data, rng = reference_data / "pollux", random.Random(seed)
    apps = measured(data)
    assert sorted(apps) == ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"]
    rows = random_rows(rng, apps, 12, 4 * nodes, until_s=4000)
    agree(data, apps, rows, nodes, tmp_path)
