"""The live runs of the experiments: how each is held against its replay, and the smallest of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.ares import live as ares
from experiments.elastic_scaling import live as elastic
from experiments.harness.live import pliant, run_and_replay
from experiments.shadow_price import live as shadow_price
from pliant.schemas.event import Event
from pliant.schemas.io import write_profile
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from tests.benchmarks import in_process
from tests.builders import cluster, job
from tests.tools.report.runs import begin, submit


def run(*ends_s: float) -> RunRecord:
    """Jobs of 10 s of one GPU's work that start at once and end at these times."""
    names = [f"j{number}" for number in range(len(ends_s))]
    events = [begin(cluster(len(ends_s)))]
    for name in names:
        events += [submit(job(name), 10.0), Event(0, "start", name, 1)]
    events += [Event(end, "finish", name, 0) for end, name in sorted(zip(ends_s, names, strict=True))]
    return fold(events)


def test_ares_compares_jct_and_fairness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = jct, unfair, worst = ares.compare(run(20), run(19))
    assert (jct.live, jct.simulated) == (20, 19)
    assert (unfair.live, unfair.simulated) == (1.0, 1.0)
    assert (worst.live, worst.simulated) == (pytest.approx(2.0), pytest.approx(1.9))
    assert {each.limit for each in result} == {ares.LIMIT}
    monkeypatch.setattr(ares, "RECORD", tmp_path / "live.json")
    assert ares.live_table() == ""
    figures = [each.row() for each in result]
    ares.RECORD.write_text(json.dumps({"jobs": 1, "slots": 1, "figures": figures}))
    assert "| average JCT, s | 20.00 | 19.00 | 5.0 % |" in ares.live_table()


def test_elastic_scaling_compares_what_is_completed() -> None:
    """Live, jobs end at 20 and 40 s, so one is done for 20 s and two never; simulated, at 10 and 40."""
    result = completed, sjs, jct = elastic.compare(run(20, 40), run(10, 40))
    assert (completed.live, completed.simulated) == (pytest.approx(20 / 40), pytest.approx(30 / 40))
    assert (sjs.live, sjs.simulated) == (pytest.approx(20 / 60), pytest.approx(20 / 50))
    assert (jct.live, jct.simulated) == (pytest.approx(30), pytest.approx(25))
    assert [each.difference for each in result] == pytest.approx([0.5, 0.2, 1 / 6])
    assert [each.row()["holds"] for each in result] == [False, False, True]


def test_shadow_price_compares_three_figures() -> None:
    result = shadow_price.both("demo", run(20), run(10), 1)
    figures = {each["name"]: (each["live"], each["simulated"]) for each in result["figures"]}
    assert figures["jct"] == (20, 10)
    assert figures["makespan_s"] == (20, 10)
    assert figures["rescales_per_job"] == (0, 0)


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
