"""Carry out a study, and write what it found."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

from experiments.harness.page import rendered
from experiments.harness.plots import write_figures
from experiments.harness.spec import PAGES, Findings, Study, Tell
from pliant import __version__
from pliant.schemas.file_io.files import atomic_write, read_bytes


def conduct(study: Study, folder: Path, *, workers: int, tell: Tell, resume: bool = False) -> None:
    """Measure in ``folder``; results go beside the study, figures beside its page.

    :param resume: what the folder has of an earlier run is kept; else it is emptied first.
    :raises JobsFailedError: a training failed.
    """
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "experiment": study.name,
        "command": f"make experiment NAME={study.name}",
        "pliant": __version__,
        "torch": version("torch"),
    }
    found = {**head, **study.measure(folder, workers, tell)}
    atomic_write(study.results, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())


def study_page(study: Study) -> str:
    """The page; its figures are drawn beside it, from the same results."""
    found = read_findings(study)
    write_figures(study.draw(found), PAGES / study.name)
    return page_of(study, found)


def page_of(study: Study, found: Findings) -> str:
    """The page's text."""
    return rendered(study, found=found, **study.facts(found))


def read_findings(study: Study) -> Findings:
    """What is committed of a study."""
    found: Findings = json.loads(read_bytes(study.results))
    return found
