"""What workers write down while they measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pliant.tools.profile.measuring.device import device_of
from pliant.tools.profile.measuring.launch import read_outcome
from pliant.tools.profile.measuring.request import MeasurementRequest, Point
from pliant.tools.profile.measuring.worker import Recorder

pytestmark = pytest.mark.torch


def test_nothing_more_is_measured_for_a_launcher_that_was_killed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    request = MeasurementRequest(result=str(tmp_path / "outcome.json"), launcher_pid=gone.pid)
    device = device_of(torch.device("cpu"), None)
    with pytest.raises(SystemExit, match="who started it is gone"):
        Recorder(request, 0, 1, device).begin(Point(local_batch=1))
    waiting = request.model_copy(update={"launcher_pid": os.getpid()})
    Recorder(waiting, 0, 1, device).begin(Point(local_batch=1))
    found = read_outcome(tmp_path / "outcome.json")
    assert found is not None
    assert found.current == Point(local_batch=1)
