"""What a replay takes for granted because its inputs do not say it."""

from __future__ import annotations

from collections.abc import Iterator

from pliant.schemas.runinfo import Assumption
from pliant.schemas.text.wording import counted, listed
from pliant.tools.replay.engine.costs import unstated_costs
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import DEFAULT_COST_S, Conditions
from pliant.tools.schedule.assumptions import (
    kinds_measured,
    nothing_to_resize,
    shares_busy,
    sharing_assumed,
    speeds_assumed,
    speeds_disturbed,
)
from pliant.tools.schedule.policy import Policy


def assumed(
    inputs: Inputs, conditions: Conditions, simulated: SimulatedCluster, policy: type[Policy]
) -> tuple[Assumption, ...]:
    """All that one replay takes for granted, each thing once however many jobs it concerns."""
    measured = None if inputs.profile is None else kinds_measured(inputs.profile.rows)
    speeds = speeds_assumed(inputs.models, inputs.cluster, measured)
    rows = () if inputs.profile is None else inputs.profile.rows
    speeds += speeds_disturbed(inputs.models, shares_busy(rows))
    sharing = sharing_assumed(inputs.cluster, policy)
    rigid = nothing_to_resize(inputs.jobs, policy)
    costs = _costs(inputs, conditions, simulated)
    return (
        *speeds,
        *sharing,
        *rigid,
        *costs,
        *_progress(inputs, conditions),
        *_unused(inputs, conditions, simulated),
    )


def _costs(inputs: Inputs, conditions: Conditions, simulated: SimulatedCluster) -> Iterator[Assumption]:
    """Costs that no option states, no profile has measured and no simulator to be compatible with has."""
    stated = {"start": simulated.start_cost, "rescale": simulated.rescale_cost}
    missing = [name for name, cost in stated.items() if cost is None]
    if missing and conditions.compat is None and unstated_costs(inputs.profile) is None:
        each = "each is" if len(missing) > 1 else "it is"
        text = (
            f"no {' or '.join(missing)} cost is stated or measured: {each} taken to be {DEFAULT_COST_S:g} s"
        )
        yield Assumption(kind="cost", text=text)


def _progress(inputs: Inputs, conditions: Conditions) -> Iterator[Assumption]:
    """Jobs that train by samples though they name a validation run; no progress model was asked for."""
    if conditions.progress is not None or conditions.compat is not None:
        return
    named = [job.convergence for job in inputs.jobs if job.convergence is not None]
    missing = [name for name in named if name not in inputs.tables]
    if missing:
        lacks = "the --convergence table lacks" if inputs.tables else "there is no --convergence table for"
        runs = listed(sorted(set(missing)))
        text = f"{lacks} {runs}: {counted(len(missing), 'job')} train by samples instead"
        yield Assumption(kind="progress", text=text)


def _unused(inputs: Inputs, conditions: Conditions, simulated: SimulatedCluster) -> Iterator[Assumption]:
    """Options that name a model which no job has."""
    costs = (simulated.start_cost, simulated.rescale_cost, simulated.resume_cost)
    named = [(cost.option, tuple(cost.by_model)) for cost in costs if cost is not None and cost.option]
    named.append(("--noise-scale", tuple(name for name in conditions.noise_scale or () if name)))
    for option, models in named:
        missing = [model for model in models if model not in inputs.models]
        if missing:
            yield Assumption(kind="unused_option", text=f"{option}: no job has the model {listed(missing)}")
