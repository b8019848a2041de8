"""``pliant run`` as a process of its own, with scripts that need no torch: ``python -m … ARGUMENTS``.

Before them, ``--dies STEP before|after COUNT``: a function, as ``module:name`` or ``module:Class.name``, and
at which of its calls the process kills itself as with ``kill -9``.
"""

import importlib
import os
import signal
import sys
from typing import Any

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.protocol import Backend
from pliant.tools.run.service import run as runner
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.scripts import PlainBackend, PlainSlurmBackend


def plain(name: str, nodes: Cluster, dirs: StateDir) -> Backend:
    return PlainSlurmBackend(nodes, dirs) if name == "slurm" else PlainBackend(nodes, dirs.jobs)


def arm(step: str, moment: str, count: int) -> None:
    module, _, path = step.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    original, calls = getattr(holder, name), []

    def deadly(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if moment == "before" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if moment == "after" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, deadly)


def main() -> None:
    import typer

    from pliant.cli.common import command
    from pliant.cli.job import log
    from pliant.cli.orders import cancel
    from pliant.cli.run import run
    from pliant.cli.schedule import schedule
    from pliant.cli.serve import serve
    from pliant.cli.status import status
    from pliant.cli.submit import submit

    if sys.argv[1:2] == ["--dies"]:
        step, moment, count = sys.argv[2:5]
        arm(step, moment, int(count))
        del sys.argv[1:5]
    runner.open_backend = plain
    app = typer.Typer(pretty_exceptions_enable=False)
    for function in (run, serve, schedule, submit, cancel, status, log):
        app.command()(command(function))
    app()


if __name__ == "__main__":
    sys.exit(main())
