"""Whole numbers in text: as many digits as a file can ever need, and no error for the rest."""

from __future__ import annotations

from typing import Final

TOO_MANY: Final = "a number has too many digits"
"""What messages say of a number that Python does not convert."""


def whole_number(text: str) -> int | None:
    """The number that a text of decimal digits stands for; None for any other text, and beyond 18 digits.

    ``int`` takes signs, blanks, underscores and the digits of other scripts as well, and raises beyond a
    limit of digits that the environment sets.
    """
    plain = text.isascii() and text.isdigit()
    return int(text) if plain and len(text.lstrip("0")) <= 18 else None  # all of them fit 64 bits
