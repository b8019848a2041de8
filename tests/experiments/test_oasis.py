from pathlib import Path

import pytest

from experiments.harness.spec import Study, find
from experiments.harness.study import page_of
from experiments.oasis.facts import facts
from experiments.oasis.measure import measure
from experiments.sharing.measure import outcome
from experiments.sharing.workload import LABEL, Workload, workload
from tests.builders import job


@pytest.fixture(scope="module")
def study() -> Study:
    result = find("oasis")
    assert isinstance(result, Study)
    return result


def test_a_small_run_fills_every_table_and_figure(study: Study, tmp_path: Path) -> None:
    small = measure(tmp_path, 1, lambda _text: None, seeds=range(1), scale=15)
    assert all(text for text in facts(small).values() if isinstance(text, str))
    assert "| OASiS |" in page_of(study, small)
    assert len(study.draw(small)) >= 6
    assert facts(small)["broken"] == 0


def busy_and_idle() -> Workload:
    """A team with more jobs than GPUs, and one that needs its own only later."""
    busy = [job(f"b{n}", at=60.0 * n, gpus=4, gpu_seconds=8000.0, labels={LABEL: "busy"}) for n in range(6)]
    idle = [job(f"i{n}", at=2000.0 + n, gpus=4, gpu_seconds=4000.0, labels={LABEL: "idle"}) for n in range(2)]
    result = workload(sorted([*busy, *idle], key=lambda each: each.submit_time))
    return Workload(result.jobs, {"busy": 8, "idle": 8})


def test_lending_shortens_waits_and_costs_the_owner_little():
    load = busy_and_idle()
    fixed, stopped, shrunk = (outcome(load, "ares", way) for way in ("static", "preempt", "shrink"))
    assert stopped["mean_jct_s"] < fixed["mean_jct_s"]
    assert shrunk["deficit_gpu_hours"] <= stopped["deficit_gpu_hours"]
    assert shrunk["teams"]["idle"]["mean_jct_s"] <= 1.1 * fixed["teams"]["idle"]["mean_jct_s"]
    assert all(each["finished"] == 8 for each in (fixed, stopped, shrunk))
