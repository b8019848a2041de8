"""How big the code base is and how far a reader has to follow it: ``make house`` prints it, nothing fails.

Lines are counted by kind; names, importers and the longest chain come from the sources. What a submitted job,
a replay and a grow pass is recorded while they happen, by module and function.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import ROOT, Figure
from benchmarks.parts.training_job import running
from benchmarks.parts.visits import Visits, following, recording
from pliant.tools.run.service.executor import Executor

MEASURES: Final = ("cli", "schemas", "tools")
SMALL_LINES: Final = 60
PATIENCE_S: Final = 300.0
SCRIPT: Final = """
import json, sys
from pathlib import Path
from benchmarks.parts.visits import recording

OUT = Path(sys.argv[1])
with recording() as passed:
    import torch
    from torch import nn
    from pliant.tools.run import elastic

    job = elastic.init(batch_size=8, seed=1)
    model = nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
    model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
    steps, workers = 0, 1
    for epoch in job.epochs(1_000_000):
        for x, y in loader:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == 1:
                (OUT / f"part-{job.rank}").write_text(json.dumps(passed.functions))
                (OUT / f"part-{job.rank}").rename(OUT / f"trains-{job.rank}")
            elif job.world_size > workers:
                (OUT / f"grew-{job.rank}").write_text(json.dumps(passed.functions))
            workers = job.world_size
            passed.functions.clear()
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One module."""

    path: str
    text: str

    @property
    def name(self) -> str:
        """As it is imported, without ``pliant``."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def tree(self) -> ast.Module:
        """Parsed."""
        return _parsed(self.text)


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def sources() -> list[Source]:
    """All modules of the product, sorted."""
    found = sorted(path for folder in MEASURES for path in (ROOT / folder).rglob("*.py"))
    return [Source(str(path.relative_to(ROOT)), path.read_text()) for path in found]


def lines_by_kind(source: Source) -> Counter[str]:
    """Lines of code, signatures, docstrings, imports and comments, and blank ones; each line counts once."""
    lines = source.text.splitlines()
    kinds = [
        "blank" if not line.strip() else "comments" if line.lstrip()[0] == "#" else "code" for line in lines
    ]

    def mark(first: int, last: int, kind: str) -> None:
        for number in range(first - 1, last):
            if kinds[number] != "blank" or kind == "docstrings":
                kinds[number] = kind

    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            mark(node.lineno, max(node.lineno, node.body[0].lineno - 1), "signatures")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            mark(node.lineno, node.end_lineno or node.lineno, "imports")
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            mark(node.lineno, node.end_lineno or node.lineno, "docstrings")
    return Counter(kinds)


def imports(found: Sequence[Source]) -> dict[str, set[str]]:
    """The modules of the product that each one imports, at its top or in a function."""
    known = {source.name for source in found}
    return {source.name: set(_imported(source.tree, known)) - {source.name} for source in found}


def _imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pliant"):
            module = (node.module or "").removeprefix("pliant").removeprefix(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix(".")
                yield from (name for name in (inner if inner in known else module,) if name in known)


def longest_chain(needs: dict[str, set[str]]) -> int:
    """Modules in the longest chain of imports."""
    length: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        length[name] = 1 + max((length[other] for other in needs.get(name, ())), default=0)
    return max(length.values())


def small_with_one_importer(found: Sequence[Source]) -> list[str]:
    """Modules that may belong to the one that imports them."""
    by = Counter(other for others in imports(found).values() for other in others)
    return [
        source.path
        for source in found
        if by[source.name] == 1
        and len(source.text.splitlines()) < SMALL_LINES
        and not source.path.endswith("__init__.py")
    ]


def classes_defined_twice(found: Sequence[Source]) -> dict[str, int]:
    """Names of classes at the top of several modules."""
    names = Counter(
        node.name for source in found for node in source.tree.body if isinstance(node, ast.ClassDef)
    )
    return {name: count for name, count in sorted(names.items()) if count > 1}


def replayed(jobs: int = 4) -> tuple[Visits, int, int]:
    """What a small replay under ares passes; the modules that get its parameter ``run``, and the returns."""
    from pliant.schemas.cluster import Cluster
    from pliant.schemas.job import Job
    from pliant.tools.profile.throughput import CurveThroughput
    from pliant.tools.replay.inputs import Inputs
    from pliant.tools.replay.run import Run, replay

    nodes = ({"name": "n0", "gpus": 4}, {"name": "n1", "gpus": 4})
    cluster = Cluster.model_validate({"nodes": nodes})
    trace = [_job(f"j{number}", number * 10.0, gpu_seconds=100.0) for number in range(jobs)]
    inputs = Inputs(tuple(Job.model_validate(each) for each in trace), cluster, None, CurveThroughput({}))
    run = Run("ares")
    replay(inputs, run)  # what is imported or cached for the first time is no part of it
    with recording() as passed:
        replay(inputs, run)
    with following(run) as handed:
        replay(inputs, run)
    return passed, len(set(handed.stays)), handed.returns


def _job(name: str, submit_time_s: float, **work: float) -> dict[str, Any]:
    return {
        "id": name,
        "submit_time": submit_time_s,
        "model": "linear",
        "gpus": {"requested": 1, "max": 2},
        "elastic": "size",
        "batch": {"size": 8},
        "work": work,
    }


def submitted() -> Visits:
    """What a submitted job passes until it trains: the submission, the service and the job's worker."""
    found = Visits()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder).resolve()
        (here / "train.py").write_text(SCRIPT)
        job = {**_job("a", 0.0, samples=1e9), "command": ["train.py", str(here)], "workdir": str(here)}
        (here / "jobs.jsonl").write_text(json.dumps({"schema": "pliant.job/1", **job}) + "\n")
        shape = {"slots": "cpu", "nodes": [{"name": "n0", "gpus": 1}]}
        (here / "cluster.json").write_text(json.dumps({"schema": "pliant.cluster/1", **shape}))
        live, trains = here / "live", here / "trains-0"
        words = ("run", "--follow", "--state", str(live), "--policy", "fifo", "--cluster", "cluster.json")
        service = _visiting(here, "service", trains, *words)
        try:
            _wait(live.exists, service)
            submission = _visiting(here, "submission", trains, "submit", "jobs.jsonl", "--state", str(live))
            if submission.wait(PATIENCE_S):
                raise RuntimeError((here / "submission.log").read_text())
            _wait(trains.exists, service)
        finally:
            try:
                subprocess.run(
                    (sys.executable, "-m", "pliant.cli", "cancel", "a", "--state", str(live)), check=False
                )
                _wait((live / "jobs/a/attempts/1/exit-0").exists, service)  # nothing is left of the job
            finally:
                service.terminate()
                service.wait(PATIENCE_S)
        for name in ("submission", "service", "trains-0"):
            found.add(json.loads((here / name).read_text()))
    return found


