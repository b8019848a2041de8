"""All checks, in the order in which they are shown.

What was found, for people and for programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.text import counted, iso_time, one_line, wrapped
from pliant.tools.run.doctor.check import Check, Site, Verdict, first_line, guarded, look_around, ok, problem
from pliant.tools.run.doctor.host import Began, clock, folder, gpus, versions
from pliant.tools.run.doctor.slurm import service, slurm


def examine(state: Path | None = None, cluster: str | None = None, backend: str | None = None) -> list[Check]:
    """Look at everything; nothing is changed, and nothing that is broken ends it.

    :param state: a state directory; it need not be there.
    :param cluster: a cluster file; None: that of the state directory.
    :param backend: None: what the cluster says.
    """
    began = Began()
    site = look_around(state, cluster, backend)
    looks: tuple[tuple[str, Callable[[], Iterable[Check]]], ...] = (
        ("versions", versions),
        ("cluster", partial(_cluster, site)),
        ("folder", partial(folder, site)),
        ("clock", partial(clock, site, began)),
        ("GPUs", partial(gpus, site)),
        ("Slurm", partial(slurm, site)),
        ("service", partial(service, site)),
    )
    return [check for area, look in looks for check in guarded(area, look)]


def worst(checks: Iterable[Check]) -> Verdict:
    """The verdict on all of them."""
    verdicts = {check.verdict for check in checks}
    return "problem" if "problem" in verdicts else "warning" if "warning" in verdicts else "ok"


def _cluster(site: Site) -> Iterable[Check]:
    if site.unread is not None:
        yield problem("cluster", first_line(site.unread), "mend the file: pliant validate lists all of it")
    elif site.cluster is not None:
        nodes = counted(sum(node.count or 1 for node in site.cluster.nodes), "node")
        slots = "GPU" if site.cluster.slots == "gpu" else "CPU slot"
        text = f"{nodes}, {counted(site.cluster.total_gpus, slots)}, backend {site.backend}"
        yield ok("cluster", text)


SCHEMA: Final = "pliant.doctor/1"
_VERDICT: Final = 9
_AREA: Final = 10


def page(checks: Sequence[Check], width: int | None) -> str:
    """A line for each check; those wider than the terminal go on in further lines.

    :param width: of the terminal; None: there is none.
    """
    return "".join(f"{line}\n" for check in checks for line in _lines(check, width))


def document(checks: Sequence[Check], now_s: float) -> str:
    """The same as JSON; ``now_s`` is UTC."""
    listed = [
        {"area": each.area, "verdict": each.verdict, "text": each.text, "advice": each.advice or None}
        for each in checks
    ]
    found = {"schema": SCHEMA, "time": iso_time(now_s), "verdict": worst(checks), "checks": listed}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _lines(check: Check, width: int | None) -> list[str]:
    head = f"{check.verdict:{_VERDICT}}{check.area:{_AREA}}"
    text = one_line(f"{check.text}; {check.advice}" if check.advice else check.text)
    if width is None or width <= 2 * len(head):
        return [head + text]
    first, *rest = wrapped(text, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]
