"""Our rows in the worlds of other experiments beside the replays that those hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Final

from experiments.shadow_price.elsewhere import theirs
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS
from pliant.tools.report.rendering.text import markdown_table

_ARES: Final = {
    "philly": "Philly",
    "saturn": "Helios (Saturn)",
    "newtrace": "newTrace",
    "testbed": "testbed, 16 GPUs",
}
_ONES: Final = {
    "ones": "main-s?-ones*",
    "drl": "main-s?-drl*",
    "tiresias": "main-s?-tiresias*",
    "optimus": "main-s?-optimus*",
}
_ALSO: Final = {name: f"also-s?-{name}" for name in ("pollux", "ares", "elastic-dp", "fair-share")}
_ELASTIC: Final = {name: f"mixed-40-t?-{name}-modequeue*" for name in ("elastic-dp", "random-bs")}
_VARIANTS: Final = {
    "in-place": "in place",
    "at-change": "in place, at every change",
    "others": "by checkpoint",
}
_COLUMNS: Final = (
    ("mean JCT, s", "mean_jct_s", 1.0, 0),
    ("worst FTF", "worst_ftf", 1.0, 1),
    ("makespan, h", "makespan_s", 1 / 3600, 1),
    ("finished", "jobs_finished", 1.0, 0),
)
_SHOWN: Final = 3
_SHOWN_ALONE: Final = 5
"""Of the others, the best: their own pages have all. More where a table has one world alone."""
Figures = Mapping[str, float]


def beside(rows: Rows) -> dict[str, str]:
    """A table for each of the other worlds in which ours was replayed, by the experiment's name."""
    return {name: (_by_world if name == "ares" else _table)(found) for name, found in _worlds(rows)}


def rivals_elsewhere(rows: Rows) -> Iterator[tuple[str, str, float]]:
    """(world, policy, part) of the best other policy: by how much it is ahead of the best of ours."""
    for name, found in _worlds(rows):
        for world in dict.fromkeys(world for world, _ in found):
            jcts = {policy: each["mean_jct_s"] for (where, policy), each in found.items() if where == world}
            ours = {policy: jct for policy, jct in jcts.items() if policy.startswith(OURS)}
            others = {policy: jct for policy, jct in jcts.items() if policy not in ours}
            if ours and others and name != "oasis":
                best = min(others, key=lambda policy: others[policy])
                yield f"{name}, {world}", best, 1 - others[best] / min(ours.values())


def _worlds(rows: Rows) -> Iterator[tuple[str, dict[tuple[str, str], Figures]]]:
    if rows.of("ares"):
        yield "ares", _ares(rows)
    if rows.of("ones"):
        ours = {
            ("main", f"{OURS}, {words}"): _means(rows.of("ones", variant=variant))
            for variant, words in _VARIANTS.items()
            if rows.of("ones", variant=variant)
        }
        yield (
            "ones",
            ours | {("main", name): _recorded(rows, "ones", text) for name, text in (_ONES | _ALSO).items()},
        )
    if rows.of("elastic-scaling"):
        ours = {("mixed, 40 GPUs", OURS): _means(rows.of("elastic-scaling", policy=OURS))}
        yield (
            "elastic-scaling",
            ours
            | {
                ("mixed, 40 GPUs", name): _recorded(rows, "elastic-scaling", text)
                for name, text in _ELASTIC.items()
            },
        )
    if rows.of("oasis"):
        names = dict.fromkeys(row["policy"] for row in rows.of("oasis"))
        yield "oasis", {("mix", name): _means(rows.of("oasis", policy=name)) for name in names}


def _ares(rows: Rows) -> dict[tuple[str, str], Figures]:
    """Means over the samples that ours has, too."""
    found: dict[tuple[str, str], Figures] = {}
    for family, words in _ARES.items():
        ours = rows.of("ares", variant=family)
        samples = {row["trace"] for row in ours}
        by_policy: dict[str, list[Any]] = {OURS: ours} if ours else {}
        for replay, row in theirs("ares").items():
            parts = replay.split("-", 2)
            if "-".join(parts[:2]) in samples:
                by_policy.setdefault(parts[2], []).append(row)
        found |= {(words, policy): _means(each) for policy, each in by_policy.items()}
    return found


def _by_world(found: Mapping[tuple[str, str], Figures]) -> str:
    """Our mean JCT and those of the best others by world, and what else a world says of ours."""
    worlds = list(dict.fromkeys(world for world, _ in found))
    names = dict.fromkeys(policy for _, policy in found)
    others = [policy for policy in names if policy != OURS]
    body = [(f"`{OURS}`", *(f"{found[world, OURS]['mean_jct_s']:,.0f}" for world in worlds))]
    ranked = [sorted(others, key=lambda each, at=world: found[at, each]["mean_jct_s"]) for world in worlds]
    for place in range(_SHOWN):
        cells = [
            f"{found[world, each[place]]['mean_jct_s']:,.0f} (`{each[place]}`)"
            for world, each in zip(worlds, ranked, strict=True)
        ]
        body.append((f"other {place + 1}", *cells))
    for words, field, scale, digits in _COLUMNS[1:3]:
        cells = []
        for world in worlds:
            ours = found[world, OURS][field]
            least = min(found[world, policy][field] for policy in others)
            cells.append(f"{scale * ours:.{digits}f} ({scale * least:.{digits}f})")
        body.append((f"{words}: ours (least other)", *cells))
    return markdown_table(("mean JCT, s", *worlds), body)


def _table(found: Mapping[tuple[str, str], Figures]) -> str:
    """Figures of ours and of the best others; finished jobs and utility where these tell policies apart."""
    ranked = sorted(found.items(), key=lambda pair: pair[1]["mean_jct_s"])
    others = [policy for (_, policy), _ in ranked if not policy.startswith(OURS)][:_SHOWN_ALONE]
    finished = {each.get("jobs_finished") for each in found.values()}
    shown = [column for column in _COLUMNS if column[1] != "jobs_finished" or len(finished) > 1]
    if any("total_utility" in each for each in found.values()):
        shown.append(("total utility", "total_utility", 1.0, 0))
    body = []
    for (_, policy), each in ranked:
        if policy not in others and not policy.startswith(OURS):
            continue
        cells = (
            f"{scale * each[field]:,.{digits}f}" if field in each else "" for _, field, scale, digits in shown
        )
        body.append((f"`{policy}`" if "," not in policy else policy, *cells))
    return markdown_table(("policy", *(title for title, *_ in shown)), body)


def _recorded(rows: Rows, name: str, pattern: str) -> Figures:
    """Means over the replays of another experiment, of the seeds that ours has."""
    seeds = "".join(sorted({row["trace"][-1] for row in rows.of(name, policy=OURS)}))
    wanted = pattern.replace("?", f"[{seeds}]")
    return _means([each for replay, each in theirs(name).items() if fnmatchcase(replay, wanted)])


def _means(rows: list[Any]) -> Figures:
    fields = ("mean_jct_s", "unfair_fraction", "worst_ftf", "makespan_s", "jobs_finished", "total_utility")
    return {
        field: fmean(values)
        for field in fields
        if (values := [row[field] for row in rows if row.get(field) is not None])
    }
