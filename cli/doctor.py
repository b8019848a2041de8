"""``pliant doctor``: is everything there that runs need?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pliant.cli.config import FILE, STATE_HELP, STATE_VARIABLE, Config, configuration
from pliant.cli.console import note, width_for
from pliant.cli.option_types import FORM, TO_FILE, Form, out_or_file
from pliant.schemas.errors import PliantError, ServiceMissingError

if TYPE_CHECKING:
    from pliant.tools.run.doctor.site import Check

_AREA: Final = "settings"


def doctor(
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="State directory; it need not be there.", show_default=STATE_HELP),
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
    """Check what runs need, and say how to fix what is missing.

    A line for each check: ok, warning (runs work, worse than they could) or
    problem (they fail, or lose something; exit code 69). It also says where each
    setting comes from, and changes nothing.

    Example: pliant doctor --state live --cluster cluster.json
    """
    import time

    from pliant.schemas.file_io.files import check_output
    from pliant.schemas.text import counted
    from pliant.tools.run.doctor.examine import document, examine, page
    from pliant.tools.run.statedir.directory import StateDir

    check_output(output)
    settings, config = _settings()
    if state is None and config.state is not None:
        state = Path(config.state)
    if cluster is None and not (state is not None and StateDir(state).cluster.exists()):
        cluster = config.cluster
    checks = [*examine(state, cluster, backend), *settings]
    width = width_for(sys.stdout) if output == "-" else None
    out_or_file(document(checks, time.time()) if format is Form.json else page(checks, width), output)
    problems = sum(check.verdict == "problem" for check in checks)
    warnings = sum(check.verdict == "warning" for check in checks)
    text = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
    if problems:
        raise ServiceMissingError(text)
    note(text)


def _settings() -> tuple[list[Check], Config]:
    """What pliant.toml and the environment say, or why that cannot be read."""
    from pliant.tools.run.doctor.site import Check

    try:
        config = configuration()
    except PliantError as error:
        return [Check("problem", str(error), "mend the file", _AREA)], Config()
    lines = list(config.lines()) or [f"no {FILE} here or above, and no {STATE_VARIABLE}"]
    return [Check("ok", line, area=_AREA) for line in lines], config
