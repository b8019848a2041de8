"""``pliant profile`` on a script without the elastic library, by what it reports of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.tools.profile.measuring.launch import Script, launch
from pliant.tools.profile.measuring.request import ENV_PROFILE, MeasurementRequest, Outcome
from pliant.tools.run import progress

SCRIPT = """
import time
from pliant.tools.run.progress import TrainingProgress

progress = TrainingProgress()
progress.accumulate(4)
progress.measurement.parameters = 7
for step in range(1, 10**9):
    time.sleep(0.001)
    assert not progress.step(step)
"""


@pytest.mark.torch
def test_its_own_batch_is_measured_on_all_workers(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    request = MeasurementRequest(result="", global_batches=(8, 16), iterations=5, warmup=2)
    seen: list[Outcome] = []
    ended = launch(Script("m", (str(path),), str(tmp_path)), 2, request, seen.append)
    points = ended.outcome.points
    assert [(point.local_batch, point.accum, len(point.step_s)) for point in points] == [(4, 2, 5)] * 3
    assert min(second for point in points for second in point.step_s) >= 0.001
    assert (ended.outcome.done, ended.outcome.parameters) == (True, 7)
    assert seen[-1] == ended.outcome
    assert list(tmp_path.iterdir()) == [path], "a measurement saves nothing"


def test_the_helper_knows_the_variable_of_the_request() -> None:
    assert progress.ENV_PROFILE == ENV_PROFILE