def _visiting(here: Path, name: str, until: Path, *words: str) -> subprocess.Popen[bytes]:
    """The command line, recorded until a file is there."""
    command = (sys.executable, "-m", "benchmarks.parts.visits", name, str(until), "pliant.cli", *words)
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (here / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=here, env=path, stdout=log, stderr=log)


def _wait(reached: Callable[[], bool], service: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reached():
        if service.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError("the job did not get there")
        time.sleep(0.05)


def grown() -> Visits:
    """What the first worker of a job passes of the elastic library as a second worker joins it."""
    found = Visits()
    with tempfile.TemporaryDirectory() as folder:
        env = {"PYTHONPATH": str(ROOT)}
        with running(Executor, SCRIPT, folder, batch=8, env=env) as job:
            job.go_to(1)
            job.go_to(2)
            job.give(0)
            job.ends()
        passed = json.loads((Path(folder) / "grew-0").read_text())
    found.add({name: module for name, module in passed.items() if module.startswith("tools/run/elastic/")})
    return found


def figures() -> list[Figure]:
    """All of them."""
    job, grow = submitted(), grown()
    return [
        *smallest(),
        Figure("submitted_job_modules", len(job.modules), "modules", 110),
        Figure("submitted_job_functions", len(job.functions), "functions"),
        Figure("grow_modules", len(grow.modules), "modules", 12),
        Figure("grow_functions", len(grow.functions), "functions"),
    ]


def smallest() -> list[Figure]:
    """What needs no live job."""
    found = sources()
    lines = [len(source.text.splitlines()) for source in found]
    kinds: Counter[str] = sum((lines_by_kind(source) for source in found), Counter())
    chain, twice = longest_chain(imports(found)), classes_defined_twice(found)
    replay, handed, returns = replayed()
    return [
        Figure("modules", len(found), "modules", 300),
        Figure("lines", sum(lines), "lines", 54_000),
        *(Figure(f"lines_{kind}", count, "lines") for kind, count in sorted(kinds.items())),
        Figure("median_lines", statistics.median(lines), "lines"),
        Figure("small_with_one_importer", len(small_with_one_importer(found)), "modules"),
        Figure("class_names_defined_twice", len(twice), "names", 10),
        Figure("longest_import_chain", chain, "modules"),
        Figure("replay_modules", len(replay.modules), "modules", 80),
        Figure("replay_functions", len(replay.functions), "functions"),
        Figure("run_of_replay_modules", handed, "modules", 14),
        Figure("run_of_replay_returns", returns, "returns", 12),
    ]


def main() -> int:
    """Print all figures, and what stands behind those that name something."""
    for row in figures():
        limit = "" if row.limit is None else f"  (aim {row.limit:g}{'' if row.holds else ': not reached'})"
        print(f"{row.name:28s} {row.value or 0:>8g} {row.unit}{limit}")
    print("small modules with one importer:", *small_with_one_importer(sources()))
    print("class names defined twice:", *classes_defined_twice(sources()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
