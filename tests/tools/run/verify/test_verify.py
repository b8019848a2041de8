"""``pliant verify`` on real scripts, as plain processes and under the executor."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from pliant.schemas.io import write_jobs
from pliant.tools.run import elastic
from pliant.tools.run.elastic.recording import RecordedJob
from pliant.tools.run.statedir.contract.recording import ENV_RECORDING, RecordingOrder
from pliant.tools.run.verify.comparison import Recording, compare
from pliant.tools.run.verify.trials import prepared
from pliant.tools.run.verify.verify import SCENARIOS
from tests.builders import job
from tests.cli.calling import call
from tests.tools.run import conftest as of_run

pytestmark = pytest.mark.torch
nothing_left_behind = of_run.nothing_left_behind
HEAD = """
    import sys
    import torch
    from torch import nn
    from torch.utils.data import Dataset
    from pliant.tools.run import elastic

    class Noisy(Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            return torch.randn(4) + index, torch.tensor([index / 100])

    job = elastic.init(batch_size=8, seed=3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model, optimizer, loader = job.prepare(model, optimizer, Noisy())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
"""
LOOP = """
    for epoch in job.epochs(50):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.float()), y)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
        scheduler.step()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def write(*parts: str) -> None:
    Path("train.py").write_text("".join(map(textwrap.dedent, parts)))


def test_a_script_that_keeps_all_passes(here: Path) -> None:
    """Though it draws its data, and has dropout and batch normalization."""
    write(HEAD, "job.register(scheduler)\n", LOOP)
    done = call("verify", "train.py", "--samples", "45", "-f", "json")
    assert done.exit_code == 0, done.output
    [found] = json.loads(done.stdout)["jobs"]
    assert (found["steps"], found["precision"]) == (18, "float64")
    assert found["script"] == {"batch": 8, "accum": 1, "dropouts": 1, "norms": 1}
    assert [run["name"] for run in found["runs"][1:]] == [scenario.name for scenario in SCENARIOS]
    assert all(run["aspects"]["weights"]["difference"] < 1e-12 for run in found["runs"])


def test_a_script_that_forgets_its_scheduler_is_not_submitted(here: Path) -> None:
    write(HEAD, LOOP)
    done = call("submit", "train.py", "--gpus", "1-2", "--state", "live", "--verify", columns=200)
    assert (done.exit_code, done.stdout, Path("live").exists()) == (5, "", False)
    rows = {line.split("  ")[0]: line for line in done.stderr.splitlines()}
    assert "differ" not in rows["two workers"]
    assert "differ from step" in rows["a stop and a new start"]
    assert "docs/elastic-library.md#what-must-be-registered" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open('data.bin')\n", "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'"),
        ("print('trained')\n", "has trained no step by the elastic library"),
        (HEAD.replace(", seed=3", "") + LOOP, "two plain processes differ: elastic.init(seed=0)"),
    ],
)  # fmt: skip
def test_what_is_no_training_twice_ends_early(text: str, expected: str, here: Path) -> None:
    write(text)
    done = call("verify", "train.py", columns=300)
    assert (done.exit_code, expected in done.output) == (5, True), done.output


def test_jobs_that_the_library_does_not_resize_are_left_out(here: Path) -> None:
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    write("")
    done = call("verify", "jobs.jsonl", columns=300)
    assert done.exit_code == 2
    assert "not verified, as the library does not resize them: a" in done.stderr
    assert call("verify", "jobs.jsonl", "--", "--epochs", "3").exit_code == 2


# What the library does in a run of a verification.


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(elastic.ElasticJob, "made_as", RecordedJob)
    yield
    torch.set_default_dtype(torch.float32)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(number)) for number in range(100))


class Drawn(Dataset[torch.Tensor]):
    epoch = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(4)


FIXED = torch.rand(100, 4, generator=torch.Generator().manual_seed(2))
"""PyTorch begins anywhere: with some numbers the loss of a step is so near to 0 that rounding shows in it."""
DATA = {"tensors": TensorDataset(FIXED), "drawn": Drawn(), "stream": Stream()}


@pytest.mark.parametrize("kind", DATA)
def test_a_part_of_the_data_is_trained_and_recorded(kind, tmp_path, monkeypatch, recorded: None) -> None:
    recordings = []
    for name, double in (("one", True), ("two", True), ("single", False), ("moved", False)):
        order = RecordingOrder(batch=8, steps=4, double=double, moved=name == "moved")
        files = prepared(tmp_path / name, order)
        monkeypatch.setenv(ENV_RECORDING, str(files.path))
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(0)
        job = elastic.init(batch_size=50, seed=1)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        model, optimizer, loader = job.prepare(model, optimizer, DATA[kind])
        for _ in job.epochs(50):
            for batch in loader:
                optimizer.zero_grad()
                loss = model(batch if isinstance(batch, torch.Tensor) else batch[0]).mean()
                loss.backward()
                optimizer.step()
                job.log(loss=loss)
        recordings.append(Recording.read(files))
    one, two, single, moved = recordings
    steps = [parts[0][1] for parts in one.by_step.values()]
    assert [(step.epoch, step.first, step.samples) for step in steps] == [
        (epoch, 8 * number, min(8, 28 - 8 * number)) for epoch in range(3) for number in range(4)
    ]
    assert (len(one.samples), len({digest for *_, digest in one.samples})) == (84, 28)
    assert compare("", one, two, 0.0).kept
    rounding = compare("", single, moved, 1e-4)
    assert (rounding.aspects["loss"].kept, 0.0 < rounding.noise < 1e-4) == (True, True)
