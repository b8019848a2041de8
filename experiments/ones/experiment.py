"""The reproduction of "Online Evolutionary Batch Size Orchestration" (ONES, SC '21)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Final

from experiments.harness.spec import Distribution, Experiment, Form, Paired, Replays, Value
from experiments.ones.artifact import (
    GAINS,
    MEANS,
    length_and_waiting,
    one_way_p,
    paper_averages,
    pauses,
    rounds_p,
)
from experiments.ones.model import ASSUMPTIONS, bert_fixed, sync_s
from experiments.ones.scenes import (
    ALSO,
    MAIN,
    OTHERS,
    PAPER,
    ROWS,
    SCALED,
    SCALING,
    Scene,
    sweep_files,
)
from experiments.ones.workloads import prepare
from pliant.tools.report.rendering.text import markdown_table

NEAR: Final = 0.1
"""A gain within ten points of the published one counts as reproduced."""
TABLE_4: Final = {"drl": (5.17e-4, 0.99974), "tiresias": (4.53e-8, 0.99999), "optimus": (7.55e-10, 0.99999)}
"""p values: two-sided, and one-sided against ONES's JCTs being larger."""
FIGURE_18: Final = {16: (0.81, 0.56, 0.76), 64: (0.73, 0.54, 0.58)}
"""Average JCT of ONES / that of DRL, Tiresias and Optimus by GPUs, as section 4.4 prints them."""
_TESTED: Final = (MAIN, *(row for row in ROWS if row.name in SCALED and "ones" in row.policies))
"""The scenes that table 4 is held against."""
_COMPARED: Final = (MAIN, *ROWS)
_SCENES: Final = {scene.name: scene for scene in (MAIN, *ROWS)}
_AVERAGES: Final = ("main", "rounds", "two", "twohold", "eight", "busier")
"""Scenes whose averages of execution and queueing are shown."""
_WORDS: Final = {"ones": "ONES", "drl": "DRL", "tiresias": "Tiresias", "optimus": "Optimus"}
_FORMS: Final[tuple[Form, Form]] = ("boxes", "cdf")
_LINES: Final = {_WORDS[name]: f"main-s0-{name}*" for name in PAPER}


def _plots() -> Iterator[Distribution]:
    values: Sequence[Value] = ("jct", "execution", "waiting")
    named = zip(values, ("JCT", "Execution time", "Queueing time"), ("dg", "eh", "fi"), strict=True)
    for value, words, letters in named:
        for letter, form in zip(letters, _FORMS, strict=True):
            name = f"figure15{letter}"
            yield Distribution(name, f"Figure 15({letter}): {words}", _LINES, value, form)


def facts(replays: Replays) -> Mapping[str, Any]:
    """The model, the tables of all policies, of clusters, and of other worlds."""
    close = near(replays)
    return {
        "assumptions": [(" ".join(text.split()), _named(rows)) for text, rows in ASSUMPTIONS.items()],
        "sync_ms": 1000 * sync_s(),
        "bert_fixed": bert_fixed(),
        "policies": _policies(replays),
        "scaling": _scaling(replays),
        "wins": _wins(replays),
        "at": lambda row, gpus, name: _ratio(replays, _sizes(row)[gpus], name),
        "one_way_p": one_way_p,
        "pauses": pauses(),
        "rows": _rows(replays),
        "artifact": _artifact(),
        "averages": _averages(replays),
        "paper": paper_averages(),
        "rounds_p": rounds_p,
        "spread": max(abs(100 * (1 - MEANS["ones"][0] / MEANS[name][0] - GAINS[name])) for name in GAINS),
        "length_and_waiting": length_and_waiting(),
        "table4": TABLE_4,
        "gains": gains(replays, MAIN),
        "by_seed": _by_seed(replays),
        "published_gains": GAINS,
        "close": close,
        "ranges": _ranges(replays),
        "comparisons": len(_COMPARED),
        "unmoved": [scene.words for scene in ROWS if not _moves(replays, scene)],
        "near_main": [words for name, words in _WORDS.items() if MAIN.name in close.get(name, ())],
        "gain_of": lambda row, name: gains(replays, _SCENES[row])[name],
        "mean_of": lambda row, name, field: _mean(replays, _SCENES[row], name, field),
        "bound": _mean(replays, MAIN, "ones", "bound_jct_s"),
        "percent": lambda part: f"{100 * part:+.1f} %",
    }


