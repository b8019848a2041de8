"""Where trainings of other libraries go on after a start, and which batch they report."""

import importlib.util
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.parts.training_positions import LIBRARIES, drawn, wrong
from pliant.tools.run.progress import ENV_BATCH, ENV_PROGRESS, ENV_STOP

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_notices")]
TRIALS = 5


def need_installed(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip("the extra integrations is not installed")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """What a training says of itself, of a job with batches of 32."""
    head = {"job": "a", "attempt": 1, "generation": 1, "progress_s": 0}
    (tmp_path / "plan.json").write_text(json.dumps(head))
    (tmp_path / "stop").touch()
    path = tmp_path / "progress.json"
    for name, value in ((ENV_PROGRESS, path), (ENV_STOP, tmp_path / "stop"), (ENV_BATCH, 32)):
        monkeypatch.setenv(name, str(value))
    return lambda: dict(json.loads(path.read_text()))


@pytest.mark.parametrize("library", LIBRARIES)
def test_it_goes_on_at_the_sample_that_comes_next(library: str) -> None:
    need_installed(library)
    draws = random.Random(library)
    trials = [drawn(draws) for _ in range(TRIALS)]
    assert {trial: wrong(library, *trial) for trial in trials} == dict.fromkeys(trials, "")


def test_a_place_in_the_epoch_that_a_loop_computes_is_corrected(
    tmp_path: Path, report: Callable[[], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes 3 steps for an epoch of 100 samples, which has 4."""
    need_installed("accelerate")
    from accelerate import Accelerator

    from pliant.integrations.accelerate import RelaunchedTraining

    accelerator = Accelerator(cpu=True)
    training = RelaunchedTraining(accelerator, tmp_path, per_worker_batch=4)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    loader = DataLoader(TensorDataset(torch.ones(100, 1)), 4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, read = 0, []
    while step < 8:
        read.append(0)
        for (x,) in accelerator.skip_first_batches(loader, step % 3 * 8):
            read[-1] += len(x)
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean())
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                training.step(step)
    assert read == [100, 100]
    assert (report()["samples_done"], report()["global_batch"], report()["warnings"]) == (200, 32, 1)
    assert "the loop asks to leave out 8 batches of an epoch with 0 trained ones" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "manual", "steps", "batch", "samples", "warned"),
    [
        ({"a": 8, "b": 8}, False, 8, 32, 256, 0),
        ({"a": 8, "b": 4}, False, 16, 32, 512, 1),  # of unlike ones the first counts, which comes twice
        ({"a": 8}, True, 32, 8, 256, 1),  # the accumulation has no effect
    ],
)
def test_lightning_reports_the_batch_that_is_trained(
    tmp_path: Path,
    report: Callable[[], dict[str, Any]],
    data: dict[str, int],
    manual: bool,
    steps: int,
    batch: int,
    samples: int,
    warned: int,
) -> None:
    need_installed("lightning")
    from lightning.pytorch import LightningModule, Trainer

    from pliant.integrations.lightning import PliantCallback

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)
            self.automatic_optimization = not manual

        def training_step(self, batch: dict[str, list[torch.Tensor]]) -> torch.Tensor:
            loss = self.net(batch["a"][0]).mean()
            if manual:
                optimizer: Any = self.optimizers()
                self.manual_backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

    loaders = {name: DataLoader(TensorDataset(torch.ones(128, 1)), size) for name, size in data.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            callbacks=[PliantCallback(tmp_path / "checkpoints")],
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Net(), loaders)
    said = report()
    assert trainer.global_step == steps
    assert (said["samples_done"], said["global_batch"], said["warnings"]) == (samples, batch, warned)


def test_a_late_transformers_callback_reports_what_is_trained(
    tmp_path: Path, report: Callable[[], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    need_installed("transformers")
    from transformers import Trainer, TrainingArguments

    from benchmarks.parts.training_positions import Samples, Weight
    from pliant.integrations.transformers import PliantCallback

    args = TrainingArguments(
        str(tmp_path / "out"),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
    )
    trainer = Trainer(
        Weight([]), args, data_collator=lambda samples: {"x": torch.stack(samples)}, train_dataset=Samples(20)
    )
    trainer.add_callback(PliantCallback())
    trainer.train()
    assert (report()["samples_done"], report()["global_batch"], report()["step"]) == (20, 8, 3)
    assert "the job's batch of 32 cannot be kept" in capsys.readouterr().err
