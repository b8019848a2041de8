"""``pliant doctor``: is everything there that runs need?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.cli.console import note, width_for
from pliant.cli.grammar import FORM, TO_FILE, Form, form_and_file, out_or_file
from pliant.schemas.errors import ServiceMissingError


def doctor(
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="State directory; it need not be there.", show_default="none"),
    ] = None,
    backend: Annotated[
        Literal["local", "slurm", "slurm-jobs"] | None,
        typer.Option("--backend", help="Where jobs are to run.", show_default="as the cluster says"),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="The cluster (JSON).", show_default="that of the state directory"),
    ] = None,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Check that everything is there that runs need, and say what to do where it is not.

    A line for each check: ok, warning (runs work, worse than they could) or
    problem (they fail, or lose something). It looks at versions, the state
    directory and its file system, clocks, GPUs, Slurm and the loop, and
    changes nothing. Exits with 69 if there is a problem.

    Example: pliant doctor --state live --cluster cluster.json
    """
    import time

    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.text import counted
    from pliant.tools.run.doctor.checks import document, examine, page

    form, output = form_and_file(format, output)
    check_output(output)
    checks = examine(state, cluster, backend)
    width = width_for(sys.stdout) if output == "-" else None
    out_or_file(document(checks, time.time()) if form is Form.json else page(checks, width), output)
    problems = sum(check.verdict == "problem" for check in checks)
    warnings = sum(check.verdict == "warning" for check in checks)
    text = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
    if problems:
        raise ServiceMissingError(text)
    note(text)
