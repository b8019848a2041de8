"""How long a job goes on after one of its workers has left out a batch alone: seconds to its end.

Two workers on CPU slots train under ``pliant run``, as users start them. In the fourth step the second one
goes on to its next batch. From then on both wait, and nothing would ever come.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure, NotMeasurableError

LIMIT_S: Final = 90.0
_MOST_S: Final = 300.0
SCRIPT: Final = """
import pathlib, torch
from pliant.tools.run import elastic

job = elastic.init(batch_size=32, seed=0)
data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(0, 3, (256,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader = job.prepare(model, optimizer, data)
for epoch in job.epochs(3):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if epoch == 0 and loader.steps_done == 3 and job.rank == 1:
            pathlib.Path(__file__).with_name("left").touch()
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def silence_after_a_skip() -> list[Figure]:
    """Seconds from the batch that is left out to the end of the run, which has to name the step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        node = {"name": "local", "gpus": 2, "gpu_type": "cpu"}
        cluster = {"schema": "pliant.cluster/1", "slots": "cpu", "nodes": [node]}
        (folder / "cluster.json").write_text(json.dumps(cluster))
        job = {
            "id": "a",
            "submit_time": 0,
            "command": ["train.py"],
            "elastic": "size",
            "gpus": {"requested": 2, "min": 2, "max": 2},
            "batch": {"size": 32, "per_gpu_max": 32},
            "work": {"epochs": 3, "dataset_size": 256},
        }
        lines = (json.dumps({"schema": "pliant.job/1"}), json.dumps(job))
        (folder / "jobs.jsonl").write_text("\n".join(lines) + "\n")
        plan = ("--cluster", "cluster.json", "--policy", "fair-share", "-q", "-o", "schedule.json")
        _pliant(folder, "schedule", "jobs.jsonl", *plan)
        said = _pliant(folder, "run", "schedule.json", "--until-done", "--state", "state", "--retries", "0")
        ended_s = time.time()
        if not (folder / "left").exists() or "trained nothing in step 3" not in said:
            raise NotMeasurableError(f"the run ended otherwise: {said[-500:]}")
        silent_s = ended_s - (folder / "left").stat().st_mtime
    return [Figure("silence_after_a_skip_s", silent_s, "s", LIMIT_S)]


def _pliant(folder: Path, *words: str) -> str:
    """What a command says on stderr."""
    line = [sys.executable, "-m", "pliant", *words]
    return subprocess.run(
        line, cwd=folder, capture_output=True, text=True, timeout=_MOST_S, check=False
    ).stderr
