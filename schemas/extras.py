"""Libraries that only some of the work needs: the package's extras, and one line where one is missing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from pliant.schemas.errors import ServiceMissingError

EXTRAS: Final = {
    "torch": "run",
    "matplotlib": "figures",
    "pandas": "notebooks",
    "transformers": "integrations",
    "lightning": "integrations",
    "accelerate": "integrations",
}
"""The extra of pyproject.toml that brings each library."""


def missing(library: str) -> str | None:
    """How to install a library, as a clause. Returns None if it is there; it is not imported."""
    if find_spec(library) is not None:
        return None
    return f"{library} is not installed: pip install 'pliant[{EXTRAS[library]}]'"


def require(library: str, what: str) -> None:
    """:raises ServiceMissingError: the library that ``what`` needs is not installed."""
    if (advice := missing(library)) is not None:
        raise ServiceMissingError(f"{what}, but {advice}")
