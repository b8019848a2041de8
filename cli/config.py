"""What a user need not type: ``pliant.toml`` of this folder or the nearest above, and ``PLIANT_STATE``.

The command line counts before the environment, that before pliant.toml, and that before a command's default.
Paths in pliant.toml start at its folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import UsageError

FILE: Final = "pliant.toml"
STATE_VARIABLE: Final = "PLIANT_STATE"
STATE_HELP: Final = "PLIANT_STATE, else state in pliant.toml"
ROOT: Final = 0
ORDER: Final = ("state", "cluster", "policy", "job")


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment and pliant.toml say; None where they say nothing."""

    file: Path | None = None
    state: str | None = None
    cluster: str | None = None
    policy: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of that policy; another one named on the command line does not get them."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Fields for jobs that do not state them."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Origin of each setting."""

    def lines(self) -> Iterator[str]:
        """Each setting and where it comes from."""
        shown = {
            "state": self.state,
            "cluster": self.cluster,
            "policy": " ".join([self.policy or "", *(f"{k}={v}" for k, v in self.parameters.items())]),
            "job": ", ".join(self.job),
        }
        for name in ORDER:
            if name in self.origins:
                yield f"{name}: {shown[name]} ({self.origins[name]})"

    def names_cluster_of(self, state: Path) -> bool:
        """Whether one file names this state directory and its cluster."""
        same = self.state is not None and Path(self.state).resolve() == state.resolve()
        return same and self.origins["state"] == self.origins.get("cluster")

    def policy_of(self, given: str | None, parameters: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """The policy that is named, with its parameters, else that of pliant.toml with the further ones.

        :raises UsageError: neither names one.
        """
        if given is not None:
            return given, dict(parameters)
        if self.policy is None:
            raise UsageError(f"--policy missing: name one, or in {FILE} (pliant policies lists them)")
        return self.policy, {**self.parameters, **parameters}


def configuration() -> Config:
    """:raises BadInputError: pliant.toml is not one."""
    file = _nearest(here) if (here := current_folder()) is not None else None
    config = Config() if file is None else _read(file)
    if state := os.environ.get(STATE_VARIABLE):
        return replace(config, state=state, origins={**config.origins, "state": STATE_VARIABLE})
    return config


def current_folder() -> Path | None:
    """Returns None if it was removed; then paths have to be absolute."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def state_directory(given: Path | None) -> Path:
    """The state directory of a command that needs one.

    :raises UsageError: nothing names it.
    """
    if given is not None:
        return given
    path = configuration().state
    if path is None:
        raise UsageError(f"name the state directory: --state DIR, {STATE_VARIABLE}, or state in {FILE}")
    return Path(path)


def changed_cluster(state: Path) -> str | None:
    """The cluster file of the configuration if the run of a directory has another cluster."""
    from pliant.schemas.errors import PliantError
    from pliant.schemas.io import read_cluster
    from pliant.tools.run.statedir.directory import StateDir
    from pliant.tools.run.statedir.kept_inputs import cluster_changes

    named, kept = configuration().cluster, StateDir(state).cluster
    try:
        own = None if named is None or not kept.exists() else read_cluster(kept)
        return named if own and named and cluster_changes(own, read_cluster(named), named) else None
    except PliantError:  # of another account, or wrong: the error at hand says enough
        return None


def _nearest(folder: Path) -> Path | None:
    """The first file from a folder upwards; one that a stranger put where all may write does not count."""
    for place in (folder, *folder.parents):
        file = place / FILE
        try:
            owner, mode = file.stat().st_uid, place.stat().st_mode
        except OSError:
            continue
        if owner in (ROOT, os.geteuid()) or not mode & stat.S_IWOTH:
            return file
    return None


def _read(file: Path) -> Config:
    from pliant.cli.config_file import read_settings
    from pliant.tools.schedule.registry import is_file

    source = os.path.relpath(file)
    settings = read_settings(file, source)
    parameters = {name: _as_typed(value) for name, value in settings.parameters.items()}
    return Config(
        file,
        state=_from_here(file, settings.state),
        cluster=_from_here(file, settings.cluster),
        policy=_from_here(file, settings.policy) if is_file(settings.policy or "") else settings.policy,
        parameters=parameters,
        job=settings.job,
        origins={name: source for name in ORDER if getattr(settings, name)},
    )


def _from_here(file: Path, named: str | None) -> str | None:
    """A path of the file as seen from the current folder."""
    if not named:
        return None
    path = Path(named).expanduser()
    return str(path) if path.is_absolute() else os.path.relpath(file.parent / path)


def _as_typed(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
