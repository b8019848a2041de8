"""What every log must add up to, whatever happened to the run that wrote it."""

from collections import Counter
from collections.abc import Sequence

from pliant.schemas.event import Event
from pliant.schemas.events import Reloaded, typed


def check_story(events: Sequence[Event], slots: int) -> None:
    """Each job is submitted once and ends once, and no more slots are held than there are."""
    counts = Counter((event.event, event.job) for event in events)
    without = [
        event
        for event in events
        if event.event in ("fail", "reject") and not (event.detail or {}).get("reason")
    ]
    assert without == []
    ends = ("finish", "fail", "cancel", "reject")
    for job_id in {event.job for event in events if event.job}:
        assert counts["submit", job_id] == 1, job_id
        assert sum(counts[end, job_id] for end in ends) == 1, job_id
    held: dict[str | None, int] = {}
    partners: dict[str | None, str | None] = {}
    for number, event in enumerate(events):
        if isinstance(made := typed(event), Reloaded) and made.error is None:
            slots = made.clusters()[0].total_gpus
        if event.gpus is not None and event.event not in ("progress", "epoch", "checkpoint"):
            held[event.job] = event.gpus
            partners = {job: other for job, other in partners.items() if event.job not in (job, other)}
            partners[event.job] = (event.detail or {}).get("beside")
        last = number + 1 == len(events) or events[number + 1].time != event.time
        assert not last or _slots_of(held, partners) <= slots, event


def _slots_of(held: dict[str | None, int], partners: dict[str | None, str | None]) -> int:
    return sum(
        gpus
        for job, gpus in held.items()
        if not (other := partners.get(job)) or (partners.get(other) == job and str(job) < other)
    )
