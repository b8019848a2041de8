"""The tutorials work as written: each command in order in an empty folder prints what the page shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pasting import blocks, check
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.site import until

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
SIMULATE = ("replay-last-month", "write-a-policy")
TRAIN = ("profile-your-first-job", "live-loop")
SLURM = "on-slurm"


BATCHES = "--batches 512,1024 "


def follow(name: str, folder: Path) -> None:
    """Few steps are measured, and no quiet machine is waited for."""
    text = (TUTORIALS / f"{name}.md").read_text()
    check(blocks(text.replace(BATCHES, f"{BATCHES}--iterations 3 --warmup 1 --patience 0 ")), folder)


def test_every_tutorial_is_tried() -> None:
    assert BATCHES in (TUTORIALS / f"{TRAIN[0]}.md").read_text()
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {*SIMULATE, *TRAIN, SLURM}


@pytest.mark.parametrize("name", SIMULATE)
def test_a_tutorial_that_only_simulates(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)


@pytest.mark.torch
@pytest.mark.parametrize("name", TRAIN)
def test_a_tutorial_that_trains(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)


@pytest.fixture
def live_slurm(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The Slurm of the tests is what commands find, and afterwards it is as it was."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    yield slurm
    slurm.end_jobs()
    until(lambda: set(slurm.states().values()) == {"idle"})


@pytest.mark.services
def test_the_tutorial_on_slurm_leaves_no_lease(live_slurm: SlurmCluster, tmp_path: Path) -> None:
    follow(SLURM, tmp_path)
    until(lambda: live_slurm.command("squeue", "-h", "-o", "%j").strip() == "")
