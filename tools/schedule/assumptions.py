"""What is taken for granted, such as speeds that the profile lacks; and how to refuse it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import GpuTimeWork, Job
from pliant.schemas.profile import ProfileRow
from pliant.schemas.runinfo import Assumption
from pliant.schemas.text import counted, listed
from pliant.tools.profile.throughput import BUSY, stand_in
from pliant.tools.schedule.policy import Policy

Kind = tuple[str, str]
BusyShare = tuple[str, float | None]


def kinds_measured(rows: Iterable[ProfileRow]) -> Iterator[Kind]:
    return ((row.model, row.gpu_type) for row in rows if row.kind == "train")


def speeds_assumed(
    models: Collection[str], cluster: Cluster, measured: Iterable[Kind] | None
) -> list[Assumption]:
    """One assumption where there is no profile, else one for each GPU type that stands in for another.

    :param measured: model and GPU type of each training row; None: there is no profile.
    """
    if measured is None:
        return [_without_profile(cluster)]
    rows: dict[str, dict[str, int]] = {}
    for (model, gpu_type), count in Counter(measured).items():
        rows.setdefault(model, {})[gpu_type] = count
    found: dict[tuple[str, str], list[str]] = {}
    for gpu_type in sorted({node.gpu_type for node in cluster.nodes if node.gpus}):
        for model in sorted(set(models) & rows.keys()):
            known = stand_in(rows[model], gpu_type)
            if known != gpu_type:
                found.setdefault((gpu_type, known), []).append(model)
    return [_of_another_type(*types, names, cluster.speeds) for types, names in found.items()]


def shares_busy(rows: Iterable[ProfileRow]) -> Iterator[BusyShare]:
    return ((row.model, row.busy_share) for row in rows if row.kind == "train")


def speeds_disturbed(models: Collection[str], rows: Iterable[BusyShare]) -> list[Assumption]:
    """An assumption if rows of these models were measured while the machine was busy."""
    shares = [(model, share or 0.0) for model, share in rows if model in models]
    busy = [(model, share) for model, share in shares if share > BUSY]
    if not busy:
        return []
    names = listed(sorted({model for model, _ in busy}))
    most = max(share for _, share in busy)
    which = f"{len(busy)} of {counted(len(shares), 'row')} of the profile ({names}) are of a busy machine"
    text = (
        f"{which}: for up to {most:.0%} of the time others held cores that the workers needed; measure them "
        "again when it is quiet"
    )
    return [Assumption(kind="busy_profile", text=text)]


def order_assumed(jobs: Iterable[Job], policy: type[Policy], *, profiled: bool) -> list[Assumption]:
    """An assumption if the policy goes by the work of jobs and cannot tell how long theirs takes."""
    if profiled or policy.trusts_guesses or policy.knows not in ("work", "profile"):
        return []
    stating = [job.id for job in jobs if job.work_gap is None and not isinstance(job.work, GpuTimeWork)]
    if not stating:
        return []
    who = f'job "{stating[0]}"' if len(stating) == 1 else f"{len(stating)} jobs"
    text = f"no profile says how long the work of {who} takes: policy {policy.name!r} goes by submission"
    return [Assumption(kind="speed", text=text.replace("'", '"'))]


def nothing_to_resize(jobs: Iterable[Job], policy: type[Policy]) -> list[Assumption]:
    """An assumption if no job is elastic and the policy then amounts to another."""
    if not policy.when_rigid or not (limits := [job.elastic for job in jobs]) or set(limits) != {"none"}:
        return []
    return [Assumption(kind="rigid", text=f'no job is elastic: policy "{policy.name}" {policy.when_rigid}')]


def priorities_ignored(jobs: Iterable[Job], policy: type[Policy]) -> list[Assumption]:
    """An assumption if jobs state priorities and the policy does not look at them."""
    stating = [job.id for job in jobs if job.priority] if policy.priority_means == "" else []
    if not stating:
        return []
    who = f'job "{stating[0]}" states' if len(stating) == 1 else f"{len(stating)} jobs state"
    text = f'policy "{policy.name}" does not look at priorities: {who} one'
    return [Assumption(kind="priority", text=text)]


def sharing_assumed(cluster: Cluster, policy: type[Policy]) -> list[Assumption]:
    """An assumption if jobs may share GPUs though the profile has no such measurement."""
    together = cluster.sharing.unmeasured == "together"
    fits = together or any(node.gpu_memory for node in cluster.nodes)
    if not (policy.packs and cluster.shares_gpus and fits):
        return []
    which = "any two jobs fit one GPU" if together else "two jobs that fit one GPU share it"
    text = f"{which}; each keeps {cluster.sharing.speed:g} of its speed where the pair was not measured"
    return [Assumption(kind="sharing", text=text)]


def refuse(assumptions: Iterable[Assumption]) -> None:
    """Fail if anything is assumed; that no job is elastic does not count.

    :raises BadInputError: one line for each assumption.
    """
    lines = [f"--strict: {assumption.text}" for assumption in assumptions if assumption.kind != "rigid"]
    if lines:
        raise BadInputError("\n".join(lines))


def _without_profile(cluster: Cluster) -> Assumption:
    of_type = ", times its type's relative speed" if cluster.speeds else ""
    return Assumption(
        kind="speed", text=f"no profile: every GPU is taken to train 1 sample per second{of_type}"
    )


def _of_another_type(
    gpu_type: str, known: str, models: Sequence[str], speeds: Mapping[str, float]
) -> Assumption:
    factor = speeds.get(gpu_type, 1.0) / speeds.get(known, 1.0)
    as_fast = "as fast as" if factor == 1 else f"{factor:.3g} times as fast as"
    what = f'the profile lacks GPU type "{gpu_type}" for {listed(models)}'
    return Assumption(kind="gpu_type", text=f'{what}: it is taken to be {as_fast} "{known}"')
