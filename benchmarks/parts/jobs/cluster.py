"""A cluster of CPU slots, with what people type in a shell before one run takes up their jobs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pliant.tools.run.statedir.directory import StateDir

SLOTS: Final = 4
_MOST_S: Final = 600.0


class SmallCluster:
    """One node, whose state directory is in a folder; each person has a folder and a home beside it.

    :param variables: what is set in every shell besides what finds ``pliant`` and Python.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.folder, self.state = folder, folder / "state"
        self._bin = folder / "bin"
        self._bin.mkdir()
        node = {"name": "here", "gpus": SLOTS}
        (folder / "cluster.json").write_text(json.dumps({"slots": "cpu", "nodes": [node]}))
        self._program("pliant", "-m", "pliant")
        self._program("python")
        path = f"{self._bin}:{os.environ['PATH']}"
        own = {"PATH": path, "PLIANT_STATE": str(self.state), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        self._variables = own | dict(variables or {})

    def _program(self, name: str, *words: str) -> None:
        path = self._bin / name
        passed = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
        assigned = [f"{key}={shlex.quote(value)}" for key, value in passed.items()]
        line = shlex.join([sys.executable, *words])
        path.write_text(f'#!/bin/sh\n{" ".join([*assigned, "exec", line])} "$@"\n')
        path.chmod(0o755)

    def shell(self, person: str, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """What a person types, in bash."""
        home = self.folder / "homes" / person
        home.mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            ["bash", "-e", "-c", text, "bash", person],
            cwd=home,
            env={**self._variables, "HOME": str(home), "USER": person, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MOST_S,
            check=False,
        )

    def run(self, **variables: str) -> str:
        """Run until all jobs have ended. Returns what the run says.

        :param variables: set where the run is started.
        """
        follow = 'pliant run --follow --policy fifo --cluster "$CLUSTER" & trap "kill $!; wait $!" EXIT'
        wait = 'pliant wait "*" > waited 2>&1 || true'
        done = self.shell(
            "operator", f"{follow}\n{wait}", CLUSTER=str(self.folder / "cluster.json"), **variables
        )
        return done.stderr

    def job(self, job: str) -> dict[str, Any]:
        """What ``status -f json`` says of a job; empty if there is none."""
        done = self.shell("operator", f"pliant status -f json {shlex.quote(job)}")
        return dict(json.loads(done.stdout)["jobs"][0]) if done.returncode == 0 else {}

    def output(self, job: str) -> str:
        """All that a job has printed."""
        logs = StateDir(self.state).job(job).path.glob("attempts/*/logs/**/*")
        return "".join(path.read_text(errors="replace") for path in sorted(logs) if path.is_file())
