"""How a global batch is cut into shares and micro-steps: exactly, never approximately."""

from __future__ import annotations

from pliant.schemas.schedule import BatchPlan


def shares(total: int, parts: int) -> tuple[int, ...]:
    """Cut ``total`` samples into ``parts`` whole shares that differ by at most one, larger ones first."""
    base, rest = divmod(total, parts)
    return (base + 1,) * rest + (base,) * (parts - rest)


def plan_batch(global_batch: int, gpus: int, per_gpu_max: int | None) -> BatchPlan:
    """The cut of a global batch for ``gpus`` workers that each hold at most ``per_gpu_max`` samples.

    Accumulation is used only where the share of one GPU does not fit its memory (Ares, section 4). The
    caller makes sure that ``global_batch >= gpus``: a worker without a sample is not a worker.
    """
    share = -(-global_batch // gpus)
    accum = 1 if per_gpu_max is None else -(-share // per_gpu_max)
    return BatchPlan.model_validate({"global": global_batch, "local": -(-share // accum), "accum": accum})
