"""The detail of ``submit`` events: the job, its scaling curve (made once per kind of job), its work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from pliant.schemas.profile import ProfileRow
from pliant.tools.replay.engine.log import Detail, compact_json
from pliant.tools.schedule.demand import demand_gpu_s
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.speeds import Speeds
from pliant.tools.schedule.submit_detail import submit_detail

_NONE: Final = frozenset[int]()


class Submissions:
    """Describes the jobs of one trace. The text is made when it is written and not kept."""

    def __init__(self, speeds: Speeds, measured_sizes: Mapping[str, frozenset[int]]) -> None:
        self._speeds = speeds
        self._measured_sizes = measured_sizes
        self._cluster_gpus = sum(speeds.gpu_types.values())
        self._curves: dict[tuple[object, ...], str] = {}

    def describe(self, job: JobState) -> Detail:
        """The detail of the job's ``submit`` event."""
        return partial(self._text, job)

    def _text(self, job: JobState) -> str:
        spec = job.spec.model_dump_json(by_alias=True, exclude_defaults=True)
        work = f',"samples":{compact_json(job.total_samples)}' if job.total_samples else ""
        if demand := demand_gpu_s(job, self._speeds):
            work += f',"demand_gpu_s":{compact_json(demand)}'
        return f'{{"job":{spec},"curve":{self._curve(job)}{work}}}'

    def _curve(self, job: JobState) -> str:
        spec = job.spec
        key = (
            spec.model,
            job.reference_batch,
            spec.batch.size is None,
            spec.batch.per_gpu_max,
            spec.gpus.requested,
            spec.max_gpus(self._cluster_gpus),
        )
        if key not in self._curves:
            sizes = self._measured_sizes.get(spec.model, _NONE)
            self._curves[key] = compact_json(submit_detail(job, self._speeds, sizes)["curve"])
        return self._curves[key]


def measured_sizes(rows: Iterable[ProfileRow]) -> dict[str, frozenset[int]]:
    """GPU counts that a profile measured training at, by model."""
    found: dict[str, set[int]] = {}
    for model, gpus in {(row.model, row.gpus) for row in rows if row.kind == "train"}:
        found.setdefault(model, set()).add(gpus)
    return {model: frozenset(sizes) for model, sizes in found.items()}
