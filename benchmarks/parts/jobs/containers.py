"""An elastic job in containers, whose workers come and go while it trains: 1 → 2 → 1, again and again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import Figure, NotMeasurableError
from benchmarks.parts.jobs import container_image
from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.profile.torchrun.start import kill, strays
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from tests.tools.run.site import environment

RESIZES: Final = 10
_MOST_S: Final = 120.0
TRAIN: Final = """
import pathlib, time, torch
from pliant.tools.run import elastic

job = elastic.init(batch_size=8)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), data)
for epoch in job.epochs(100_000):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        time.sleep(0.05)
    if pathlib.Path("enough").exists():
        break
"""


class ContainedRun:
    """A state directory on two CPU slots, and the loop that serves it; jobs run in containers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        node = {"name": "here", "gpus": 2}
        (folder / "cluster.json").write_text(json.dumps({"slots": "cpu", "nodes": [node]}))
        (folder / "train.py").write_text(TRAIN)
        self._log = (folder / "run.log").open("w")
        self._loop: subprocess.Popen[str] | None = None

    def pliant(self, *words: object) -> str:
        """What a command prints.

        :raises subprocess.CalledProcessError: it fails.
        """
        command, *rest = map(str, words)
        argv = [sys.executable, "-m", "pliant", command, "--state", str(self.state), *rest]
        done = subprocess.run(
            argv, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def begin(self) -> subprocess.Popen[str]:
        """Start the loop; for a second time, after the first is gone."""
        argv = [sys.executable, "-m", "pliant", "run", "--follow", "--policy", "fair-share"]
        argv += ["--cluster", "cluster.json", "--state", str(self.state), "--stop-timeout", "10s"]
        self._loop = subprocess.Popen(
            argv, cwd=self.folder, env=environment(), text=True, stdout=subprocess.DEVNULL, stderr=self._log
        )
        return self._loop

    def end(self) -> None:
        """End the loop, and whatever trains."""
        if self._loop is not None and self._loop.poll() is None:
            self._loop.terminate()
            self._loop.wait()
        self._log.close()
        for job in (self.state / "jobs").glob("*"):
            kill(strays((ENV_JOB_DIR, str(job))))

    def submit(self, job: str, *words: object, script: str = "train.py", **env: str) -> None:
        """Submit a script or program of the image."""
        given = [f"--env={name}={value}" for name, value in {**container_image.environment(), **env}.items()]
        options = [f"--container-option={option}" for option in container_image.OPTIONS]
        options += [f"--container-mount={mount}" for mount in container_image.mounts()]
        options += [f"--container={container_image.IMAGE}", f"--python={sys.executable}"]
        self.pliant("submit", script, "--name", job, *options, *given, *words)

    def events(self, job: str, *kinds: str) -> list[Event]:
        path = self.state / "events.jsonl"
        found = read_events(path) if path.exists() else ()
        return [event for event in found if event.job == job and event.event in kinds]

    def job(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.pliant("status", name, "-f", "json"))["jobs"][0])

    def until(self, condition: Callable[[], object]) -> None:
        """:raises TimeoutError: it does not come true."""
        until_s = time.monotonic() + _MOST_S
        while not condition():
            if time.monotonic() >= until_s:
                raise TimeoutError(f"it did not happen; the run says {self._said()}")
            time.sleep(0.1)

    def _said(self) -> str:
        return (self.folder / "run.log").read_text()[-2000:]


def resizes(run: ContainedRun, job: str) -> list[int]:
    """The sizes that a job was given while it trained."""
    return [event.gpus or 0 for event in run.events(job, "grow", "shrink")]


def figures(wanted: int = RESIZES) -> list[Figure]:
    """Resizes of one attempt, of those that jobs which come and go ask for.

    :raises NotMeasurableError: podman is not here.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-containers-") as name:
        folder = Path(name).resolve()
        if why := container_image.prepare(folder / "image"):
            raise NotMeasurableError(why)
        run = ContainedRun(folder)
        try:
            run.submit("long", "--gpus", "1-2", "--batch", 8)
            run.begin()
            run.until(lambda: run.events("long", "progress"))
            for number in range(wanted // 2):
                size = 2 * number + 1
                run.submit(f"short-{number}", "--", "0.1", script="sleep")
                run.until(lambda size=size: len(resizes(run, "long")) > size)
            attempts = run.events("long", "start", "resume")
            (folder / "enough").touch()
            run.until(lambda: run.job("long")["state"] == "finished")
            sizes = resizes(run, "long")
        finally:
            run.end()
    done = sum(size in (1, 2) for size in sizes[:wanted]) if len(attempts) == 1 else 0
    return [Figure("container_resizes_ok", float(done), "resizes", float(wanted), at_least=True)]
