"""What the jobs of OASiS (INFOCOM 2018), section V, are drawn from."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from pliant.schemas.file_io.record import Record


def _refuse_backwards(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        text = f"{bounds[1]:g} is below {bounds[0]:g}, expected [from, to]"
        raise PydanticCustomError("recipe", "{problem}", {"problem": text})
    return bounds


_Amount = Annotated[float, Field(ge=0, le=1e9)]
Bounds = Annotated[tuple[_Amount, _Amount], AfterValidator(_refuse_backwards)]
"""From, to; drawn evenly between them."""


class OasisRanges(Record):
    """Jobs with workers, parameter servers and a utility; the defaults are the paper's simulation."""

    slot_s: Annotated[float, Field(ge=1e-3, le=1e9)] = 1200.0
    """Seconds of one time slot."""
    epochs: Bounds = (50, 200)
    chunks: Bounds = (5, 100)
    """Data chunks, each trained by one worker at a time: the most workers that a job can use."""
    minibatches: Bounds = (10, 100)
    """In one chunk."""
    minibatch_slots: Bounds = (0.001, 0.1)
    """Time of one mini-batch, slots."""
    gradient_mb: Bounds = (30, 575)
    workers: Bounds = (1, 30)
    """Requested by a job for the policies that do not choose; never more than its chunks."""
    worker: dict[str, Bounds] = Field(
        default={"gpu": (0, 4), "cpu": (1, 10), "memory": (2, 32), "disk": (5, 10), "bandwidth": (0.1, 5)}
    )
    """Resources of one worker: gpu and cpu in numbers, memory and disk in GB, bandwidth in Gbps."""
    ps: dict[str, Bounds] = Field(
        default={"cpu": (1, 10), "memory": (2, 32), "disk": (5, 10), "bandwidth": (5, 20)}
    )
    """Resources of one parameter server."""
    value: Bounds = (1, 100)
    """Utility of a job that ends early enough."""
    target_slots: Bounds = (1, 15)
    """Time after its submission at which a job should end."""
    sensitive: Bounds = (0.01, 1)
    """Decay, per slot, of jobs that are sensitive to time."""
    critical: Bounds = (4, 6)
    """Decay, per slot, of jobs that are time-critical."""
    sensitive_share: Annotated[float, Field(ge=0, le=1)] = 0.55
    critical_share: Annotated[float, Field(ge=0, le=1)] = 0.35
    """The rest is insensitive: its decay is 0."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.sensitive_share + self.critical_share > 1:
            text = "sensitive_share and critical_share are more than 1 together"
            raise PydanticCustomError("recipe", "{problem}", {"problem": text})
        return self
