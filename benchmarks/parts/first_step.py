"""From a decision to the first step that it leads to, without what the script itself imports.

A live loop rests; jobs of one worker are submitted one after the other, each once the one before has ended.
The script notes when its process began, when its own first line ran, when its imports were done and when its
first step was. What the kernel says of a process is its age, to a hundredth of a second: the time of day that
it derives from it may be a second off. What lies between the decision in the log and that step, less the
imports, is the figure. To the imports belongs what torch leaves until the first optimizer is made, so the
script makes its own before.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import read_events, write_cluster
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.state import read_log
from tests.builders import cluster, job

JOBS: Final = 7
ONE_SLOT: Final = cluster(1, slots="cpu")
LIMIT_S: Final = 1.0
PATIENCE_S: Final = 180.0
MARKS: Final = ("keeper", "process", "began", "imported", "ready", "first_step")
SCRIPT: Final = """
import time
marks = {"began": time.time()}
import json, os, sys
import torch
torch.manual_seed(0)
from pliant.tools.run import elastic
from pliant.tools.run.elastic.report import process_age_s
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
marks["imported"] = time.time()
marks["process"] = time.time() - process_age_s()
marks["keeper"] = time.time() - process_age_s(os.getppid())
job = elastic.init(batch_size=8)
model, optimizer, loader = job.prepare(model, optimizer, data)
marks["ready"] = time.time()
for epoch in job.epochs(1):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        marks.setdefault("first_step", time.time())
with open(sys.argv[1], "w") as file:
    json.dump(marks, file)
"""


def figures(jobs: int = JOBS) -> list[Figure]:
    """The median over some jobs; the first one, which finds cold caches, does not count."""
    found = measure(jobs + 1)[1:]
    return [Figure("decision_to_first_step_s", statistics.median(map(latency_s, found)), "s", LIMIT_S)]


def latency_s(marks: dict[str, float]) -> float:
    """What is not the script's own."""
    return marks["first_step"] - marks["decided"] - (marks["imported"] - marks["began"])


def measure(jobs: int) -> list[dict[str, float]]:
    """When each job got where, UTC seconds."""
    found = []
    with tempfile.TemporaryDirectory(prefix="pliant-first-step-") as name, following(Path(name)) as dirs:
        script = Path(name) / "train.py"
        script.write_text(SCRIPT)
        for number in range(jobs):
            marks = Path(name) / f"marks-{number}.json"
            spec = job(
                f"j{number}",
                elastic="size",
                batch=8,
                command=(str(script), str(marks)),
                workdir=name,
                work={"samples": 64.0},
            )
            submit(dirs.path, [spec], "measured", folder=Path(name), now_s=time.time())
            until(marks.exists)
            until(partial(_has_ended, dirs, spec.id))
            decided = [e.time for e in read_events(dirs.events) if (e.event, e.job) == ("start", spec.id)]
            found.append({"decided": decided[0], **json.loads(marks.read_text())})
    return found


@contextmanager
def following(folder: Path, nodes: Cluster = ONE_SLOT, policy: str = "fifo") -> Iterator[StateDir]:
    """A live loop in a process of its own."""
    dirs = StateDir(folder / "state")
    write_cluster(nodes, folder / "cluster.json")
    words = ("run", "--follow", "--state", str(dirs.path), "--policy", policy)
    loop = subprocess.Popen(
        [sys.executable, "-m", "pliant.cli", *words, "--cluster", str(folder / "cluster.json")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(dirs.cluster.exists)
        yield dirs
    finally:
        loop.send_signal(signal.SIGTERM)
        loop.wait(PATIENCE_S)


def _has_ended(dirs: StateDir, job_id: str) -> bool:
    return read_log(dirs.path).jobs[job_id].ended


def until(condition: Callable[[], object]) -> None:
    """Wait for something that must come true.

    :raises TimeoutError: it does not.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not after {PATIENCE_S:g} s")
        time.sleep(0.1)
