"""Make the events of a log fit together that has lost lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from pliant.schemas.event import FREES, HOLDS, OF_NODES, OF_SLOTS, Event
from pliant.tools.run.statedir.log.events import interruption_event
from pliant.tools.schedule.jobs import NodeGpus
from pliant.tools.schedule.session.withheld import node_of

_REASON: Final = "the log was repaired: a line about its GPUs is lost"


def fit_together(events: Iterable[Event], node_gpus: Mapping[str, int]) -> tuple[list[Event], list[str]]:
    """The events without those that contradict others, with those that resolve the rest; and what was done.

    :param node_gpus: GPUs of every node; empty: unknown, then nothing is said about GPUs.
    """
    fitting = _Fitting(node_gpus)
    numbered = enumerate(events)
    groups = groupby(numbered, key=lambda each: (each[1].time, -1 if each[1].event in HOLDS else each[0]))
    kept = [found for _, group in groups for found in fitting.take([event for _, event in group])]
    return kept, [*fitting.said, *fitting.unknown_jobs()]


class _Fitting:
    """Who is known and holds what, as far as the events were gone through."""

    def __init__(self, node_gpus: Mapping[str, int]) -> None:
        self.said: list[str] = []
        self._node_gpus = node_gpus
        self._down: set[str] = set()
        self._withdrawn: dict[str, float] = {}
        """Slots that no job gets, and until when."""
        self._held: dict[str, NodeGpus] = {}
        self._beside: dict[str, str] = {}
        """Jobs that were said to share the GPUs of another, and which."""
        self._unknown: dict[str, int] = {}

    def take(self, group: Sequence[Event]) -> list[Event]:
        """What stands for one event, or for changes of GPUs that were decided together."""
        first = group[0]
        self._withdrawn = {slot: until_s for slot, until_s in self._withdrawn.items() if until_s > first.time}
        if first.event in OF_SLOTS:
            return self._slot(first)
        if first.event in HOLDS:
            return self._changes([event for event in group if self._is_known(event.job or "")])
        if first.event in OF_NODES:
            return self._node(first)
        if first.job is None:
            return [first]
        if first.event == "submit":
            return self._submit(first, first.job)
        if first.event in FREES and first.job in self._held:
            self._held[first.job] = ()
        return [first] if self._is_known(first.job) else []

    def unknown_jobs(self) -> list[str]:
        """A line for each job whose submission is lost."""
        return [
            f"job {job_id}: its submission is lost, so it cannot be taken up; its other lines ({count}) are "
            "dropped. End its processes if some still run, and submit it under another id"
            for job_id, count in sorted(self._unknown.items())
        ]

    def _is_known(self, job_id: str) -> bool:
        if job_id not in self._held:
            self._unknown[job_id] = self._unknown.get(job_id, 0) + 1
        return job_id in self._held

    def _submit(self, event: Event, job_id: str) -> list[Event]:
        if job_id in self._held:
            self.said.append(f"job {job_id}: a second submission is dropped")
            return []
        self._held[job_id] = ()
        return [event]

    def _node(self, event: Event) -> list[Event]:
        node = str((event.detail or {}).get("node"))
        if self._node_gpus and node not in self._node_gpus:
            self.said.append(f"a {event.event!r} event of the unknown node {node} is dropped")
            return []
        (self._down.add if event.event == "node_down" else self._down.discard)(node)
        for job_id, place in self._held.items():
            if event.event == "node_down" and any(name == node for name, _ in place):
                self._held[job_id] = ()
        return [event]

    def _slot(self, event: Event) -> list[Event]:
        """A slot out of service has to be free; where the line that freed it is lost, it stays in service."""
        detail = event.detail or {}
        slot, for_all = str(detail.get("slot")), event.job is None
        if not for_all and not self._is_known(event.job or ""):
            return []
        if self._node_gpus and node_of(slot) not in self._node_gpus:
            self.said.append(f"a {event.event!r} event of the unknown slot {slot} is dropped")
            return []
        if event.event == "slot_up":
            self._withdrawn.pop(slot, None)
        elif for_all and slot not in self._withdrawn and not self._can_be_withdrawn(node_of(slot)):
            self.said.append(f"slot {slot}: the line that freed it is lost; it stays in service")
            return []
        elif for_all:
            until_s = event.time + float(detail.get("seconds", 0.0))
            self._withdrawn[slot] = max(until_s, self._withdrawn.get(slot, until_s))
        return [event]

    def _can_be_withdrawn(self, node: str) -> bool:
        return not self._node_gpus or node in self._down or self._free(node) > 0

    def _back_in_service(self, place: NodeGpus, time_s: float) -> list[Event]:
        """Slots that a job got although they are out of service: the line that put them back is lost."""
        events: list[Event] = []
        for slot in sorted(self._withdrawn, key=self._withdrawn.__getitem__):
            if self._has_room(place):
                break
            if any(node == node_of(slot) and self._free(node) < count for node, count in place):
                del self._withdrawn[slot]
                self.said.append(f"slot {slot}: the line that put it back into service is lost, and replaced")
                events.append(Event(time_s, "slot_up", detail={"slot": slot}))
        return events

    def _changes(self, events: Sequence[Event]) -> list[Event]:
        """What was decided together; those who are in the way lose their GPUs before."""
        together = {event.job or "" for event in events}
        self._held |= dict.fromkeys(together, ())
        lost: list[Event] = []
        kept: list[Event] = []
        for event in events:
            job_id, place = event.job or "", event.placement or ()
            self._beside.pop(job_id, None)
            if (other := (event.detail or {}).get("beside")) is not None and self._held.get(other) == place:
                self._beside[job_id], self._held[job_id] = other, place
                kept.append(event)
                continue
            lost += self._back_in_service(place, event.time)
            out = [*self._make_room(place, together), *([] if self._has_room(place) else [job_id])]
            lost += [interruption_event(each, event.time, _REASON) for each in out]
            if job_id not in out:
                self._held[job_id] = place
                kept.append(event)
        return lost + kept

    def _make_room(self, place: NodeGpus, together: set[str]) -> list[str]:
        """Jobs that lose their GPUs, so that this place is free as far as can be."""
        wanted, out = {name for name, _ in place}, []
        for job_id, held in sorted(self._held.items()):
            if self._has_room(place):
                break
            if job_id not in together and wanted & {name for name, _ in held}:
                self._held[job_id] = ()
                self.said.append(f"job {job_id}: {_REASON}; it goes on from its last checkpoint")
                out.append(job_id)
        return out

    def _has_room(self, place: NodeGpus) -> bool:
        return not self._node_gpus or all(self._free(name) >= count for name, count in place)

    def _free(self, node: str) -> int:
        if node in self._down:
            return 0
        taken = sum(
            count
            for job_id, held in self._held.items()
            if held != self._held.get(self._beside.get(job_id, ""))
            for name, count in held
            if name == node
        )
        withdrawn = sum(node_of(slot) == node for slot in self._withdrawn)
        return self._node_gpus.get(node, 0) - taken - withdrawn
