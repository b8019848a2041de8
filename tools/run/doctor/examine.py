"""``pliant doctor``: is everything in place that runs need?

A check is a function of a :class:`~pliant.tools.run.doctor.site.Site` that yields its results; :data:`CHECKS`
lists all of them, by area, in the order of the page. Nothing is changed, and an error in a check is a problem
of its area alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.schemas.text import (
    iso_time,
    one_line,
    wrapped,
)
from pliant.tools.run.doctor.folder import accounts, clock, folder, service
from pliant.tools.run.doctor.host import cluster_file, containers, gpus, isolation, versions
from pliant.tools.run.doctor.site import Began, Check, Site, Verdict, first_line, look_around, problem
from pliant.tools.run.doctor.slurm import slurm

SCHEMA: Final = "pliant.doctor/1"


def examine(state: Path | None = None, cluster: str | None = None, backend: str | None = None) -> list[Check]:
    """Look at everything. Nothing is changed, and nothing that is broken ends it.

    :param state: a state directory, which need not exist.
    :param cluster: a cluster file; None for that of the state directory.
    :param backend: None for that of the cluster.
    """
    began = Began()
    site = replace(look_around(state, cluster, backend), began=began)
    return [result for area, check in CHECKS.items() for result in guarded(area, check, site)]


def guarded(area: str, check: Callable[[Site], Iterable[Check]], site: Site) -> Iterator[Check]:
    """What a check finds. An error ends the check and is a problem of its area."""
    try:
        for result in check(site):
            yield replace(result, area=area)
    except PliantError as error:
        yield replace(problem(first_line(error), "mend that, and look again"), area=area)
    except Exception as error:  # noqa: BLE001 - what is broken is what a doctor is asked about
        text = f"cannot be looked at: {type(error).__name__}: {first_line(error)}"
        yield replace(problem(text, "mend that, and look again"), area=area)


def worst(checks: Iterable[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return "problem" if "problem" in verdicts else "warning" if "warning" in verdicts else "ok"


def page(checks: Sequence[Check], width: int | None) -> str:
    return "".join(f"{line}\n" for check in checks for line in _lines(check, width))


def document(checks: Sequence[Check], now_s: float) -> str:
    listed = [
        {"area": each.area, "verdict": each.verdict, "text": each.text, "advice": each.advice or None}
        for each in checks
    ]
    content = {"schema": SCHEMA, "time": iso_time(now_s), "verdict": worst(checks), "checks": listed}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _lines(check: Check, width: int | None) -> list[str]:
    head = f"{check.verdict:9}{check.area:10}"
    text = one_line(f"{check.text}; {check.advice}" if check.advice else check.text)
    if width is None or width <= 2 * len(head):
        return [head + text]
    first, *rest = wrapped(text, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]


CHECKS: Final[Mapping[str, Callable[[Site], Iterable[Check]]]] = {
    "versions": versions,
    "cluster": cluster_file,
    "folder": folder,
    "accounts": accounts,
    "container": containers,
    "clock": clock,
    "GPUs": gpus,
    "isolation": isolation,
    "Slurm": slurm,
    "service": service,
}
