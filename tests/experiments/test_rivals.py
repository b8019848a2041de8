"""The study of policies on the home grounds of others, small enough for a test."""

from pathlib import Path
from typing import Any

import pytest

from experiments.accuracy.arms import SMOKE, arms
from experiments.harness.live import pliant, run_and_replay
from experiments.rivals import today
from experiments.rivals.figures import facts
from experiments.shadow_price import live as shadow_price
from pliant.schemas.io import read_events, write_profile
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.run.statedir.contract.folders import JobDir
from tests.benchmarks import in_process
from tests.builders import job

HELIOS = """\
job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u,8,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 01:00:00,3600,0
2,u,8,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 01:00:00,2020-04-01 01:10:00,600,3600
"""


def test_recorded_days_are_compared_with_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_DATA", str(tmp_path))
    file = tmp_path / today.DAYS["helios"].file
    file.parent.mkdir(parents=True)
    file.write_text(HELIOS)
    tasks = {name: task for name, task in today.tasks().items() if name.endswith(("recorded", "srtf"))}
    result = today.gathered({name: task() for name, task in tasks.items()})
    replays = result["helios"]["replays"]
    assert not result["acme"]["replays"], "its file is not there"
    assert replays["recorded"]["gpus"] == 8, "as many as were held at a time"
    assert replays["recorded"]["mean_jct_s"] == (3600 + 4200) / 2
    assert replays["srtf"]["mean_jct_s"] == (600 + 4200) / 2, "the short job first"
    message = facts({"grounds": {}, "today": result})
    assert message["today"].keys() == {"Helios, Saturn"}
    assert "acme/trace_seren.csv" in message["absent"]


SCRIPT = """
from pliant.tools.run.progress import TrainingProgress

progress = TrainingProgress(64)
progress.step(1, loss=1.0)
progress.done()
"""


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that trains no network; its profile is written, and only runs are processes."""
    (tmp_path / "train.py").write_text(SCRIPT)
    row = ProfileRow("train", "net", "cpu", 1, 1, "1", 64, step_seconds=0.1, samples_per_second=640.0)

    def carry_out(*words: str) -> None:
        if words[0] == "profile":
            write_profile(Profile((row,)), words[-1])
        else:
            (pliant if words[0] == "run" else in_process.pliant)(*words)

    monkeypatch.setattr("experiments.harness.live.pliant", carry_out)
    monkeypatch.setattr(shadow_price, "pliant", carry_out)
    return job(
        "one", model="net", command=("train.py",), workdir=str(tmp_path), batch=64, work={"samples": 64}
    )


def test_a_run_is_carried_out_and_replayed(one: Job, tmp_path: Path) -> None:
    live, simulated = run_and_replay(tmp_path / "out", [one], 1, ("--policy", "fifo"), steps=2)
    for each in (live, simulated):
        assert [job.outcome for job in each.jobs] == ["finished"]


def test_a_service_is_compared_with_its_replay(one: Job, tmp_path: Path) -> None:
    result = shadow_price.run_live("smallest", [one], tmp_path / "out", 1, steps=2)
    assert (result["run"], result["jobs"], result["slots"]) == ("smallest", 1, 1)
    figures = {each["name"]: each for each in result["figures"]}
    assert figures["jct"]["live"] > 0
    assert figures["jct"]["simulated"] > 0


TRAINED = ("fixed", "elastic", "regrouped", "warm", "drawn-1")
BATCH, FIRST = SMOKE.batch, SMOKE.first


def trained(folder: Path, arm: str) -> list[tuple[int | None, int | None]]:
    """(workers, global batch) of each epoch."""
    events = read_events(JobDir(folder / f"{arm}-0").attempt(1).progress)
    return [(event.gpus, event.global_batch) for event in events if event.event == "epoch"]


@pytest.mark.torch
def test_small_trainings_change_what_their_arm_says(tmp_path: Path) -> None:
    from experiments.accuracy.measure import measured

    chosen = {arm.name: arm for arm in arms(SMOKE) if arm.name in TRAINED}
    runs: dict[str, Any] = {run["arm"]: run for run in measured(SMOKE, [*chosen.values()], tmp_path)["runs"]}
    fixed, elastic, regrouped, warm = (runs[name] for name in TRAINED[:-1])

    assert trained(tmp_path, "elastic") == [(workers, BATCH) for workers in (1, 2, 3, 2, 1, 1)]
    assert elastic["weights_off"] <= 1e-12
    assert elastic["accuracy"] == fixed["accuracy"]
    assert elastic["loss"] == pytest.approx(fixed["loss"], rel=1e-5)

    assert regrouped["loss_off"][:FIRST] == [0.0] * FIRST
    assert max(regrouped["loss_off"]) <= 1e-12

    later = SMOKE.epochs - FIRST
    assert trained(tmp_path, "warm") == [(1, BATCH)] * FIRST + [(1, 16 * BATCH)] * later
    assert warm["loss"][:FIRST] == fixed["loss"][:FIRST]
    assert warm["loss"][FIRST + 1 :] != fixed["loss"][FIRST + 1 :]

    drawn = {change.epoch: round(BATCH * change.factor) for change in chosen["drawn-1"].changes}
    batches = [BATCH]
    for epoch in range(SMOKE.epochs):
        batches.append(drawn.get(epoch, batches[-1]))
    assert trained(tmp_path, "drawn-1") == [(1, batch) for batch in batches[1:]]
    assert all(BATCH // 4 <= batch <= 2 * BATCH for batch in batches)
