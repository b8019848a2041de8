"""What a checkpoint may hold: all that PyTorch's own objects need, and nothing that is executed."""

from __future__ import annotations

import collections
import hashlib
import io
import json
import pickle
from collections.abc import Callable, Iterator
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
from pliant.tools.run.elastic.state.checkpoint import FORMAT, Checkpoints
from pliant.tools.run.elastic.state.training import (
    Training,
    check_storable,
    check_training,
    loaded,
    plain,
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


@pytest.fixture
def allowed() -> Iterator[None]:
    torch.serialization.add_safe_globals([Best])
    yield
    torch.serialization.clear_safe_globals()


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


def test_what_cannot_be_pickled_is_refused_with_its_reason() -> None:
    with pytest.raises(UsageError, match=r"the state of it cannot be saved: .*lambda"):
        check_storable("it", {"function": lambda: None})


def test_a_class_that_the_author_allows_is_saved_and_loaded(tmp_path: Path, allowed: None) -> None:
    kept = Checkpoints(tmp_path)
    kept.save({"best": Best(0.9)}, 1)
    assert kept.load().state == {"best": Best(0.9)}
    torch.serialization.clear_safe_globals()
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
    noise = bytes(range(256))
    return {
        "torch": new.getvalue(),
        "old torch": old.getvalue(),
        "pickle": pickle.dumps(state),
        "noise": noise,
    }


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
