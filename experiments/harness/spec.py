"""What an experiment is: sweeps to replay, published numbers to hold them against, figures to draw.

Where training answers and not replay, it is a study.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pliant.tools.report.records import RunRecord

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT.parent / "docs" / "experiments"

Replays = Mapping[str, Mapping[str, Any]]
"""Main figures by the name of the replay, as the results hold them."""
Findings = Mapping[str, Any]
"""What a study found, as its file holds it."""
Tell = Callable[[str], None]
Fold = Callable[["RunRecord", Path], Mapping[str, float]]
"""Makes figures of a replay from its record and its event file."""
Value = Literal["jct", "execution", "waiting"]
Form = Literal["boxes", "cdf"]


@dataclass(frozen=True, slots=True)
class Plot:
    """Jobs completed over time, as papers draw them: one line a policy, and the arrivals."""

    name: str
    title: str
    lines: Mapping[str, str]
    """Names of replays by the words that the legend has for them; patterns, the first match is drawn."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a time is distributed over the jobs: one box or line a policy."""

    name: str
    title: str
    lines: Mapping[str, str]
    """As those of a plot."""
    value: Value
    form: Form


@dataclass(frozen=True, slots=True)
class Paired:
    """Wilcoxon's test of the JCTs of all jobs in two replays of one trace; patterns, pairs by their order."""

    what: str
    run: str
    over: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page is about, and where its files are."""

    name: str
    """As people type it: ``elastic-scaling``."""
    title: str
    paper: str

    @property
    def folder(self) -> Path:
        """Where its recipes, published numbers and page template are."""
        return ROOT / self.name.replace("-", "_")

    @property
    def page(self) -> Path:
        """The page made from its results; the figures are in a folder of its name beside it."""
        return PAGES / f"{self.name}.md"

    @property
    def results(self) -> Path:
        """What came out, as committed."""
        return self.folder / "results.json"


@dataclass(frozen=True, slots=True)
class Study(Subject):
    """Trainings held against what papers say in words; EXPERIMENT of a package, as below."""

    measure: Callable[[Path, int, Tell], Findings]
    """Trains in a folder, as many jobs at a time as there are workers."""
    draw: Callable[[Findings], Mapping[str, Figure]]
    """Figures by name, from the results alone."""
    facts: Callable[[Findings], Mapping[str, Any]]
    """What the page's template wants to know."""


@dataclass(frozen=True, slots=True)
class Experiment(Subject):
    """One reproduction; module ``experiment`` of a package under ``experiments`` holds it as EXPERIMENT."""

    sweeps: tuple[str, ...]
    """Recipes of sweeps in the experiment's folder, as ``pliant replay --recipe`` takes them."""
    plots: tuple[Plot | Distribution, ...] = ()
    prepare: Callable[[Path, bool], None] = lambda _folder, _smoke: None
    """Writes what the sweeps read and no file holds (profile, clusters, traces) into a folder, to which the
    recipes are copied. The flag asks for something that replays in seconds."""
    facts: Callable[[Replays], Mapping[str, Any]] = lambda _replays: {}
    """What the page's template wants to know beyond the comparisons, made from the figures of all replays."""
    tests: tuple[Paired, ...] = ()
    dropped: float = 0.0
    """Part of the jobs that the statistics leave out: the first to arrive, who found the cluster empty."""
    fold: Fold = lambda _run, _events: {}
    """Figures of a replay that no report has; the results keep them all."""
    draw: Callable[[Path, Replays], Mapping[str, Figure]] = lambda _folder, _replays: {}
    """Figures by name beyond the plots, from the folder of the replays and their figures."""

    @property
    def numbers(self) -> Path:
        """The published numbers."""
        return self.folder / "published.toml"


def names() -> list[str]:
    """Every experiment."""
    return sorted(path.parent.name.replace("_", "-") for path in ROOT.glob("*/experiment.py"))


def load(name: str) -> Experiment:
    """The experiment of that name, one of replays.

    :raises UsageError: there is none.
    """
    found = find(name)
    assert isinstance(found, Experiment)  # noqa: S101
    return found


def find(name: str) -> Subject:
    """The experiment or study of that name.

    :raises UsageError: there is none.
    """
    if name not in names():
        raise UsageError(f'no experiment "{name}"; there are: {", ".join(names())}')
    module = importlib.import_module(f"experiments.{name.replace('-', '_')}.experiment")
    found = module.EXPERIMENT
    assert isinstance(found, Subject)  # noqa: S101
    return found
