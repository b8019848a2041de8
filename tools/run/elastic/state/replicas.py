"""A guard against replicas that drift apart: workers compare fingerprints of what must be the same on all.

These are the weights, the settings of the optimizers, which parameters are trained, the state of registered
objects and the dataset. Each fingerprint is a whole number, so one sum over the workers shows a difference:
it is the number of workers times the own one, or it is not.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.training import (
    Training,
    generator_states,
    map_leaves,
    plain,
    restore_generators,
    seed_everything,
)

_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EVERY_STEPS: Final = 1024
"""Steps between two comparisons, once the first ones lie behind, at powers of 2."""
_OTHER_HARDWARE: Final = 1e-3
"""Relative difference of weights that rounding may make on devices of several kinds."""
_WHOLE_WEIGHT: Final = 1 << 20
"""Weight of a worker's share as a whole number, if all shares are alike."""
_SAMPLES: Final = 3
"""Samples of the dataset that are compared."""
PAGE: Final = "docs/elastic-library.md, When workers differ"

Sum = Callable[[torch.Tensor], bool]
"""Function that makes the sum over the workers in place; False if a worker was lost."""


class ReplicaGuard:
    """Compares the replicas of a training; all workers call it together.

    The first difference in weights, optimizers or data ends the training, or is a warning. A difference in
    registered objects is a warning: a script may register what it only writes down.
    """

    def __init__(self, training: Training, warn: Callable[[str], None], *, ends: bool = True) -> None:
        self._training, self._warn, self._ends = training, warn, ends
        self._equal_at: int | None = None
        self._warned: set[str] = set()
        self._differ = False
        self._seen: dict[str, torch.Tensor] | None = None
        self._checked_at = -1
        # What is read by number in this process; None if nothing is.
        self.dataset: Any = None
        # Samples of the dataset in the epoch.
        self.size = 0
        # Fingerprint of the shapes of the batch, the number of its rows aside.
        self.shapes = 0
        # Fingerprint of the order in which samples are read in the epoch, or a function that finds it.
        self.order: int | Callable[[], int] = 0
        self._samples: tuple[int, int] | None = None
        # Of the step under way and the one before: samples, the sum of their numbers, their weight.
        self._share = self._share_before = [0, 0, 0]
        # What the shares of all workers must add up to.
        self._whole = self._whole_before = [0, 0, 0]

    def takes(self, numbers: range, weight: float, step: range, workers: int, *, first: bool) -> None:
        """The worker trains samples of a step, which are numbered in the order of the epoch.

        :param first: its first ones in the step.
        """
        if first:
            self._share, self._whole = [0, 0, 0], [len(step), sum(step), round(workers * _WHOLE_WEIGHT)]
        own = [len(numbers), sum(numbers), round(weight * _WHOLE_WEIGHT)]
        self._share = [one + more for one, more in zip(self._share, own, strict=True)]

    def step_done(self) -> None:
        """The step under way counts: what was only looked at before does not."""
        self._share_before, self._whole_before = self._share, self._whole

    def is_due(self, step: int) -> bool:
        """Whether the workers compare before this step; they do at every place where their losses meet."""
        if step == self._checked_at:
            return False
        return step & (step - 1) == 0 or step % _EVERY_STEPS == 0 or self._checked_at < 0

    def new_workers(self) -> None:
        """Compare at the next step, also the samples: those of a dataset may be others than at the start."""
        self._checked_at, self._samples, self._seen = -1, None, None
        self._share = self._share_before = self._whole = self._whole_before = [0, 0, 0]

    def look(self) -> None:
        """Remember what is compared next: the step's own code may change it for a moment."""
        self._seen = {**self._facts(), **fingerprints(self._training)}

    def check(self, add_up: Sum, workers: int) -> None:
        """:raises UsageError: the replicas differ."""
        training, step = self._training, self._training.counters.step
        self._checked_at = step
        own = self._seen or {**self._facts(), **fingerprints(training)}
        self._seen = None
        names, values = list(own), _on_cpu(list(own.values()))
        total = torch.cat([values, torch.tensor(self._share_before)])
        if not add_up(total):
            return
        *shares, weight = total[len(values) :].tolist()
        total = total[: len(values)]
        apart = [
            name for name, same in zip(names, (total == values * workers).tolist(), strict=True) if not same
        ]
        *whole, whole_weight = self._whole_before
        if shares != whole or abs(weight - whole_weight) > _WHOLE_WEIGHT >> 10:
            apart.append("their shares of the last step, which are not its samples")
        if "samples" in apart and ("samples read alike" in apart or not own["samples read alike"]):
            apart.remove("samples")  # they are random
        if "devices" in apart and any(name.startswith("parameter ") for name in apart):
            apart = self._without_rounding(apart, add_up, workers)
        if self._are_equal(
            [name for name in apart if name not in {"devices", "samples read alike"}], workers
        ):
            self._equal_at = step

    def _are_equal(self, apart: list[str], workers: int) -> bool:
        for name in [name for name in apart if name in _MILD or name.startswith("registered ")]:
            apart.remove(name)
            self._warn_once(_MILD.get(name, f"{name} is not the same on all workers: see {PAGE}"))
        if not apart or self._differ:
            return not self._differ
        self._differ = True
        step = self._training.counters.step
        since = "" if self._equal_at is None else f"; they were equal at step {self._equal_at}"
        others = f" (and {len(apart) - 1} more)" if len(apart) > 1 else ""
        likely = (
            "data that are drawn without a seed (torch.manual_seed at the top), or listed without sorted()"
            if apart[0] in _OF_DATA
            else "a decision by the loss of a worker's own samples (use job.mean), numbers drawn by one "
            "worker only, or an object that is not registered"
        )
        text = (
            f"the {workers} workers differ after step {step}: {apart[0]}{others}{since}. "
            f"Likely: {likely}. See {PAGE}"
        )
        if self._ends:
            raise UsageError(text)
        self._warn_once(text)
        return False

    def see_shapes(self, tensors: Iterable[torch.Tensor], *, again: bool) -> None:
        """Warn if micro-batches of a step have different shapes.

        :param again: whether a micro-batch of the same step came before.
        """
        shapes = shapes_of(tensors)
        if again and shapes != self.shapes:
            self._warn_once(_MILD["shapes of a batch"])
        self.shapes = shapes

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    def _facts(self) -> dict[str, torch.Tensor]:
        if self._samples is None:
            self._samples = _of_samples(self.dataset, self.size)
        alike, samples = self._samples
        return {
            "size of the dataset": torch.tensor(self.size),
            "samples read alike": torch.tensor(alike),
            "samples": torch.tensor(samples),
            "order of the samples": torch.tensor(self.order() if callable(self.order) else self.order),
            "shapes of a batch": torch.tensor(self.shapes),
            "devices": torch.tensor(_checksum(_device_name(self._training.model))),
        }

    def _without_rounding(self, apart: list[str], add_up: Sum, workers: int) -> list[str]:
        """Leave out parameters that differ by no more than rounding on other hardware."""
        named = dict(self._training.model.named_parameters())
        sums = torch.tensor([[float(one.sum()), float(one.abs().sum())] for one in named.values()]).double()
        total = sums.clone()
        if not add_up(total):
            return []
        off = (total[:, 0] - workers * sums[:, 0]).abs() > _OTHER_HARDWARE * total[:, 1]
        bad = {name for name, is_off in zip(named, off.tolist(), strict=True) if is_off}
        return [name for name in apart if not name.startswith("parameter ") or name.split()[1] in bad]


