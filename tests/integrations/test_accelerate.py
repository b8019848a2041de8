"""A loop around an ``Accelerator`` that is resized by a relaunch."""

from __future__ import annotations

import pytest

from tests.integrations.training import check, need_installed, recipe
from tests.tools.run.site import Site

need_installed("accelerate")
pytestmark = pytest.mark.torch

AROUND = """
from accelerate import Accelerator
from pliant.integrations import accelerate as integration

report = integration.RelaunchedTraining.step


def step_and_note(self, step, **named):
    after_step(step)
    report(self, step, **named)


integration.RelaunchedTraining.step = step_and_note
steps, loss_fn = STEPS, torch.nn.functional.mse_loss
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(data, BATCH)
"""


def test_a_resized_loop_trains_the_same(site: Site) -> None:
    check(site, AROUND + recipe("Accelerate") + "\nat_end(accelerator.unwrap_model(model))\n")
