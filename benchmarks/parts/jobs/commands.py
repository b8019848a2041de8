"""Commands that people submit, typed as they type them, and what their jobs have to print."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.parts.figure import Figure
from benchmarks.parts.jobs.cluster import SmallCluster


class Command(NamedTuple):
    """What somebody types, where ``$1`` is the job's name, and what the job then prints."""

    typed: str
    expected: str
    """Printed once, as a line."""


COMMANDS: Final = {
    "bash-script": Command(
        """printf '#!/bin/bash\\necho "from bash: $1"\\n' > job.sh
        chmod +x job.sh; pliant submit job.sh --name $1 -- hello""",
        "from bash: hello",
    ),
    "heredoc": Command(
        """pliant submit --gpus 1 <<'END'
#!/bin/bash
#PLIANT --name heredoc
echo "from a heredoc"
END""",
        "from a heredoc",
    ),
}
"""By the name of the job."""


def figures(names: Collection[str] = tuple(COMMANDS)) -> list[Figure]:
    """The share of commands whose jobs end well and print what is expected, once."""
    with tempfile.TemporaryDirectory(prefix="pliant-commands-") as folder:
        cluster = SmallCluster(Path(folder).resolve())
        refused = {}
        for name in names:
            done = cluster.shell(name, COMMANDS[name].typed)
            if done.returncode:
                refused[name] = done.stderr
        cluster.run()
        problems = {name: refused.get(name) or _problem(cluster, name) for name in names}
    for name, problem in problems.items():
        if problem:
            print(f"{name}: {problem.strip()}", file=sys.stderr)
    ran = sum(not problem for problem in problems.values())
    return [Figure("commands_that_run", ran / len(problems), "of commands", 1.0, at_least=True)]


def _problem(cluster: SmallCluster, name: str) -> str:
    """What is wrong with a job that has ended; empty if nothing."""
    state, output = cluster.job(name).get("state"), cluster.output(name)
    if state == "finished" and output.splitlines().count(COMMANDS[name].expected) == 1:
        return ""
    return f"is {state}, printed {output[-500:]!r}"
