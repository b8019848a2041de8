"""Which parameters workers share, which groups come back with the state, and the generators in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.elastic.state.training import (
    Training,
    check_same,
    generator_states,
    outline,
    restore_generators,
    seed_everything,
)
from tests.tools.run.elastic.alone import Alone

pytestmark = pytest.mark.torch


def test_a_model_with_a_parameter_more_is_not_the_same() -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    other.register_parameter("scale", nn.Parameter(torch.ones(())))
    check_same(one, outline(one))
    with pytest.raises(UsageError, match=r"parameter 2 is missing here, scale \(float32, a number\) there"):
        check_same(one, outline(other))


class TestGroups:
    def net(self, *learning_rates: float, named: bool = False) -> Training:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
        listed = [list(part.named_parameters() if named else part.parameters()) for part in model]
        groups = [{"params": part, "lr": lr} for part, lr in zip(listed, learning_rates, strict=False)]
        return Training(model, torch.optim.SGD(groups, momentum=0.9), {})

    def test_missing_groups_come_with_settings_and_momentum(self) -> None:
        before, after = self.net(0.1, 0.2, 0.3), self.net(0.1)
        for parameter in before.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        before.optimizers["optimizer"].step()
        after.restore(before.capture())
        assert [group["lr"] for group in after.optimizers["optimizer"].param_groups] == [0.1, 0.2, 0.3]
        last = after.model[2].weight  # type: ignore[index]
        assert torch.equal(after.optimizers["optimizer"].state[last]["momentum_buffer"], torch.ones(2, 2))

    def test_a_script_adds_groups_again_that_have_come_back(self) -> None:
        before, after = self.net(0.1, 0.2), self.net(0.1)
        after.restore(before.capture())
        after.optimizers["optimizer"].add_param_group({"params": after.model[1].parameters(), "lr": 0.9})  # type: ignore[index]
        assert [group["lr"] for group in after.optimizers["optimizer"].param_groups] == [0.1, 0.2]
        after.optimizers["optimizer"].add_param_group({"params": after.model[2].weight})  # type: ignore[index]
        assert len(after.optimizers["optimizer"].param_groups) == 3

    def test_an_optimizer_that_was_made_otherwise_is_refused(self) -> None:
        other = self.net(0.1, 0.2).capture()
        other["optimizers"]["optimizer"]["groups"] = [["0.bias"], ["1.bias"]]
        with pytest.raises(ValueError, match="different number of parameter groups"):
            self.net(0.1).restore(other)


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for model in models for one in model.parameters()], lr=0.1)


class TestOutside:
    def script(self, **registered: Any) -> Callable[[ElasticJob], None]:
        def run(it: ElasticJob) -> None:
            net = nn.Linear(1, 1)
            data = torch.utils.data.TensorDataset(torch.ones(20, 1))
            result = {name: make(net) for name, make in registered.items()}
            model, optimizer, loader = it.prepare(net, sgd(net), data)
            it.register(**result)
            for _ in it.epochs(1):
                for (x,) in loader:
                    optimizer.zero_grad()
                    loss = model(x).square().mean()
                    if "critic" in result:
                        loss = loss + result["critic"](model(x)).mean()
                    loss.backward()
                    optimizer.step()
                    if "average" in result:
                        result["average"].update_parameters(net)

        return run

    @pytest.mark.parametrize(
        ("registered", "message"),
        [
            ({"critic": lambda _: nn.Linear(1, 1)}, "critic gets gradients, which would train"),
            ({"other": lambda _: sgd(nn.Linear(1, 1))}, "other is an optimizer, which"),
        ],
        ids=["a module that gets gradients", "a second optimizer"],
    )
    def test_trained_registered_objects_are_refused(self, job: Alone, registered: Any, message: str) -> None:
        end = job.run(self.script(**registered))
        assert (end.outcome, end.samples_done) == ("crashed", 0)
        assert end.message.startswith(f"UsageError: registered object {message}")

    def test_an_optimizer_of_another_network_is_refused(self, job: Alone) -> None:
        def script(it: ElasticJob) -> None:
            net, head = nn.Linear(1, 1), nn.Linear(1, 1)
            it.prepare(net, sgd(net, head), torch.utils.data.TensorDataset(torch.ones(20, 1)))
            next(it.epochs(1))

        end = job.run(script)
        assert end.outcome == "crashed"
        assert end.message.startswith("UsageError: the optimizer has 2 parameters that no model for job.pre")

    def test_layers_added_later_are_refused_in_the_optimizer(self) -> None:
        model = nn.Sequential(nn.Linear(1, 1))
        training = Training(model, sgd(model), {})
        model.append(nn.Linear(1, 1))
        with pytest.raises(UsageError, match=r"no model for job\.prepare had: each worker would train them"):
            training.optimizers["optimizer"].add_param_group({"params": model[1].parameters()})

    def test_averages_and_parts_of_the_model_are_registered(self, job: Alone) -> None:
        end = job.run(self.script(average=AveragedModel, part=lambda net: net))
        assert (end.outcome, end.samples_done, end.message) == ("done", 20, "")


def test_all_generators_go_on_where_they_were() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(1)), random.random(), float(np.random.rand())]  # noqa: NPY002

    seed_everything(3)
    saved = generator_states()
    first = drawn()
    assert drawn() != first
    restore_generators(saved)
    assert drawn() == first
