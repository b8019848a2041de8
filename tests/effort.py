"""How many examples properties are tried on: a fifth of what they state, or all with PLIANT_THOROUGH=1."""

import os
from typing import Final

from hypothesis import HealthCheck, settings

THOROUGH: Final = bool(os.environ.get("PLIANT_THOROUGH"))
_FEW: Final = 5
"""No property has fewer than these: the first examples are the simplest."""


def examples(most: int) -> int:
    """Examples of a property that is tried on ``most`` when time does not matter."""
    return most if THOROUGH else max(min(most, _FEW), most // 5)


def set_profile() -> None:
    """CI draws the same examples every time."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("pliant", deadline=None, suppress_health_check=slow, max_examples=examples(100))
    settings.register_profile("ci", settings.get_profile("pliant"), derandomize=True)
    settings.load_profile("ci" if os.environ.get("CI") else "pliant")
