"""What each size of each job is worth: its price times its rate soon, less what a change costs."""

from __future__ import annotations

from typing import Final

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import Floats
from pliant.tools.schedule.policies.shadow_price.members import Members

_MOST_LOST: Final = 0.95
"""The largest part of the value of a size that a change to it costs."""


def values(members: Members, prices: Floats, dwell_s: float) -> Floats:
    """By [job, size], -inf where a job does not run; without GPUs 0, and for a job that has some less.

    Without costs v(k) = μ G(k), where μ G(k°) = λ F(k°) at the size k° that makes most of a GPU. λ is
    constant along a job only where its curve does not move with progress; where it does, λ g is. A change
    costs its seconds over those until the next one or the end. What a job holds counts at the speed of its
    place.

    :param dwell_s: seconds after which what a job holds is taken to change.
    """
    rows, normal = np.arange(len(members.jobs)), members.normal
    whole, soon = members.whole, members.soon
    scale = prices * whole[rows, normal] / soon[rows, normal]
    worth = scale[:, None] * soon
    held = members.held
    kept = worth[rows, held] * members.scattered
    with np.errstate(divide="ignore"):
        lasts_s = np.minimum(dwell_s, members.left[:, None] / whole)
    lost = np.minimum(_MOST_LOST, members.rescale_s[:, None] / np.maximum(lasts_s, 1e-9))
    found = np.where(members.runs[:, None], worth * (1.0 - lost), worth)
    found[rows, held] = kept
    found = np.where(whole > 0, found, -np.inf)
    found[:, 0] = np.where(held > 0, -members.rescale_s / dwell_s * kept, 0.0)
    return found
