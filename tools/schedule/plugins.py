"""What comes with pliant, and what other packages add by entry points: policies, importers and backends.

Nothing is imported before it is asked for. What pliant brings is found by the same table, without a look at
the metadata of installed packages, which takes longer than most commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class Plugins:
    """Objects of one kind by name. A name that comes with pliant is not replaced."""

    noun: str
    """Name of one of them in messages."""
    group: str
    """Entry-point group, whose rows are name = "module:attribute"."""
    built_in: Mapping[str, str]
    """Modules and attributes that come with pliant, by name."""

    def names(self) -> tuple[str, ...]:
        """Those that come with pliant, then the others."""
        return (*self.built_in, *sorted(self._added()))

    def load(self, name: str) -> object | None:
        """Returns None if there is none of that name.

        :raises UsageError: that of another package cannot be loaded.
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            loaded: object = getattr(import_module(module), attribute)
            return loaded
        point = self._added().get(name)
        if point is None:
            return None
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:
            from pliant.tools.schedule.policy import in_words, raised_at

            at = raised_at(error, point.value.partition(":")[0].partition(".")[0])
            place = f"{at}: " if at else ""
            text = f"{self.title(name)} cannot be loaded: {place}{in_words(error)}"
            raise UsageError(text) from error
        return loaded

    def title(self, name: str) -> str:
        """Name and place, for messages about what another package adds."""
        point = self._added().get(name)
        return f'{self.noun} "{name}" ({self.built_in[name] if point is None else point.value})'

    def _added(self) -> dict[str, EntryPoint]:
        """Where two packages add one name, the first in order of what they give counts."""
        from importlib.metadata import entry_points

        points = sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value))
        return {point.name: point for point in reversed(points) if point.name not in self.built_in}
