"""Private interfaces of PyTorch that the library uses, all in one place: none of them has a public form.

``tests/tools/run/elastic/test_torch_internals.py`` asks each for what the library expects of it, so a version
of PyTorch that changes one fails there, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

EXCHANGING_MODULE: Final = str(distributed_c10d.__file__)
"""File of PyTorch's module in which a main thread waits for other workers."""
_MEAN: Final = 1
"""Reduction of a loss to its mean, as the nodes of the graph save it."""


def at_end_of_backward(action: Callable[[], None]) -> None:
    """Call ``action`` when the backward pass under way has reached every parameter."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(action)


def writes_of(tensor: torch.Tensor) -> int:
    """PyTorch's count of the writes to a tensor; those through ``.data`` are not counted."""
    return tensor._version


def target_weight(node: Any) -> float | None:
    """Weight of the targets of a cross entropy, if this node of the graph is one that is a mean.

    :returns: None for any other node; NaN for a cross entropy that is no mean.
    """
    if not type(node).__name__.startswith("NllLoss"):
        return None
    is_mean = getattr(node, "_saved_reduction", 0) == _MEAN
    return float(node._saved_total_weight) if is_mean else float("nan")


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each tensor into its target by one call."""
    torch._foreach_copy_(targets, sources)


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """The backend of a group itself, whose calls skip PyTorch's dispatcher."""
    inner: Any = group
    return inner._get_backend(device)


def set_group_timeout(limit: timedelta) -> None:
    """Change how long operations of the default process group may take."""
    distributed_c10d._set_pg_timeout(limit)


def replace_store(group: dist.ProcessGroup, store: dist.Store) -> None:
    """Give a group another store for what comes after it has formed."""
    backend, _ = distributed_c10d._world.pg_map[group]
    distributed_c10d._world.pg_map[group] = backend, dist.PrefixStore(f"{group.group_name}/", store)


def groups_in_use() -> list[dist.ProcessGroup]:
    """All process groups of this process."""
    return list(distributed_c10d._world.pg_map)


def number_groups_anew() -> None:
    """Number the next group as the first one: workers find each other only under the same number.

    PyTorch forgets the number of a destroyed group, but not of one that failed to form.
    """
    distributed_c10d._world.group_count = 0
