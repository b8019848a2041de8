"""Which slots of a node: concrete indices for the counts that a schedule gives. Survivors keep theirs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pliant.schemas.errors import InfeasibleError
from pliant.tools.schedule.jobs import NodeGpus, gpus_of


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One GPU or CPU slot; written ``node/index``."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}/{self.index}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        """The slot that ``str`` wrote."""
        node, _, index = text.rpartition("/")
        return cls(node, int(index))


def kept(held: Sequence[Slot], placement: NodeGpus) -> tuple[Slot, ...]:
    """The slots that a job goes on with: on each node the first it holds, as many as it still gets there."""
    left = dict(placement)
    survivors = []
    for slot in held:
        if left.get(slot.node, 0):
            left[slot.node] -= 1
            survivors.append(slot)
    return tuple(survivors)


def filled(
    survivors: Sequence[Slot],
    placement: NodeGpus,
    node_gpus: Mapping[str, int],
    taken: Container[Slot],
    doubt: Callable[[Slot], int] | None = None,
) -> tuple[Slot, ...]:
    """``survivors`` and, after them, slots not ``taken`` that the placement still asks for.

    :param doubt: what speaks against a slot; those with the least are chosen, of equal ones the lowest.
    :raises InfeasibleError: a node has fewer slots free.
    """
    if len(survivors) == gpus_of(placement):
        return tuple(survivors)
    slots = list(survivors)
    for node, count in placement:
        missing = count - sum(slot.node == node for slot in survivors)
        if not missing:
            continue
        free = [
            slot
            for index in range(node_gpus.get(node, 0))
            if (slot := Slot(node, index)) not in taken and slot not in slots
        ]
        if missing > len(free):
            raise InfeasibleError(f"node {node} has {len(free)} free slots, {missing} more are asked for")
        slots += sorted(free, key=doubt)[:missing]
    return tuple(slots)


def by_node(slots: Iterable[Slot]) -> dict[str, list[int]]:
    """Slot indices by node, both in the order given."""
    nodes: dict[str, list[int]] = {}
    for slot in slots:
        nodes.setdefault(slot.node, []).append(slot.index)
    return nodes


def counts(slots: Iterable[Slot]) -> NodeGpus:
    """((node, slots on it), …) in order of the node names."""
    return tuple((node, len(indices)) for node, indices in sorted(by_node(slots).items()))
