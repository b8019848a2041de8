"""A loop around an ``Accelerator`` that is resized by a relaunch."""

from __future__ import annotations

import pytest

from tests.integrations.training import check
from tests.tools.run.site import Site

pytest.importorskip("accelerate", reason="the extra integrations is not installed")
pytestmark = pytest.mark.torch

LOOP = """
from accelerate import Accelerator
from pliant.integrations.accelerate import RelaunchedTraining

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
training = RelaunchedTraining(accelerator, "checkpoints", per_worker_batch=BATCH)
loader = torch.utils.data.DataLoader(data, BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = training.resume()
accumulation = accelerator.gradient_accumulation_steps
in_epoch = len(loader) // accumulation
while step < STEPS:
    for batch in accelerator.skip_first_batches(loader, step % in_epoch * accumulation):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            after_step(step)
            training.step(step, loss=loss)
            if step == STEPS:
                break
training.done()
at_end(accelerator.unwrap_model(model))
"""


def test_a_loop_goes_from_one_worker_to_two_and_back_and_ends_as_if_it_never_had(site: Site) -> None:
    check(site, LOOP)
