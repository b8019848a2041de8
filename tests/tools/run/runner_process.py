"""``pliant run`` as a process of its own, with scripts that need no torch: ``python -m … ARGUMENTS``."""

from __future__ import annotations

import sys

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Backend
from pliant.tools.run.service import run as runner
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.scripts import PlainBackend, PlainSlurmBackend


def plain(name: str, nodes: Cluster, dirs: StateDir) -> Backend:
    return PlainSlurmBackend(nodes, dirs) if name == "slurm" else PlainBackend(nodes, dirs.jobs)


def main() -> None:
    import typer

    from pliant.cli.common import command
    from pliant.cli.job import log
    from pliant.cli.orders import cancel
    from pliant.cli.run import run
    from pliant.cli.schedule import schedule
    from pliant.cli.status import status
    from pliant.cli.submit import submit

    runner.open_backend = plain
    app = typer.Typer(pretty_exceptions_enable=False)
    for function in (run, schedule, submit, cancel, status, log):
        app.command()(command(function))
    app()


if __name__ == "__main__":
    sys.exit(main())
