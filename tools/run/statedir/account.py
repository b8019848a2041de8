"""An account of this machine: who asks, as the kernel proves it."""

from __future__ import annotations

import pwd
from typing import NamedTuple, Self


class Account(NamedTuple):
    """Who gave an order."""

    uid: int
    name: str

    @classmethod
    def of(cls, uid: int) -> Self:
        return cls(uid, account_name(uid))

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid})"


def account_name(uid: int) -> str:
    """The name of an account; its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
