"""The random numbers of a session, made when the first one is drawn.

Importing NumPy takes longer than a decision of most policies, and most of them draw none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np


def lazy_rng(seed: int) -> np.random.Generator:
    """What ``np.random.default_rng(seed)`` is, from the first use on."""
    return cast("np.random.Generator", _LazyRng(seed))


class _LazyRng:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: np.random.Generator | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for such
            raise AttributeError(name)
        if self._made is None:
            import numpy as np

            self._made = np.random.default_rng(self._seed)
        return getattr(self._made, name)
