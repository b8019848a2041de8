"""Lightning's ``Trainer``: three lines make a job that is resized by a relaunch."""

from __future__ import annotations

import pytest

from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.watch.job_page import history
from tests.integrations.training import check, need_installed, recipe
from tests.tools.run.site import Site

need_installed("lightning")
pytestmark = pytest.mark.torch

AROUND = """
import functools
import lightning.pytorch
from lightning.pytorch import LightningModule


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        inputs, wanted = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), wanted)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        after_step(self.trainer.global_step + 1)


x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = Net()
Trainer = functools.partial(
    lightning.pytorch.Trainer, max_steps=STEPS, max_epochs=-1, accumulate_grad_batches=2, accelerator="cpu",
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
"""


APART = """
import os, pathlib, time

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from pliant.integrations.lightning import PliantCallback

trainer = Trainer(
    callbacks=[PliantCallback("checkpoints")], max_steps=3, accelerator="cpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
)
first, done = os.environ["RANK"] == "0", pathlib.Path("done")
while not first and not done.exists():  # the newest report is the other worker's
    time.sleep(0.01)
trainer.fit(BoringModel())
done.touch()
"""


def test_two_trainings_in_a_job_of_two_slots_are_warned_of(site: Site) -> None:
    site.job("a", text=APART, gpus=2, samples=1, env={"HF_HUB_OFFLINE": "1"}, workdir=str(site.folder))
    site.jobs[-1] = site.jobs[-1].model_copy(update={"workdir": str(site.folder)})
    log, _ = run_until_done(site.options("fifo"), lambda log, now_s: None)
    assert log.jobs["a"].phase == "finished", log.jobs["a"].reason
    said = [each.words for each in history(StateDir(site.state), "a")]
    assert any(each.startswith("several of its 2 workers train for themselves") for each in said)


def test_a_resized_trainer_trains_the_same(site: Site) -> None:
    check(site, AROUND + recipe("Lightning") + "\nat_end(model)\n")
