"""The command ``python -m experiments``: reproduce an experiment from the first to the last step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from experiments.harness.page import Results, page_text, results_bytes, table_text
from experiments.harness.plots import write_figures, write_plots
from experiments.harness.published import Compared, compare, read_numbers
from experiments.harness.replays import carry_out
from experiments.harness.spec import PAGES, Experiment, Study, Subject, find, names
from experiments.harness.study import conduct, study_page
from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.tools.replay.batch import usable_cores

BUILD: Final = Path("build") / "experiments"


def main(arguments: list[str]) -> int:
    """Run the named experiments, or all; the exit code of what went wrong."""
    parser = argparse.ArgumentParser("python -m experiments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; default: all")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="processes")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted study has measured")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--page", action="store_true", help="write the page again from the committed results")
    only.add_argument("--smoke", action="store_true", help="replay small inputs only, to see that it runs")
    wanted = parser.parse_args(arguments)
    try:
        for name in wanted.names or names():
            subject = find(name)
            if wanted.smoke:
                _try_out(subject, BUILD / f"{name}-smoke", workers=wanted.workers)
                continue
            if not wanted.page:
                _carry_out(subject, BUILD / name, workers=wanted.workers, resume=wanted.resume)
            _write_page(subject)
    except PliantError as error:
        _tell(str(error))
        return error.exit_code
    return 0


def _carry_out(subject: Subject, folder: Path, *, workers: int, resume: bool) -> None:
    if isinstance(subject, Study):
        conduct(subject, folder, workers=workers, tell=_tell, resume=resume)
    elif isinstance(subject, Experiment):
        reproduce(subject, folder, workers=workers)


def _try_out(subject: Subject, folder: Path, *, workers: int) -> None:
    """Replay small inputs; no results, figures or page are written.

    :raises JobsFailedError: a replay failed.
    """
    if isinstance(subject, Experiment):
        carry_out(subject, folder, smoke=True, workers=workers, tell=_tell)
    else:
        _tell(f"{subject.name} measures trainings: it has no small inputs")


def reproduce(experiment: Experiment, folder: Path, *, workers: int) -> list[Compared]:
    """Replay into ``folder``, compare, draw; results go beside the experiment, figures beside its page.

    :raises JobsFailedError: a replay failed.
    """
    outcomes = carry_out(experiment, folder, workers=workers, tell=_tell)
    compared = compare(read_numbers(experiment.numbers), outcomes)
    atomic_write(experiment.results, results_bytes(experiment, compared, outcomes))
    write_plots(experiment, outcomes, PAGES / experiment.name)
    write_figures(experiment.draw(folder, Results.read(experiment.results).replays), PAGES / experiment.name)
    for name in dict.fromkeys(each.table for each in compared):
        print(f"{name}\n{table_text([each for each in compared if each.table == name])}\n")
    return compared


def _write_page(subject: Subject) -> None:
    subject.page.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(subject.page, _page(subject).encode())
    _tell(f"written to {subject.page}")


def _page(subject: Subject) -> str:
    if isinstance(subject, Study):
        return study_page(subject)
    assert isinstance(subject, Experiment)  # noqa: S101
    return page_text(subject, Results.read(subject.results))


def _tell(text: str) -> None:
    print(f"experiments: {text}", file=sys.stderr, flush=True)
