"""Ways to take batches from the loader: each trains what plain python trains, or is refused in one line."""

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
from tests.tools.run.elastic.gang import TORCHRUN, Gang, assert_same_weights, plain, seen
from tests.tools.run.elastic.nursery import preload

pytestmark = pytest.mark.torch
Make = Callable[..., Gang]
Alone = Callable[[str], Path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    known: dict[str, Path] = {}

    def trained(shape: str) -> Path:
        if shape not in known:
            known[shape] = tmp_path_factory.mktemp("alone")
            plain(known[shape], shape=shape, norm=True)
        return known[shape]

    return trained


@pytest.mark.parametrize("shape", ["peek", "peek, kept", "steps done"])
def test_workers_join_and_die_in_epochs(gang: Make, alone: Alone, tmp_path: Path, shape: str) -> None:
    joins_and_dies(gang(shape=shape, norm=True, hold_in=[1, 2]))
    assert_trained(tmp_path, alone(shape))


@pytest.fixture(scope="module")
def compiler() -> None:
    preload("tests.tools.run.elastic.compiler")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("compiled", ["before", "after", "in place"])
def test_a_compiled_model_is_resized(gang: Make, alone: Alone, tmp_path: Path, compiled: str) -> None:
    joins_and_dies(gang(shape="plain", norm=True, hold_in=[1, 2], compiled=compiled))
    assert int((tmp_path / "graphs-0").read_text()) > 0, "nothing was compiled"
    assert_trained(tmp_path, alone("plain"))


def joins_and_dies(job: Gang) -> None:
    """A second worker comes in the second epoch, and the first one is killed in the third."""
    grows_in_the_second_epoch(job)
    both = [job.out / f"holds-2-{rank}" for rank in (0, 1)]  # and so have written what they trained
    job.until(lambda: all(each.exists() for each in both), "first step of the third epoch")
    job.signal(0, signal.SIGKILL)
    job.publish([1])
    (job.out / "go-2").touch()
    job.end()
    assert job.outcome(1).outcome == "done", job.errors()


NO_COMPILER = shutil.which("g++") is None or " " in f"{sys.prefix}{tempfile.gettempdir()}"
"""The default one needs g++, and takes no path with a blank."""


@pytest.mark.skipif(
    NO_COMPILER or not THOROUGH, reason="half a minute of CPU time, for a compiler's last step"
)
def test_the_default_compiler_trains_the_same_under_torchrun(alone: Alone, tmp_path: Path) -> None:
    """Its workers are started as scripts are: it starts processes, too."""
    # vectors are not the point, and to find out which there are compiles four more programs
    plainly = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    how = {"shape": "plain", "norm": True, "compiled": "after", "backend": "inductor"}
    plain(tmp_path, *TORCHRUN, env=plainly, **how)
    assert_same_weights(tmp_path, alone("plain"))


@pytest.mark.parametrize("shape", ["islice", "break", "a shorter one"])
def test_a_joined_worker_ends_the_epoch_with_the_others(
    gang: Make, alone: Alone, tmp_path: Path, shape: str
) -> None:
    """It has counted fewer of them and trains on, but that step does not count."""
    job = gang(shape=shape, norm=True, hold_in=[1])
    grows_in_the_second_epoch(job)
    job.end()
    assert job.outcomes() == ["done", "done"], job.errors()
    assert_same_weights(tmp_path, alone(shape))
    assert [event.samples_done for event in job.events("epoch")] == [30, 60, 90]


def grows_in_the_second_epoch(job: Gang) -> None:
    """A second worker comes after the first step of that epoch."""
    job.start(1)
    job.until((job.out / "holds-1-0").exists, "first step of the second epoch")
    job.publish(2)
    job.add(1)
    job.until(lambda: life(job.here.presence(1)) == "alive", "second worker")
    (job.out / "go-1").touch()
    job.reaches()


def assert_trained(result: Path, expected: Path) -> None:
    """The same samples in each epoch, some of them tried twice, and the same weights."""
    assert_same_weights(result, expected)
    trained = {epoch: sorted(set(samples)) for epoch, samples in seen(result).items()}
    assert trained == {epoch: sorted(samples) for epoch, samples in seen(expected).items()}


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ("one ahead", "a batch is trained after the loader was asked for the next one"),
        ("list", "a batch is trained after the loader was asked for the next one"),
        ("side by side", "a loop over the loader was continued after another one had begun"),
        ("continued", "a loop over the loader that was begun in epoch 0 was continued after that epoch"),
    ],
)
def test_a_loop_that_cannot_be_resized_is_refused(gang: Make, shape: str, line: str) -> None:
    job = gang(shape=shape)
    assert job.run(1) == ["crashed"]
    assert line in job.outcome(0).message


def test_passes_from_an_endless_generator(gang: Make, alone: Alone, tmp_path: Path) -> None:
    """It takes as many batches an epoch as the loader has, and never lets a pass end by itself."""
    job = gang(shape="endless", norm=True)
    assert job.run(2) == ["done", "done"]
    assert_same_weights(tmp_path, alone("endless"))
