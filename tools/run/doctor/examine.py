"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from pliant.schemas.text.wording import counted
from pliant.tools.run.doctor.check import Check, Verdict, first_line, guarded, ok, problem
from pliant.tools.run.doctor.clock import Began, clock
from pliant.tools.run.doctor.folder import folder
from pliant.tools.run.doctor.gpus import gpus
from pliant.tools.run.doctor.service import service
from pliant.tools.run.doctor.site import Site, look_around
from pliant.tools.run.doctor.slurm import slurm
from pliant.tools.run.doctor.versions import versions


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
