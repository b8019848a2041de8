"""What is trained although its gradients are averaged over no workers: refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.schemas.errors import UsageError


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
