"""Figure 6: short jobs under Ares on CPU slots, held against their own replay.

``python -m experiments.ares.live --record`` keeps the comparison for the page. The paper's simulator comes
within 5 % of its testbed in average JCT, unfair fraction and worst FTF. Slots whose cores have other work
make all three meaningless: run it on a quiet machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from experiments.elastic_scaling.live import live_jobs
from experiments.harness.live import Compared, main, run_and_replay
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.text import markdown_table

WORDS: Final = {
    "mean_jct_s": "average JCT, s",
    "unfair_fraction": "unfair fraction",
    "worst_ftf": "worst FTF",
}
LIMIT: Final = 0.05
"""Section 5.2, "mostly"."""
RECORD: Final = Path(__file__).with_name("live.json")
"""The comparison that the page shows."""
_STEPS: Final = 40


def compare(live: RunRecord, simulated: RunRecord) -> list[Compared]:
    """The three figures of figure 6."""
    sides = [run_metrics(run).model_dump() for run in (live, simulated)]
    return [Compared(name, *(side[name] or 0.0 for side in sides), LIMIT) for name in WORDS]


def live_table() -> str:
    """The recorded comparison; empty: none was recorded."""
    if not RECORD.exists():
        return ""
    document = json.loads(RECORD.read_bytes())
    rows = [
        (
            WORDS[row["name"]],
            f"{row['live']:.2f}",
            f"{row['simulated']:.2f}",
            f"{100 * row['difference']:.1f} %",
        )
        for row in document["figures"]
    ]
    head = (f"{document['jobs']} jobs on {document['slots']} slots", "live", "replayed", "difference")
    return markdown_table(head, rows)


def run(folder: Path, count: int, slots: int) -> list[Compared]:
    """Profile, run, replay and compare, in a folder that is emptied first."""
    jobs = (job.model_copy(update={"elastic": "size"}) for job in live_jobs(count, slots))
    return compare(*run_and_replay(folder, jobs, slots, ("--policy", "ares"), steps=_STEPS))


if __name__ == "__main__":
    sys.exit(main(__doc__, RECORD, 12, run, {}))
