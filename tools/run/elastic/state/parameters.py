"""The parameters of a model: which there are, which are trained, and in which group of the optimizer.

All workers must have the same ones. Scripts change which are trained and how they are grouped, so that is a
part of the state: a script that has unfrozen layers, or given its optimizer another group, is at its first
line again when it is launched again, and so is a worker that joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import wraps
from itertools import zip_longest
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError


def trained(model: nn.Module) -> dict[str, bool]:
    """Whether each parameter is trained."""
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def restore_trained(model: nn.Module, saved: Mapping[str, bool]) -> None:
    """Train what was trained; parameters that are not known stay as they are."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(saved.get(name, parameter.requires_grad))


class Groups:
    """The parameter groups of an optimizer, by the names that its parameters have in a model.

    Groups that a script has added come back before it adds them again: the second time nothing happens.
    A group of parameters that the model did not have from the beginning is refused.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._averaged = frozenset[Tensor](model.parameters())
        self._ahead: list[set[Tensor]] = []
        """Groups that the script is about to add, as far as one can know."""
        optimizer.add_param_group = MethodType(self._adding(optimizer.add_param_group), optimizer)  # type: ignore[method-assign]

    def check(self) -> None:
        """Refuse an optimizer that trains other parameters than those of the model.

        :raises UsageError: it does.
        """
        groups = self._optimizer.param_groups
        refuse_strangers((one for group in groups for one in group["params"]), self._averaged)

    def names(self) -> list[list[str]] | None:
        """The parameters of each group; None: some are not the model's, and the groups can only be as now."""
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        groups = [group["params"] for group in self._optimizer.param_groups]
        if not all(parameter in names for group in groups for parameter in group):
            return None
        return [[names[parameter] for parameter in group] for group in groups]

    def restore(self, saved: Sequence[Sequence[str]] | None, kept: Sequence[Mapping[str, Any]]) -> None:
        """Add the groups that the optimizer does not have yet.

        :param saved: the names of each group.
        :param kept: the settings of each group.
        """
        here = self.names()
        if saved is None or here is None or here != [list(names) for names in saved[: len(here)]]:
            return
        parameters = dict(self._model.named_parameters())
        for names, settings in list(zip(saved, kept, strict=True))[len(here) :]:
            found = [parameters[name] for name in names]
            own = {name: value for name, value in settings.items() if name not in {"params", "param_names"}}
            given = settings.get("param_names")
            self._optimizer.add_param_group(
                {**own, "params": found if given is None else list(zip(given, found, strict=True))}
            )
            self._ahead.append(set(found))

    def _adding(self, inner: Any) -> Any:
        @wraps(inner)
        def add(_: Optimizer, group: dict[str, Any]) -> None:
            given = group["params"]
            listed = [given] if isinstance(given, Tensor) else list(given)
            parameters = {one[1] if isinstance(one, tuple) else one for one in listed}
            if parameters in self._ahead:
                self._ahead.remove(parameters)
            else:
                refuse_strangers(parameters, self._averaged)
                inner({**group, "params": listed})

        return add


def refuse_training(helpers: Mapping[str, object], model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse registered optimizers at once, and modules as soon as a gradient reaches them.

    Only what ``job.prepare`` was given is averaged: elsewhere each worker would train for itself. Averaged
    models and frozen ones get no gradients.

    :raises UsageError: an optimizer is registered that is not the job's own.
    """
    averaged = set[Tensor](model.parameters())
    for name, helper in helpers.items():
        if isinstance(helper, Optimizer) and helper is not optimizer:
            raise UsageError(
                f"registered object {name} is a second optimizer, which would train each worker for itself: "
                "put all networks into one module and all parameters into one optimizer, for job.prepare"
            )
        if isinstance(helper, nn.Module):
            for parameter in helper.parameters():
                if parameter not in averaged:
                    _refuse_gradients(name, parameter)


def refuse_strangers(optimized: Iterable[Tensor], averaged: Set[Tensor]) -> None:
    """Refuse parameters for the optimizer that are not averaged.

    :param averaged: the parameters of the model that ``job.prepare`` was given, at that time.
    :raises UsageError: there are others.
    """
    if strangers := [one for one in optimized if one not in averaged]:
        raise UsageError(
            f"the optimizer has {len(strangers)} parameters that the model for job.prepare did not have: "
            "each worker would train them for itself; "
            "put all that is trained into that model, before job.prepare"
        )


def _refuse_gradients(name: str, parameter: nn.Parameter) -> None:
    was_trained = parameter.requires_grad

    def refuse(_: Tensor) -> None:
        raise UsageError(
            f"registered object {name} gets gradients, which would train each worker for itself: put it into "
            "the module for job.prepare, or call it under torch.no_grad() if it is not trained"
        )

    parameter.requires_grad_()  # hooks are for what is trained; it may be unfrozen later
    parameter.register_post_accumulate_grad_hook(refuse)
    parameter.requires_grad_(was_trained)


def outline(model: nn.Module) -> list[list[Any]]:
    """What workers that average gradients must have in common: name, type and shape of each parameter."""
    return [[name, str(one.dtype), list(one.shape)] for name, one in model.named_parameters()]


def check_same(model: nn.Module, other: list[list[Any]]) -> None:
    """Refuse to train with workers whose model differs: gradients would be mixed up, or PyTorch would abort.

    :param other: the outline of their model.
    :raises UsageError: it is not that of the model.
    """
    for number, (here, there) in enumerate(zip_longest(outline(model), other)):
        if here != there:
            raise UsageError(
                "the model differs from that of the other workers: parameter "
                f"{number} is {_in_words(here)} here, {_in_words(there)} there"
            )


def _in_words(parameter: list[Any] | None) -> str:
    if parameter is None:
        return "missing"
    name, kind, shape = parameter
    return f"{name} ({kind.removeprefix('torch.')}, {' x '.join(map(str, shape)) or 'a number'})"
