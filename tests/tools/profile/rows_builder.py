"""Profile rows that name only what a test is about."""

from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput_model import ThroughputBySize


def step(
    gpus: int | str,
    local: int,
    seconds: float | None,
    *,
    accum: int = 1,
    model: str = "net",
    gpu_type: str = "gpu",
    parameters: int | None = None,
    compute: float | None = None,
    source: str = "measured",
) -> ProfileRow:
    """A training row; ``gpus`` is a number on one node or a placement like "2,2"; no seconds: did not fit."""
    placement = str(gpus)
    shares = [int(part) for part in placement.split(",")]
    return ProfileRow(
        *("train", model, gpu_type, len(shares), sum(shares), placement, local),
        accum_steps=accum,
        step_seconds=seconds,
        compute_seconds=compute,
        samples_per_second=None if seconds is None else sum(shares) * local * accum / seconds,
        parameters=parameters,
        feasible=seconds is not None,
        source=source,  # type: ignore[arg-type]
    )


def reduce(gpus: int | str, weights: int, seconds: float, gpu_type: str = "gpu") -> ProfileRow:
    shares = [int(part) for part in str(gpus).split(",")]
    place = gpu_type, len(shares), sum(shares), str(gpus)
    return ProfileRow("allreduce", "", *place, 0, step_seconds=seconds, parameters=weights)


def throughput(*rows: ProfileRow, **speeds: float) -> ThroughputBySize:
    return ThroughputBySize(Profile(rows), speeds)
