"""What a checkpoint may hold: all that PyTorch's own objects need, and nothing that is executed."""

from __future__ import annotations

import collections
import hashlib
import io
import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.elastic.state.checkpoint import FORMAT, Checkpoints
from pliant.tools.run.elastic.state.training import (
    Training,
    check_same,
    check_storable,
    check_training,
    generator_states,
    loaded,
    outline,
    plain,
    restore_generators,
    seed_everything,
    stored,
)
from tests.tools.run.elastic.alone import Alone, Author

pytestmark = pytest.mark.torch


@dataclass
class Best:
    """What an author's own object may remember."""

    metric: float = 0.5


@dataclass
class Keeper:
    """An object of the author's, with whatever as its state."""

    state: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def again(state: Any) -> Any:
    return loaded(io.BytesIO(stored(state)), "here")


def test_plain_values_come_back_as_they_were() -> None:
    state = {
        "numbers": {"a": 1, 2: -0.5, "big": 1 << 80, "complex": 1j, "none": None, "yes": True},
        "text": ["ä", b"bytes", bytearray(b"more")],
        "containers": ((1, [2]), {3}, collections.OrderedDict(a=1), collections.Counter("aab")),
        "torch": [torch.Size([1]), torch.device("cpu"), torch.float16],
    }
    assert again(state) == state
    numpy = again(plain({"best": np.float64(0.5), "steps": [np.int64(3), (np.bool_(True),)]}))
    assert numpy == {"best": 0.5, "steps": [3, (True,)]}
    assert [type(numpy["best"]), *map(type, numpy["steps"])] == [float, int, tuple]


OPTIMIZERS: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
    lambda it: torch.optim.SGD(it, lr=np.float64(0.1), momentum=0.9),
    torch.optim.AdamW,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.NAdam,
)
HELPERS: tuple[Callable[[torch.optim.Optimizer], Any], ...] = (
    lambda it: schedulers.CosineAnnealingLR(it, np.int64(8)),
    lambda it: schedulers.MultiStepLR(it, [2, 3]),
    lambda it: schedulers.LambdaLR(it, lambda epoch: 0.5**epoch),
    lambda it: schedulers.OneCycleLR(it, 0.4, total_steps=9, cycle_momentum=False),
    lambda it: schedulers.CyclicLR(it, 0.1, 0.2, cycle_momentum=False),
    schedulers.ReduceLROnPlateau,
    lambda it: schedulers.CosineAnnealingWarmRestarts(it, 3),
    lambda it: schedulers.SequentialLR(it, [schedulers.LinearLR(it), schedulers.StepLR(it, 2)], [2]),
    lambda it: schedulers.ChainedScheduler([schedulers.LinearLR(it), schedulers.StepLR(it, 2)]),
    lambda it: SWALR(it, 0.05),
    lambda _: torch.amp.GradScaler("cpu"),
    lambda _: AveragedModel(nn.Linear(3, 2)),
)


def trained(optimizer: int, helper: int) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    made = OPTIMIZERS[optimizer](model.parameters())
    helpers = {"helper": HELPERS[helper](made)}
    model(torch.randn(4, 3)).square().sum().backward()
    made.step()
    if isinstance(step := helpers["helper"], schedulers.ReduceLROnPlateau):
        step.step(np.float32(0.5))
    return Training(model, made, helpers)


@pytest.mark.parametrize(
    ("optimizer", "helper"),
    [*((one, 0) for one in range(len(OPTIMIZERS))), *((0, one) for one in range(1, len(HELPERS)))],
)
def test_every_object_of_pytorch_is_loaded_again(optimizer: int, helper: int, tmp_path: Path) -> None:
    one, other = trained(optimizer, helper), trained(optimizer, helper)
    check_training(one)
    kept = Checkpoints(tmp_path)
    kept.save(one.capture(), 1)
    state = kept.load().state
    assert state is not None
    other.resume(state)
    assert str(other.shared()) == str(one.shared())


STRANGE: dict[str, Any] = {
    "numpy.ndarray": np.ones(3),
    "collections.defaultdict": collections.defaultdict(list),
    "pathlib.": Path("x"),
    "Best": Best(),
}


@pytest.mark.parametrize("named", STRANGE)
def test_what_would_not_be_loaded_is_refused_when_it_is_saved(named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"holds .*{named}.*: keep it to tensors.*add_safe_globals"):
        Checkpoints(tmp_path).save({"helpers": {"one": STRANGE[named]}}, 1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=r"the state of it cannot be saved: .*lambda"):
        check_storable("it", {"function": lambda: None})


def test_a_class_that_the_author_allows_is_saved_and_loaded(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    with torch.serialization.safe_globals([Best]):
        kept.save({"best": Best(0.9)}, 1)
        assert kept.load().state == {"best": Best(0.9)}
    with pytest.raises(UsageError, match=r"step-0.*\.ckpt holds .*\.Best: these are not loaded unless"):
        kept.load()


class Calls:
    """A pickle that calls a function when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._how = function, arguments

    def __reduce__(self) -> Any:
        return self._how


def hostile(trace: Path) -> dict[str, bytes]:
    """Bytes that write to a file if they are trusted."""
    state = {"model": Calls(trace.write_text, "executed")}
    new, old = io.BytesIO(), io.BytesIO()
    torch.save(state, new)
    torch.save(state, old, _use_new_zipfile_serialization=False)
    known = {"torch": new.getvalue(), "old torch": old.getvalue(), "pickle": pickle.dumps(state)}
    return {**known, "noise": bytes(range(256))}


@pytest.mark.parametrize("kind", ["torch", "old torch", "pickle", "noise"])
def test_a_hostile_checkpoint_executes_nothing(tmp_path: Path, kind: str) -> None:
    trace, folder = tmp_path / "trace", tmp_path / "checkpoints"
    folder.mkdir()
    body = hostile(trace)[kind]
    head = {"format": FORMAT, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    (folder / f"step-{1:012}.ckpt").write_bytes(json.dumps(head).encode() + b"\n" + body)
    with pytest.raises((UsageError, BadInputError), match=r"step-0.*\.ckpt"):
        Checkpoints(folder).load()
    assert not trace.exists()


def test_an_unstorable_state_is_refused_before_training(job: Alone) -> None:
    author = Author()
    author.registered = {"history": Keeper({"seen": collections.defaultdict(list)})}
    end = job.run(author)
    assert (end.outcome, author.passes) == ("crashed", 0)
    assert end.message.startswith(
        "UsageError: the state of registered object history holds builtins.list, collections.defaultdict "
        "at seen: keep it to tensors and plain values"
    )


def test_a_state_that_becomes_unstorable_ends_the_training(job: Alone) -> None:
    author, keeper = Author(), Keeper({})
    author.registered = {"history": keeper}
    author.in_pass = lambda: keeper.state.update(best=Best())
    end = job.run(author, checkpoint_s=1e-9)
    assert (end.outcome, author.passes) in [("crashed", 1), ("crashed", 2)]
    assert "holds tests.tools.run.elastic.state.test_storable.Best" in end.message


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
        """Layers that are added later are refused, too."""

        def script(it: ElasticJob) -> None:
            net, head = nn.Linear(1, 1), nn.Linear(1, 1)
            it.prepare(net, sgd(net, head), torch.utils.data.TensorDataset(torch.ones(20, 1)))
            next(it.epochs(1))

        end = job.run(script)
        assert end.outcome == "crashed"
        assert end.message.startswith("UsageError: the optimizer has 2 parameters that no model for job.pre")
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
