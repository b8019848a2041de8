"""The reproduction of "Effective Elastic Scaling of Deep Learning Workloads"."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import fmean, median
from typing import Any, Final

from experiments.elastic_scaling.live import RECORD
from experiments.elastic_scaling.live import WORDS as LIVE_WORDS
from experiments.elastic_scaling.model import ASSUMPTIONS, MOST_GPUS, Model, fitted, residuals
from experiments.elastic_scaling.workloads import prepare
from experiments.harness.published import read_numbers
from experiments.harness.spec import Experiment, Plot, Replays
from pliant.tools.report.rendering.text import markdown_table

_OURS, _BASELINE = "our method", "random-bs"
_WORLDS: Final = {
    "mixed": "as above",
    "rates": "λ the mean of the rates: 2.57 an hour",
    "loose": "jobs of the queue pass others",
    "rounds": "asked every 10 minutes",
    "literal": "arrivals at 10 λ",
    "eighth": "GPUs hold 32 and 128 samples",
    "light": "category 2: steps half as long",
    "heavy": "category 2: steps twice as long",
    "first": "category 3 scales as category 1",
    "second": "category 3 scales as category 2",
}
_TABLE_III: Final = (
    ("drop", "sjs_efficiency", 100.0, "drop_sjs", "SJS, drop, %"),
    ("drop", "drop_ratio", 100.0, "drop_dropped", "dropped, %"),
    ("drop", "mean_jct_s", 1 / 60, "drop_jct", "JCT, drop, min"),
    ("queue", "sjs_efficiency", 100.0, "queue_sjs", "SJS, queue, %"),
    ("queue", "mean_jct_s", 1 / 60, "queue_jct", "JCT, queue, min"),
)
"""Its columns: mode, field of a replay and its scale, the published numbers' name, words."""
_CLOSE: Final = 0.08


def _completed(name: str, title: str, trace: str, mode: str = "drop", baseline: str = _BASELINE) -> Plot:
    lines = {_OURS: f"{trace}-*elastic-dp-mode{mode}-*", baseline: f"{trace}-*{baseline}-mode{mode}-*"}
    return Plot(name, title, lines)


def _caption(letter: str, categories: str, baseline: str) -> Plot:
    """Figure 8 as its caption has it."""
    pair = " and ".join(categories)
    return _completed(
        f"figure8{letter}-caption",
        f"Figure 8({letter}) by its caption: categories {pair}, high arrivals",
        f"cat{categories}-high",
        baseline=baseline,
    )


def _plots() -> Iterator[Plot]:
    for letter, category in zip("abcd", range(1, 5), strict=True):
        title = f"Figure 5({letter}): category {category}, high arrivals"
        yield _completed(f"figure5{letter}", title, f"cat{category}-high")
    yield _completed("figure6a", "Figure 6(a): category 1, low arrivals", "cat1-low")
    yield _completed("figure6b", "Figure 6(b): category 1, bursty arrivals", "cat1-bursty")
    yield _completed("figure7a", "Figure 7(a): 40 GPUs, jobs dropped", "mixed-40")
    yield _completed("figure7b", "Figure 7(b): 40 GPUs, jobs queued", "mixed-40", "queue")
    yield _completed("figure8a", "Figure 8(a): category 1, high arrivals", "cat1-high", baseline="max-bs")
    yield _completed("figure8b", "Figure 8(b): category 1, high arrivals", "cat1-high", baseline="min-bs")
    yield _completed("figure8c", "Figure 8(c): category 1, low arrivals", "cat1-low", baseline="min-bs")
    yield _caption("a", "12", "max-bs")
    yield _caption("b", "34", "max-bs")
    yield _completed("figure9a", "Figure 9(a): 400 GPUs, jobs dropped", "mixed-400")
    yield _completed("figure9b", "Figure 9(b): 400 GPUs, jobs queued", "mixed-400", "queue")


def facts(replays: Replays) -> Mapping[str, Any]:
    """The model, what it was fitted to, and the tables of other worlds."""
    model = fitted()
    return {
        "assumptions": [" ".join(text.split()) for text in ASSUMPTIONS],
        "model": model,
        "residuals": _residuals(model),
        "factors": _factors(model),
        "worlds": _worlds(replays),
        "chance": _chance(replays),
        "rescales": _rescales(replays),
        "live": json.loads(RECORD.read_bytes()) if RECORD.exists() else None,
        "live_table": _live_table,
    }


def _residuals(model: Model) -> str:
    head = ("fact", "published", "model")
    body = [
        (f"{each.fact} ({each.source})", f"{each.published:g}", f"{each.fitted:.3g}")
        for each in residuals(model)
    ]
    return markdown_table(head, body)