_OF_DATA: Final = frozenset({"size of the dataset", "samples", "order of the samples"})
_MILD: Final = {
    "shapes of a batch": (
        "batches of one step have different shapes beyond the number of samples, as when each is padded to "
        "its longest sample: a model that sees the padding trains differently than on one worker. Pad to a "
        f"fixed length, or make the result independent of it. See {PAGE}"
    ),
}


def fingerprints(training: Training) -> dict[str, torch.Tensor]:
    """Fingerprints by name, int64; the same on replicas that are equal to the last bit."""
    modules = {
        parameter: f"{name or 'the model'}: {type(module).__name__}"
        for name, module in training.model.named_modules()
        for parameter in module.parameters(recurse=False)
    }
    result = {
        f"parameter {name} ({modules.get(one, '')})": bits_of(one.detach())
        for name, one in training.model.named_parameters()
    }
    result["trained parameters"] = _number([one.requires_grad for one in training.model.parameters()])
    for name, optimizer in training.optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            settings = {key: value for key, value in group.items() if key != "params"}
            result[f"settings of {name}, group {index}, as its learning rate"] = _number(settings)
    for name, helper in training.helpers.items():
        result[f"registered object {name}"] = _number(helper.state_dict())
    return result


def shapes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Fingerprint of the shapes of a batch, the number of its rows aside."""
    return _checksum([tuple(one.shape[1:]) for one in tensors])


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the numbers that a tensor's bits are."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.layout is not torch.strided or tensor.itemsize not in _INTEGERS or not tensor.numel():
        return torch.zeros((), dtype=torch.int64)
    return tensor.contiguous().view(_INTEGERS[tensor.itemsize]).sum(dtype=torch.int64)


def _on_cpu(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers in one tensor, copied from each device at once."""
    result = torch.empty(len(numbers), dtype=torch.int64)
    for device in {one.device for one in numbers}:
        places = [place for place, one in enumerate(numbers) if one.device == device]
        result[places] = torch.stack([numbers[place] for place in places]).cpu()
    return result


def _number(state: Any) -> torch.Tensor:
    return torch.tensor(_checksum(_comparable(state)))


def _comparable(state: Any) -> Any:
    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return int(bits_of(value.detach())), tuple(value.shape)
        if isinstance(value, np.ndarray):
            return value.tobytes()
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        if isinstance(value, Mapping):
            return {key: _comparable(one) for key, one in value.items()}
        return value

    return map_leaves(plain(state), leaf)


def _checksum(value: object) -> int:
    return zlib.crc32(repr(value).encode())


def _device_name(model: nn.Module) -> str:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()


def _of_samples(dataset: Any, size: int) -> tuple[int, int]:
    """Whether some samples are the same when they are read again, and a fingerprint of them."""
    if dataset is None or size < 1:
        return 0, 0
    places = sorted({round(index * (size - 1) / (_SAMPLES - 1)) for index in range(_SAMPLES)})
    states, numbers = generator_states(), list[int]()
    try:
        for seed in range(2):
            seed_everything(seed)
            numbers.append(_checksum([_comparable(_known(dataset[index])) for index in places]))
    except Exception:  # noqa: BLE001 the loader will say what is wrong with the dataset
        return 0, 0
    finally:
        restore_generators(states)
    return int(numbers[0] == numbers[1]), numbers[0] if numbers[0] == numbers[1] else 0


def _known(sample: Any) -> Any:
    """The sample with objects of other classes, which have addresses, by their class."""
    known = (int, float, str, bytes, bool, type(None), torch.Tensor, np.ndarray, np.generic)
    return map_leaves(sample, lambda one: one if isinstance(one, known) else type(one).__name__)
