"""What is taken for granted, such as speeds that the profile lacks; and how to refuse it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import GpuTimeWork, Job
from pliant.schemas.runinfo import Assumption
from pliant.schemas.text import counted, did_you_mean, listed
from pliant.tools.profile.throughput import APART, BUSY, stand_in
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import make_policy

if TYPE_CHECKING:
    from pliant.schemas.profile import ProfileRow

Kind = tuple[str, str]
_RESOURCES: Final = frozenset({"gpu", "cpu", "memory", "disk", "bandwidth"})
ERROR_SHOWN: Final = 0.1
"""Median error of the throughput model on held-out rows above which it is said."""


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
    models_by_types: dict[tuple[str, str], list[str]] = {}
    for gpu_type in sorted({node.gpu_type for node in cluster.nodes if node.gpus}):
        for model in sorted(set(models) & rows.keys()):
            known = stand_in(rows[model], gpu_type)
            if known != gpu_type:
                models_by_types.setdefault((gpu_type, known), []).append(model)
    return [_of_another_type(*types, names, cluster.speeds) for types, names in models_by_types.items()]


class RowTrust(NamedTuple):
    """How far a training row of a profile can be trusted; None: not known."""

    model: str
    busy_share: float | None = None
    spread: float | None = None
    model_error: float | None = None


Trusted: TypeAlias = "RowTrust | ProfileRow"
"""A training row, or what is known of one."""


def trust_of(rows: Iterable[ProfileRow]) -> Iterator[Trusted]:
    """Those that train; each says of itself what a :class:`RowTrust` says."""
    return (row for row in rows if row.kind == "train")


def trust_of_columns(columns: Mapping[str, Sequence[Any]]) -> Iterator[RowTrust]:
    """As :func:`trust_of`, from the form embedded in schedules; columns that were added may be missing."""
    missing = [None] * len(columns["model"])
    named = [columns.get(name, missing) for name in RowTrust._fields]
    for kind, *values in zip(columns["kind"], *named, strict=True):
        if kind == "train":
            yield RowTrust(*values)


def speeds_doubted(models: Collection[str], rows: Iterable[Trusted]) -> list[Assumption]:
    """Assumptions if rows of these models were measured while the machine was busy, if measurements of
    one row disagree, and if the throughput model misses rows that it has not seen.
    """
    known = [row for row in rows if row.model in models]
    return [*_disturbed(known), *_apart(known), *_missed(known)]


def _disturbed(rows: Sequence[Trusted]) -> list[Assumption]:
    busy_rows = [row for row in rows if (row.busy_share or 0.0) > BUSY]
    if not busy_rows:
        return []
    most = max(row.busy_share or 0.0 for row in busy_rows)
    text = (
        f"{_which(busy_rows, rows)} are of a busy machine: for up to {most:.0%} of the time others held "
        "cores that the workers needed; measure them again when it is quiet"
    )
    return [Assumption(kind="busy_profile", text=text)]


def _apart(rows: Sequence[Trusted]) -> list[Assumption]:
    rows_apart = [row for row in rows if (row.spread or 0.0) > APART and (row.busy_share or 0.0) <= BUSY]
    if not rows_apart:
        return []
    most = max(row.spread or 0.0 for row in rows_apart)
    text = (
        f"{_which(rows_apart, rows)} took up to {most:.0%} longer when measured another time; measure them "
        "again when the machine is quiet"
    )
    return [Assumption(kind="busy_profile", text=text)]


def _missed(rows: Sequence[Trusted]) -> list[Assumption]:
    held_out = [row for row in rows if row.model_error is not None]
    off = median(abs(row.model_error or 0.0) for row in held_out) if held_out else 0.0
    if off <= ERROR_SHOWN:
        return []
    names = listed(sorted({row.model for row in held_out}))
    text = (
        f"the throughput model is {off:.0%} off in the median of {counted(len(held_out), 'row')} of the "
        f"profile held out ({names}): expect predictions to be, too"
    )
    return [Assumption(kind="busy_profile", text=text)]


def _which(chosen: Sequence[Trusted], rows: Sequence[Trusted]) -> str:
    names = listed(sorted({row.model for row in chosen}))
    return f"{len(chosen)} of {counted(len(rows), 'row')} of the profile ({names})"


def order_assumed(jobs: Iterable[Job], policy: type[Policy], *, profiled: bool) -> list[Assumption]:
    """An assumption if the policy goes by the work of jobs and cannot tell how long theirs takes."""
    if profiled or policy.traits.uses_guessed_speeds or policy.traits.knows not in ("work", "profile"):
        return []
    stating = [job.id for job in jobs if job.work_gap is None and not isinstance(job.work, GpuTimeWork)]
    if not stating:
        return []
    who = f'job "{stating[0]}"' if len(stating) == 1 else f"{len(stating)} jobs"
    does = policy.traits.unknown_work
    text = f"no profile says how long the work of {who} takes: policy {policy.name!r} {does}"
    return [Assumption(kind="speed", text=text.replace("'", '"'))]


def nothing_to_resize(jobs: Iterable[Job], policy: type[Policy]) -> list[Assumption]:
    """An assumption if no job is elastic and the policy then amounts to another."""
    if (
        not policy.traits.when_rigid
        or not (limits := [job.elastic for job in jobs])
        or set(limits) != {"none"}
    ):
        return []
    return [
        Assumption(kind="rigid", text=f'no job is elastic: policy "{policy.name}" {policy.traits.when_rigid}')
    ]


def priorities_ignored(jobs: Iterable[Job], policy: type[Policy]) -> list[Assumption]:
    """An assumption if jobs state priorities and the policy does not look at them."""
    stating = [job.id for job in jobs if job.priority] if policy.traits.priority_means == "" else []
    return _ignored("priorities", ("states", "state"), stating, policy)


def weights_ignored(jobs: Iterable[Job], policy: type[Policy]) -> list[Assumption]:
    """An assumption if jobs have weights and the policy has no place for them."""
    stating = [job.id for job in jobs if job.weight != 1.0] if not policy.traits.weight_means else []
    return _ignored("weights", ("has", "have"), stating, policy)


def demands_unlimited(jobs: Iterable[Job], cluster: Cluster) -> list[Assumption]:
    """An assumption for each resource of a name of their own that jobs demand and no node has."""
    known = _RESOURCES.union(*(node.resources for node in cluster.nodes))
    counts = Counter(
        name for job in jobs for name in {*job.resources.worker, *job.resources.ps} if name not in known
    )
    texts = []
    for name, count in sorted(counts.items()):
        who = f"which {counted(count, 'job')} {'demands' if count == 1 else 'demand'}"
        meant = did_you_mean(name, sorted(known))
        texts.append(f"no node states {name}, {who}: it limits nothing{f'; {meant}' if meant else ''}")
    return [Assumption(kind="unused_option", text=text) for text in texts]


def levels_ignored(cluster: Cluster, name: str, parameters: Mapping[str, Any]) -> list[Assumption]:
    """An assumption if the network has levels and the policy chooses nodes without a look at them."""
    if not cluster.levels or not make_policy(name, parameters).chooses_nodes():
        return []
    text = f'policy "{name}" chooses nodes itself and ignores {listed(cluster.levels)} of the network'
    return [Assumption(kind="unused_option", text=f"{text}: only the speeds of its jobs depend on them")]


def _ignored(
    what: str, verbs: tuple[str, str], jobs: Sequence[str], policy: type[Policy]
) -> list[Assumption]:
    if not jobs:
        return []
    who = f'job "{jobs[0]}" {verbs[0]}' if len(jobs) == 1 else f"{len(jobs)} jobs {verbs[1]}"
    text = f'policy "{policy.name}" ignores {what}: {who} one'
    return [Assumption(kind="priority", text=text)]


def sharing_assumed(cluster: Cluster, policy: type[Policy]) -> list[Assumption]:
    """An assumption if jobs may share GPUs though the profile has no such measurement."""
    together = cluster.sharing.unmeasured == "together"
    fits = together or any(node.gpu_memory for node in cluster.nodes)
    if not (policy.traits.packs and cluster.shares_gpus and fits):
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
