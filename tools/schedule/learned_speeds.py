"""Speeds that jobs measure while they train, known from then on to every decision about jobs of their model.

:class:`LearnedSpeeds` keeps recent step times by model, GPU type, placement and batch, and answers as a
throughput model. What was measured answers as its median. All else of a model that has measured anything is
the step times of :mod:`~pliant.tools.schedule.step_time_fit`, fitted to its measurements, on another GPU type
scaled by the relative speeds. A model without any is taken to train one sample per GPU-second and to lose by
synchronising what models measured so far have lost, so that no model is expected to scale for ever.

A configuration counts as changed once its median has moved by more than :data:`_MOVED`: noise within that
changes no decision. A size that nobody tried is open up to :data:`_GROWTH` times the largest that was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pliant.tools.profile.throughput import Placement, Throughput, local_limit, micro_steps, stand_in
from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.session.part import SessionPart

if TYPE_CHECKING:
    from pliant.schemas.profile import ProfileRow
    from pliant.tools.schedule.step_time_fit import Fit

SpeedSource = Literal["profile", "learned", "best"]
"""Where speeds come from: the profile; what jobs have measured; or the profile where it measured, and what
jobs have measured where it did not."""
_RECENT: Final = 5
"""Step times that are kept of a configuration."""
_MOVED: Final = 0.1
"""Relative difference from which on a new median is another speed."""
_CONTRADICTED: Final = 0.2
_OFTEN: Final = 20
"""So many measurements that differ by more than this part of it take the place of a row of the profile."""
_GROWTH: Final = 2
"""Pollux (OSDI '21), section 4.1: a job gets at most twice the GPUs that it has tried."""
_MOST_CONFIGURATIONS: Final = 64
_MOST_MODELS: Final = 1000
"""What is kept, of a model and in all; what was not measured for longest goes first."""
_LOST_INSIDE: Final = 0.1
_LOST_ACROSS: Final = 0.2
"""Synchronising over computing at a measured batch, on one node and across nodes, as long as no model has
measured it."""


class Configuration(NamedTuple):
    """What a step time was measured in."""

    gpu_type: str
    placement: Placement
    local_batch: int
    accum: int

    @classmethod
    def of(cls, text: str) -> Configuration:
        gpu_type, placement, local, accum = text.rsplit(" ", 3)
        return cls(gpu_type, tuple(map(int, placement.split(","))), int(local), int(accum))

    def __str__(self) -> str:
        return f"{self.gpu_type} {','.join(map(str, self.placement))} {self.local_batch} {self.accum}"


class MeasuredStep(NamedTuple):
    """Step times of one configuration."""

    steps: int
    known_s: float
    """The median when it last moved."""
    recent_s: Sequence[float]
    """Newest last."""
    sync_s: float | None
    """The part of the last one that waited for the all-reduce; None: not measured."""

    def with_one_more(self, seconds: float, sync_s: float | None) -> MeasuredStep:
        recent_s = (*self.recent_s, seconds)[-_RECENT:]
        middle_s = median_low(recent_s)
        moved = abs(middle_s - self.known_s) > _MOVED * self.known_s
        return MeasuredStep(self.steps + 1, middle_s if moved else self.known_s, recent_s, sync_s)


@dataclass(slots=True)
class LearnedState:
    """All that was measured."""

    steps: dict[str, dict[str, Sequence[object]]] = field(default_factory=dict)
    """By model and configuration, the fields of a :class:`MeasuredStep`; those measured last stand last."""
    requested: dict[str, int] = field(default_factory=dict)
    """By model, the most GPUs that one of its jobs has requested."""


class Contradiction(NamedTuple):
    """A row of the profile that jobs contradict for long."""

    model: str
    configuration: Configuration
    profile_s: float
    measured_s: float


class LearnedSpeeds(SessionPart[LearnedState]):
    """What jobs have measured, as a throughput model."""

    def __init__(
        self,
        profiled: Throughput,
        speeds: Mapping[str, float],
        source: SpeedSource = "profile",
        *,
        guesses: bool = False,
    ) -> None:
        """:param profiled: the throughput model of the profile, or what stands for it without one.
        :param speeds: relative speeds of GPU types; 1 for others.
        :param guesses: there is no profile, and ``profiled`` must not be used to compare jobs.
        """
        self.state = LearnedState()
        self.source: SpeedSource = source
        self.profiled = profiled
        self.guesses = guesses
        self._factors = dict(speeds)
        self._tables: dict[str, _ModelTable] = {}
        self._merged: dict[str, Throughput] = {}
        self._lost = _Lost(_LOST_INSIDE, _LOST_ACROSS)

    def fresh(self) -> LearnedSpeeds:
        """The same before anything was measured."""
        return LearnedSpeeds(self.profiled, self._factors, self.source, guesses=self.guesses)

    def restore(self, state: LearnedState) -> None:
        super().restore(state)
        self._tables.clear()
        self._merged.clear()
        self._lost = self._lost_of_all()

    def observe(self, model: str, observation: Observation) -> Collection[str]:
        """Keep a measurement; returns the models whose speeds are others from now on."""
        if observation.gpu_type is None or not observation.step_seconds > 0:
            return ()
        configuration = Configuration(observation.gpu_type, *observation[:3])
        steps = self.state.steps.pop(model, {})
        self.state.steps[model] = steps  # the last
        if len(self.state.steps) > _MOST_MODELS:
            self._forget(next(iter(self.state.steps)))
        key = str(configuration)
        seconds, sync_s = observation.step_seconds, observation.sync_seconds
        before = _step(steps.pop(key)) if key in steps else None
        if before is None:
            after = MeasuredStep(1, seconds, (seconds,), sync_s)
        else:
            after = before.with_one_more(seconds, sync_s)
        steps[key] = after
        if len(steps) > _MOST_CONFIGURATIONS:
            del steps[next(iter(steps))]
        moved = before is None or before.known_s != after.known_s or self._replaces_row(after)
        if self.source == "profile" or not moved:
            return ()
        return self._changed(model)

    def _replaces_row(self, step: MeasuredStep) -> bool:
        """Whether it may take the place of a row of the profile from now on."""
        return self.source == "best" and step.steps == _OFTEN

    def request(self, model: str, gpus: int) -> Collection[str]:
        """A job of the model requests so many GPUs: that size is open to all of them."""
        if gpus <= self.state.requested.get(model, 0):
            return ()
        self.state.requested[model] = gpus
        return () if self._tables.pop(model, None) is None else (model,)

    def _changed(self, model: str) -> Collection[str]:
        self._tables.pop(model, None)
        self._merged.pop(model, None)
        lost = self._lost_of_all()
        if lost.is_near(self._lost):
            return (model,)
        self._lost = lost
        self._tables.clear()
        return tuple({*self.state.steps, *self.state.requested})

    def _forget(self, model: str) -> None:
        del self.state.steps[model]
        self._tables.pop(model, None)
        self._merged.pop(model, None)

    def measured(self, model: str) -> Iterator[tuple[Configuration, MeasuredStep]]:
        """What jobs of a model have measured."""
        for text, values in self.state.steps.get(model, {}).items():
            yield Configuration.of(text), _step(values)

    def is_guess(self, model: str) -> bool:
        """Whether nothing says how fast jobs of a model train."""
        if self.source == "profile":
            return self.guesses
        if self.state.steps.get(model):
            return False
        return self.guesses or self.source == "learned" or not self._is_in_profile(model)

    def contradictions(self) -> list[Contradiction]:
        """Rows of the profile that jobs contradict by more than a fifth, and have often enough."""
        rows = {(row.model, _configuration(row)): row for row in self._training_rows()}
        return [
            Contradiction(model, configuration, row.step_seconds or 0.0, step.known_s)
            for model in sorted(self.state.steps)
            for configuration, step in self.measured(model)
            if (row := rows.get((model, configuration))) is not None and _contradicts(step, row)
        ]

    # The protocol of a throughput model.

    def models(self) -> Collection[str]:
        return self.profiled.models() if self.source == "profile" else ()

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        return self.profiled.max_local_batch(model, gpu_type) if self._asks_profile(model) else None

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        return self.profiled.local_batches(model, gpu_type) if self._asks_profile(model) else ()

    def rescale_seconds(self, model: str) -> float | None:
        return self.profiled.rescale_seconds(model)

    def profile_rows(self) -> Collection[ProfileRow]:
        return self.profiled.profile_rows()

    def across(self, levels: Sequence[str]) -> LearnedSpeeds:
        across = LearnedSpeeds(self.profiled.across(levels), self._factors, self.source, guesses=self.guesses)
        across.state, across._lost = self.state, self._lost
        return across

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        in_profile = self._is_in_profile(model)
        if self.source == "profile":
            return self.profiled.step_seconds(model, gpu_type, placement, global_batch, per_gpu_max)
        if in_profile:
            query = (model, gpu_type, placement, global_batch, per_gpu_max)
            if self.source == "best" and not self.guesses:
                return self._with_learned_rows(model).step_seconds(*query)
            if self.profiled.step_seconds(*query) is None:
                return None  # it does not fit
        gpus = sum(placement)
        if not 0 < gpus <= global_batch:
            return None
        table = self._table(model)
        if gpus > table.most_gpus:
            return None
        limit = local_limit(self, model, gpu_type, per_gpu_max)
        if limit == 0:
            return None
        local, accum = micro_steps(global_batch, gpus, limit)
        return table.seconds(Configuration(gpu_type, placement, local, accum), global_batch)

    def _table(self, model: str) -> _ModelTable:
        table = self._tables.get(model)
        if table is None:
            steps = dict(self.measured(model))
            most = max([sum(each.placement) for each in steps], default=0) * _GROWTH
            most = max(most, self.state.requested.get(model, 0), 1)
            table = self._tables[model] = _ModelTable(steps, most, self._factors, self._lost)
        return table

    def _lost_of_all(self) -> _Lost:
        tables = [self._table(model) for model in self.state.steps]
        lost = [each for table in tables for each in table.lost()]
        inside = [each.inside for each in lost if each.inside]
        across = [each.across for each in lost if each.across]
        return _Lost(median(inside) if inside else _LOST_INSIDE, median(across) if across else _LOST_ACROSS)

    # The profile.

    def _is_in_profile(self, model: str) -> bool:
        known = self.profiled.models()
        return not known or model in known

    def _asks_profile(self, model: str) -> bool:
        return self.source == "profile" or self._is_in_profile(model)

    def _training_rows(self) -> Iterator[ProfileRow]:
        return (row for row in self.profiled.profile_rows() if row.kind == "train" and row.feasible)

    def _with_learned_rows(self, model: str) -> Throughput:
        """The profile, and what jobs of the model have measured that it has not, or that contradicts it."""
        merged = self._merged.get(model)
        if merged is None:
            merged = self._merged[model] = self._merge(model)
        return merged

    def _merge(self, model: str) -> Throughput:
        if not self.profiled.models() or not self.state.steps.get(model):
            return self.profiled
        from pliant.schemas.profile import Profile
        from pliant.tools.profile.throughput_model import ThroughputBySize

        own = {_configuration(row): row for row in self._training_rows() if row.model == model}
        learned = {
            configuration: step
            for configuration, step in self.measured(model)
            if configuration not in own or _contradicts(step, own[configuration])
        }
        if not learned:
            return self.profiled
        kept = [
            row
            for row in self.profiled.profile_rows()
            if row.kind == "allreduce" or (row.model == model and _configuration(row) not in learned)
        ]
        rows = (*kept, *(learned_row(model, *each) for each in learned.items()))
        return ThroughputBySize(Profile(tuple(rows), source="profile"), self._factors)


def _step(values: Sequence[object]) -> MeasuredStep:
    return MeasuredStep(*values)  # type: ignore[arg-type]


def _contradicts(step: MeasuredStep, row: ProfileRow) -> bool:
    profile_s = row.step_seconds or 0.0
    return step.steps >= _OFTEN and abs(step.known_s - profile_s) > _CONTRADICTED * profile_s


def _configuration(row: ProfileRow) -> Configuration:
    return Configuration(
        row.gpu_type, tuple(map(int, row.placement.split(","))), row.local_batch, row.accum_steps
    )


def learned_row(model: str, configuration: Configuration, step: MeasuredStep) -> ProfileRow:
    """What jobs have measured as a row of a profile."""
    from pliant.schemas.profile import ProfileRow

    gpu_type, placement, local, accum = configuration
    samples = sum(placement) * local * accum
    return ProfileRow(
        kind="train",
        model=model,
        gpu_type=gpu_type,
        nodes=len(placement),
        gpus=sum(placement),
        placement=",".join(map(str, placement)),
        local_batch=local,
        accum_steps=accum,
        step_seconds=step.known_s,
        samples_per_second=samples / step.known_s,
        iterations=step.steps,
    )


class _Lost(NamedTuple):
    """Synchronising over computing, on one node and across nodes; 0.0: not measured."""

    inside: float
    across: float

    def is_near(self, other: _Lost) -> bool:
        """Whether nothing is worth another decision."""
        return all(
            abs(one - two) <= _CONTRADICTED * max(one, two) for one, two in zip(self, other, strict=True)
        )


class _ModelTable:
    """What one model does, from its measured step times."""

    def __init__(
        self,
        steps: Mapping[Configuration, MeasuredStep],
        most_gpus: int,
        factors: Mapping[str, float],
        lost: _Lost,
    ) -> None:
        """:param most_gpus: more of them it may not have yet.
        :param lost: what other models lose by synchronising.
        """
        self.most_gpus = most_gpus
        self._steps = steps
        self._factors = factors
        self._lost = lost
        self._rows = {
            kind: sum(each.gpu_type == kind for each in steps)
            for kind in dict.fromkeys(each.gpu_type for each in steps)
        }
        self._fits: dict[str, tuple[Fit, int]] = {}

    def seconds(self, configuration: Configuration, global_batch: int) -> float:
        """Seconds of one optimizer step."""
        measured = self._steps.get(configuration)
        if measured is not None:
            return measured.known_s
        gpu_type, placement, local, accum = configuration
        if not self._rows:
            compute_s = global_batch / sum(placement) / self._factors.get(gpu_type, 1.0)
            lost = 0.0 if sum(placement) == 1 else self._lost[len(placement) > 1]
            return compute_s + lost * global_batch / 2 / self._factors.get(gpu_type, 1.0)
        known = stand_in(self._rows, gpu_type)
        factor = self._factors.get(known, 1.0) / self._factors.get(gpu_type, 1.0)
        if (
            known != gpu_type
            and (same := self._steps.get(configuration._replace(gpu_type=known))) is not None
        ):
            return same.known_s * factor
        import numpy as np

        fit, _ = self._fit(known)
        several, gpus = np.array([len(placement) > 1]), np.array([sum(placement)])
        return float(fit.step_seconds(several, gpus, np.array([local]), np.array([accum]))[0]) * factor

    def lost(self) -> Iterable[_Lost]:
        """What it loses by synchronising on each type, where it has measured that."""
        for kind in self._rows:
            several = [each for each in self._steps if each.gpu_type == kind and sum(each.placement) > 1]
            if not several:
                continue
            fit, local = self._fit(kind)
            compute_s = fit.alpha_c + fit.beta_c * local
            inside = any(len(each.placement) == 1 for each in several)
            across = any(len(each.placement) > 1 for each in several)
            yield _Lost(fit.alpha_r / compute_s * inside, fit.alpha_n / compute_s * across)

    def _fit(self, gpu_type: str) -> tuple[Fit, int]:
        """The parameters, and the local batch that was measured most of all."""
        if gpu_type not in self._fits:
            self._fits[gpu_type] = self._fitted(gpu_type)
        return self._fits[gpu_type]

    def _fitted(self, gpu_type: str) -> tuple[Fit, int]:
        from pliant.tools.schedule.step_time_fit import fit

        own = {each: step for each, step in self._steps.items() if each.gpu_type == gpu_type}
        sizes = {sum(each.placement) for each in own}
        seen = [
            Observation(*each[1:], step.known_s, self._sync_s(each, step, alone=len(sizes) == 1), gpu_type)
            for each, step in own.items()
        ]
        made, local = fit(seen), seen[-1].local_batch
        if sizes == {1}:
            compute_s = made.alpha_c + made.beta_c * local
            made = made._replace(alpha_r=self._lost.inside * compute_s, alpha_n=self._lost.across * compute_s)
        return made, local

    def _sync_s(self, configuration: Configuration, step: MeasuredStep, *, alone: bool) -> float | None:
        """What synchronising takes; of a model that has one size alone, as much as others lose."""
        gpus = sum(configuration.placement)
        if step.sync_s is not None or not alone or gpus == 1:
            return step.sync_s
        lost = self._lost[len(configuration.placement) > 1]
        return step.known_s * lost / (configuration.accum + lost)