def _factors(model: Model) -> str:
    """Best throughput scaling factor of each category by number of GPUs."""
    sizes = range(1, MOST_GPUS + 1)
    head = ("category, on GPUs", *map(str, sizes))
    body = []
    for job in model.jobs[:3]:
        batches = range(job.category.batch_min, job.category.batch_max + 1)
        best = [max(job.factor(batch, gpus, model.links) for batch in batches) for gpus in sizes]
        name = f"{job.category.number}, {job.category.kind}"
        body.append((name, *(f"{factor:.2f}" for factor in best)))
    return markdown_table(head, body)


def _worlds(replays: Replays) -> str:
    """Table III under other assumptions: means over the seeds, elastic / baseline."""
    head = ("", *(words for *_, words in _TABLE_III), f"within {_CLOSE:.0%}")
    published = {number.name: number.value for number in read_numbers(EXPERIMENT.numbers)}
    body = []
    for trace, words in _WORLDS.items():
        pairs = [_pair(replays, f"{trace}-40-*", *what) for *what, _, _ in _TABLE_III]
        near = sum(
            abs(ours / published[f"table3_{who}_{name}"] - 1) <= _CLOSE
            for pair, (*_, name, _) in zip(pairs, _TABLE_III, strict=True)
            for who, ours in zip(("elastic", "baseline"), pair, strict=True)
        )
        values = [f"{ours:.1f} / {theirs:.1f}" for ours, theirs in pairs]
        body.append((words, *values, f"{near} of {2 * len(_TABLE_III)}"))
    return markdown_table(head, body)


def _chance(replays: Replays) -> Mapping[str, float]:
    """The part of jobs that the elastic policy drops, over many traces of table III."""
    parts = sorted(replays[name]["drop_ratio"] for name in replays if fnmatchcase(name, "chance-40-*"))
    return {"traces": len(parts), "low": parts[0], "middle": median(parts), "high": parts[-1]}


def _rescales(replays: Replays) -> str:
    """What a charge for rescales in the objective changes: means over the seeds."""
    head = ("asked every", "charged", "rescales a job", "rescales an hour", "average JCT, min", "SJS, %")
    body = []
    for interval_s in (60, 600):
        for charged_s in (0, 30):
            pattern = f"rescale-40-*-interval_s{interval_s}-rescale_s{charged_s}"
            found = [replays[name] for name in replays if fnmatchcase(name, pattern)]
            means = [
                scale * fmean(each[field] for each in found)
                for field, scale in (
                    ("rescales_per_job", 1.0),
                    ("rescales_per_hour", 1.0),
                    ("mean_jct_s", 1 / 60),
                    ("sjs_efficiency", 100.0),
                )
            ]
            named = (f"{interval_s} s", f"{charged_s} s" if charged_s else "nothing")
            body.append((*named, f"{means[0]:.2f}", *(f"{mean:.1f}" for mean in means[1:])))
    return markdown_table(head, body)


def _live_table(figures: Sequence[Mapping[str, Any]]) -> str:
    """The figures of a run of real jobs beside those of its replay."""
    head = ("", "measured", "simulated", "difference", "the paper's simulator")
    body = [
        (
            LIVE_WORDS[each["name"]],
            f"{each['live']:.3g}",
            f"{each['simulated']:.3g}",
            f"{each['difference']:.1%}",
            f"within {each['limit']:.0%}",
        )
        for each in figures
    ]
    return markdown_table(head, body)


def _pair(replays: Replays, trace: str, mode: str, field: str, scale: float) -> tuple[float, float]:
    """A figure under the elastic policy and under the baseline, each the mean over the seeds."""

    def mean(policy: str) -> float:
        names = [name for name in replays if fnmatchcase(name, f"{trace}{policy}-mode{mode}-*")]
        return scale * fmean(replays[name][field] for name in names)

    return mean("elastic-dp"), mean("random-bs")


EXPERIMENT: Final = Experiment(
    name="elastic-scaling",
    title="Elastic scaling with batch sizes",
    paper="Saxena et al., Effective Elastic Scaling of Deep Learning Workloads, 2020 (arXiv 2006.13878)",
    sweeps=(
        "single.toml",
        "extremes.toml",
        "sixteen.toml",
        "mixed-40.toml",
        "queue-40.toml",
        "worlds-40.toml",
        "rounds-40.toml",
        "loose-40.toml",
        "chance-40.toml",
        "rescale-40.toml",
        "mixed-400.toml",
        "queue-400.toml",
    ),
    plots=tuple(_plots()),
    prepare=prepare,
    facts=facts,
)
