"""Figure 6: short jobs under Ares on CPU slots, held against their own replay.

``python -m experiments.ares.live --record`` keeps the comparison for the page. The paper's simulator comes
within 5 % of its testbed in average JCT, unfair fraction and worst FTF. Slots whose cores have other work
make all three meaningless: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments.elastic_scaling.live import live_jobs
from experiments.harness.live import Compared, run_and_replay
from pliant.schemas.errors import JobsFailedError, PliantError
from pliant.schemas.file_io.files import atomic_write
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


def main(arguments: Sequence[str]) -> int:
    """Exit code 5 where a step failed or a figure is out of its limit."""
    parser = argparse.ArgumentParser("python -m experiments.ares.live", description=__doc__)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--slots", type=int, default=max(2, min(4, len(os.sched_getaffinity(0)))))
    parser.add_argument("--out", type=Path, default=Path("build/experiments/ares-live"))
    parser.add_argument("--record", action="store_true", help=f"keep the comparison in {RECORD.name}")
    wanted = parser.parse_args(arguments)
    jobs = (job.model_copy(update={"elastic": "size"}) for job in live_jobs(wanted.jobs, wanted.slots))
    try:
        asked = ("--policy", "ares")
        compared = compare(*run_and_replay(wanted.out, jobs, wanted.slots, asked, steps=_STEPS))
    except PliantError as error:
        print(f"live: {error}", file=sys.stderr)
        return error.exit_code
    if wanted.record:
        rows = [each.row() for each in compared]
        document = {"jobs": wanted.jobs, "slots": wanted.slots, "figures": rows}
        atomic_write(RECORD, (json.dumps(document, indent=1) + "\n").encode())
    for each in compared:
        print(each.line())
    return 0 if all(each.holds for each in compared) else JobsFailedError.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