def _named(rows: Sequence[str]) -> str:
    """The words of rows, those that continue another one in full."""
    return "; ".join(_SCENES[name].words for name in rows)


def gains(replays: Replays, scene: Scene, field: str = "mean_jct_s") -> dict[str, float]:
    """1 - the mean of ONES / that of each other scheduler of the paper, means over the seeds."""
    ours = _mean(replays, scene, "ones", field)
    return {name: 1 - ours / _mean(replays, scene, name, field) for name in PAPER[1:]}


def near(replays: Replays) -> dict[str, list[str]]:
    """The comparisons whose gain over a scheduler is near the published one; "all": over all three."""
    found: dict[str, list[str]] = {name: [] for name in (*PAPER[1:], "all")}
    for scene in _COMPARED:
        each = gains(replays, scene)
        close = [name for name, gain in each.items() if abs(gain - GAINS[name]) <= NEAR]
        for name in (*close, *(["all"] if len(close) == len(each) else [])):
            found[name].append(scene.name)
    return found


def _by_seed(replays: Replays) -> dict[str, tuple[float, float]]:
    """The least and the largest gain of the base over each scheduler, by seed."""
    each = [gains(replays, replace(MAIN, seeds=(seed,))) for seed in MAIN.seeds]
    return {name: (min(one[name] for one in each), max(one[name] for one in each)) for name in GAINS}


def _ranges(replays: Replays) -> dict[str, tuple[float, float]]:
    """The least and the largest gain over each scheduler."""
    found = [gains(replays, scene) for scene in _COMPARED]
    ranges = {}
    for name in PAPER[1:]:
        values = [each[name] for each in found]
        ranges[_WORDS[name]] = (min(values), max(values))
    return ranges


def _mean(replays: Replays, scene: Scene, policy: str, field: str) -> float:
    """Over the seeds of a scene; a policy that it does not touch is as in the one that it is like."""
    stem = scene.name if policy in scene.policies else scene.like
    patterns = [f"{stem}-s{seed}-{policy}*" for seed in scene.seeds]
    found = [name for name in replays for pattern in patterns if fnmatchcase(name, pattern)]
    return fmean(replays[name][field] for name in found)


def _policies(replays: Replays) -> str:
    head = ("", "JCT, s", "execution, s", "queueing, s", "within 200 s", "longest, s", "changes a job")
    body = []
    for name in (*PAPER, *OTHERS):
        scene = MAIN if name in PAPER else ALSO
        values = [_mean(replays, scene, name, field) for field in _FIELDS]
        jct, execution, waiting, short, longest, changes = values
        cells = (f"{jct:.0f}", f"{execution:.0f}", f"{waiting:.0f}", f"{short:.0%}", f"{longest:,.0f}")
        body.append((f"`{name}`", *cells, f"{changes:.1f}"))
    return markdown_table(head, body)


_FIELDS: Final = (
    "mean_jct_s",
    "mean_execution_s",
    "mean_waiting_s",
    "part_within_200_s",
    "max_jct_s",
    "rescales_per_job",
)


def _sizes(row: str) -> dict[int, Scene]:
    """The scenes of figure 17 under a row, or under none, by GPUs."""
    scenes = (*SCALED[row], _SCENES[row]) if row in SCALED else (*SCALING, MAIN)
    return {scene.gpus: scene for scene in scenes}


def _scaling(replays: Replays) -> str:
    """Figures 17 and 18 in the base and under rows: ratios of ONES to the others, by size."""
    sizes = sorted(_sizes(MAIN.name))
    body = []
    for row in (MAIN.name, *SCALED):
        scenes = _sizes(row)
        cells = (
            ", ".join(f"{_ratio(replays, scenes[gpus], name):.2f}" for name in PAPER[1:]) for gpus in sizes
        )
        body.append((_SCENES[row].words or "base", *cells))
    published = (", ".join(f"{each:.2f}" for each in FIGURE_18.get(gpus, ())) for gpus in sizes)
    body.append(("published", *published))
    head = (f"ONES / {', '.join(_WORDS[name] for name in PAPER[1:])}", *(f"{gpus} GPUs" for gpus in sizes))
    return markdown_table(head, body)


