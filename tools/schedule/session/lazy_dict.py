"""A dictionary whose values may be raw as bytes, from which they are made when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Generic, TypeVar

T = TypeVar("T")


class LazyDict(MutableMapping[str, T], Generic[T]):
    """Values by name, in order of their insertion; each is made once, unless it was put away since.

    :param values: as they are, or as bytes.
    :param make: the value of that name, of its bytes; never bytes itself.
    :param encode: the bytes of a value.
    """

    def __init__(
        self, values: Mapping[str, bytes | T], make: Callable[[str, bytes], T], encode: Callable[[T], bytes]
    ) -> None:
        self._values: dict[str, bytes | T] = dict(values)
        self._made = {name for name, value in self._values.items() if not isinstance(value, bytes)}
        self._make = make
        self._encode = encode

    @classmethod
    def of(
        cls, values: Mapping[str, bytes | T], make: Callable[[str, bytes], T], encode: Callable[[T], bytes]
    ) -> LazyDict[T]:
        """The values of another mapping; of one that is lazy itself, what lies there as bytes stays so."""
        return cls(values._values if isinstance(values, LazyDict) else values, make, encode)

    def __getitem__(self, name: str) -> T:
        value = self._values[name]
        if isinstance(value, bytes):
            value = self._values[name] = self._make(name, value)
            self._made.add(name)
        return value

    def __setitem__(self, name: str, value: T) -> None:
        self._values[name] = value
        self._made.add(name)

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._made.discard(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def raw(self, name: str) -> bytes | None:
        """The bytes of a value that was not asked for yet."""
        value = self._values[name]
        return value if isinstance(value, bytes) else None

    def made(self) -> set[str]:
        """The names of all values that are not kept as bytes."""
        return set(self._made)

    def put_away(self, names: Iterable[str]) -> None:
        """Keep these values, as far as there are any, as bytes: they take a fraction of the memory."""
        for name in self._made.intersection(names):
            value = self._values[name]
            if not isinstance(value, bytes):
                self._values[name] = self._encode(value)
            self._made.discard(name)


def raw_of(values: Mapping[str, T], name: str, encode: Callable[[T], bytes]) -> bytes:
    """The bytes of one value: as they lie there, else encoded."""
    raw = values.raw(name) if isinstance(values, LazyDict) else None
    return encode(values[name]) if raw is None else raw
