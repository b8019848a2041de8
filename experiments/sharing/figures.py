"""What the replays say, and the figure of what each team lacked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from experiments.harness.spec import Findings
from experiments.sharing.workload import WAYS
from pliant.tools.report.figures.style import area_colour, axes, legend
from pliant.tools.report.rendering.text import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOUR_S: Final = 3600.0
MAIN: Final = "ares"
"""The policy of the figure and of the sentences."""
LENT: Final = ("static", "preempt", "shrink")
_SHORT: Final = {"static": "fixed partitions", "preempt": "lent, jobs stopped", "shrink": "lent, jobs shrink"}


def facts(found: Findings) -> Mapping[str, Any]:
    """The table, and how the ways compare."""
    replays = found["replays"]
    policies = list(dict.fromkeys(name.rpartition("-")[0] for name in replays if name.endswith("-static")))
    rows = [
        [
            f"{policy}: {words}",
            f"{each['mean_jct_s'] / HOUR_S:.2f}",
            f"{each['p99_jct_s'] / HOUR_S:.0f}",
            f"{100 * each['utilization']:.0f}",
            f"{each['deficit_gpu_hours']:.1f}" if way in LENT else "–",
            f"{each['lost_gpu_hours']:.1f}",
            f"{each['preemptions_per_job']:.2f}",
        ]
        for policy in policies
        for way, words in WAYS.items()
        for each in [replays[f"{policy}-{way}"]]
    ]
    head = [
        *("", "JCT, mean, h", "JCT, p99, h", "GPUs held, %", "GPU-h lacked", "GPU-h lost", "preemptions"),
    ]
    main = {way: replays[f"{MAIN}-{way}"] for way in WAYS}
    return {"table": markdown_table(head, rows), "main": main, "main_policy": MAIN, "policies": policies}


def figures(found: Findings) -> Mapping[str, Figure]:
    """GPU-hours that each team lacked, by the way in which GPUs were shared."""
    teams = sorted(found["partitions"], key=lambda team: (-found["partitions"][team], team))
    figure, plot = axes(
        f"What teams lacked of their entitlement while jobs waited, under {MAIN}",
        "Virtual cluster, GPUs of its partition",
        "GPU-hours",
    )
    wide = 0.8 / len(LENT)
    for index, way in enumerate(LENT):
        shown = found["replays"][f"{MAIN}-{way}"]["teams"]
        values = [(shown.get(team) or {}).get("deficit_gpu_hours") or 0.0 for team in teams]
        at = [place + (index - 1) * wide for place in range(len(teams))]
        plot.bar(at, values, wide, label=_SHORT[way], color=area_colour(index))
    plot.set_xticks(range(len(teams)), [f"{team}\n{found['partitions'][team]}" for team in teams], fontsize=7)
    legend(figure, plot, columns=3)
    return {"deficit": figure}