def _ratio(replays: Replays, scene: Scene, policy: str) -> float:
    """The average JCT of ONES / that of another scheduler."""
    return 1 - gains(replays, scene)[policy]


def _wins(replays: Replays) -> dict[str, dict[str, str]]:
    """By row and scheduler, the sizes of figure 17 at which ONES has the lower average JCT, in words."""
    found: dict[str, dict[str, str]] = {}
    for row in (MAIN.name, *SCALED):
        sizes = sorted(_sizes(row).items())
        found[row] = {
            name: " and ".join(
                ", ".join(str(gpus) for gpus, scene in sizes if _ratio(replays, scene, name) < 1).rsplit(
                    ", ", 1
                )
            )
            or "none"
            for name in PAPER[1:]
        }
    return found


def _rows(replays: Replays) -> str:
    head = ("differs from the base", "ONES, s", *(f"gain over {_WORDS[name]}, %" for name in PAPER[1:]))
    body = [("nothing: three seeds", *_compared(replays, MAIN))]
    body += [(_row_words(scene), *_compared(replays, scene)) for scene in ROWS if _moves(replays, scene)]
    body.append(("published", "245", *(f"{100 * GAINS[name]:+.1f}" for name in PAPER[1:])))
    return markdown_table(head, body)


def _moves(replays: Replays, scene: Scene) -> bool:
    """Whether a gain differs by more than ten points from that of the base."""
    base, here = gains(replays, MAIN), gains(replays, scene)
    return any(abs(here[name] - base[name]) > NEAR for name in here)


def _row_words(scene: Scene) -> str:
    """With the number of seeds where that is not one."""
    return scene.words if len(scene.seeds) == 1 else f"{scene.words}: three seeds"


def _averages(replays: Replays) -> str:
    """Execution and queueing of each scheduler as published, and in scenes that come close to some of it."""
    head = ("execution + queueing, s", *(_WORDS[name] for name in PAPER))
    body = [("published", *(_sum(*paper_averages()[name]) for name in PAPER))]
    for scene in (_SCENES[name] for name in _AVERAGES):
        parts = [
            (_mean(replays, scene, name, "mean_execution_s"), _mean(replays, scene, name, "mean_waiting_s"))
            for name in PAPER
        ]
        body.append((scene.words or "base", *(_sum(*each) for each in parts)))
    return markdown_table(head, body)


def _sum(execution_s: float, waiting_s: float) -> str:
    return f"{execution_s:,.0f} + {waiting_s:,.0f}"


def _compared(replays: Replays, scene: Scene) -> tuple[str, ...]:
    ours = f"{_mean(replays, scene, 'ones', 'mean_jct_s'):,.0f}"
    return (ours, *(f"{100 * gain:+.1f}" for gain in gains(replays, scene).values()))


def _artifact() -> str:
    head = ("", "JCT, s", "execution, s", "queueing, s", "gain of ONES")
    ours = MEANS["ones"][0]
    body = [
        (
            _WORDS[name],
            *(f"{value:.0f}" for value in values),
            "" if name == "ones" else f"{100 * (1 - ours / values[0]):.1f} %",
        )
        for name, values in MEANS.items()
    ]
    return markdown_table(head, body)


def _tests() -> Iterator[Paired]:
    """Of the base and of the rows that figure 17 has; what a row does not touch is as in the base."""
    for scene in _TESTED:
        stems = {name: scene.name if name in scene.policies else scene.like for name in PAPER}
        for name in PAPER[1:]:
            words = f"ONES against {_WORDS[name]}" + (f": {scene.words}" if scene.words else "")
            yield Paired(words, f"{stems['ones']}-s?-ones*", f"{stems[name]}-s?-{name}*")


EXPERIMENT: Final = Experiment(
    name="ones",
    title="Online evolutionary batch sizes",
    paper="Bian et al., Online Evolutionary Batch Size Orchestration for Scheduling Deep Learning Workloads "
    "in GPU Clusters, SC 2021",
    sweeps=sweep_files(),
    plots=tuple(_plots()),
    prepare=prepare,
    facts=facts,
    tests=tuple(_tests()),
    dropped=0.05,
)
