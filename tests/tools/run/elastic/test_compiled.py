"""Models that are compiled by ``torch.compile``, before and after ``job.prepare``."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.tools.run.statedir.contract.presence import life
from tests.effort import THOROUGH
from tests.tools.run.elastic.gang import Gang, assert_same_weights, plain

pytestmark = pytest.mark.torch
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SCRIPT = Path(__file__).with_name("compiled.py")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What plain python trains without compiling."""
    folder = tmp_path_factory.mktemp("alone")
    plain(folder, script=SCRIPT, when="never")
    return folder


@pytest.mark.parametrize("when", ["before", "after", "in place"])
def test_a_compiled_model_is_resized(
    gang: Callable[..., Gang], tmp_path: Path, alone: Path, when: str
) -> None:
    job = gang(when=when, backend="counting", hold_in=[1, 2])
    job.start(1)
    job.until((tmp_path / "holds-1-0").exists, "first step of the second epoch")
    job.publish(2)
    job.add(1)
    job.until(lambda: life(job.here.presence(1)) == "alive", "second worker")
    (tmp_path / "go-1").touch()
    job.reaches()
    job.until((tmp_path / "holds-2-1").exists, "first step of the third epoch")
    job.signal(0, signal.SIGKILL)
    job.publish([1])
    (tmp_path / "go-2").touch()
    job.end()
    assert job.outcome(1).outcome == "done", job.errors()
    assert int((tmp_path / "graphs-0").read_text()) > 0, "nothing was compiled"
    assert_same_weights(tmp_path, alone)


NO_COMPILER = shutil.which("g++") is None or " " in f"{sys.prefix}{tempfile.gettempdir()}"
"""The default one needs g++, and takes no path with a blank."""
BACKENDS = ["aot_eager", *(["inductor"] if THOROUGH and not NO_COMPILER else ())]
"""The default one, inductor, calls g++ for half a minute of CPU time; what comes before it is the same."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_trains_the_same_under_torchrun(tmp_path: Path, alone: Path, backend: str) -> None:
    """Its workers are started as scripts are: the default compiler starts processes, too."""
    # vectors are not the point, and to find out which there are compiles four more programs
    plainly = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    plain(tmp_path, *TORCHRUN, script=SCRIPT, env=plainly, when="after", backend=backend)
    assert_same_weights(tmp_path, alone)
