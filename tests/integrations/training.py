"""A training that is resized by relaunches, as users run it: with torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import torch

from pliant.tools.run.service.members import Timeouts
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.log.fold import RunLog
from tests.tools.run.site import Site

STEPS = 40
PAGE = (Path(__file__).parents[2] / "docs" / "elastic-training.md").read_text()
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ACCELERATE_USE_CPU": "true"}


COMMON = f"""
import os, pathlib, sys, time, torch
STEPS, BATCH = {STEPS}, 4


def after_step(step):
    "Note the step; be slow until the job had both its sizes."
    if os.environ.get("RANK", "0") == "0":
        with open("trained", "a") as file:
            file.write(f"{{step}} {{os.environ.get('WORLD_SIZE', '1')}}\\n")
    if not os.path.exists(sys.argv[1]):
        time.sleep(1.0)


def at_end(model):
    if os.environ.get("RANK", "0") == "0":
        torch.save([each.detach().clone() for each in model.parameters()], "weights.pt")


torch.manual_seed(0)
torch.set_num_threads(1)
"""


def recipe(heading: str, kind: str = "python") -> str:
    """The code of a recipe of docs/elastic-training.md."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return section.split(f"```{kind}\n")[1].split("\n```")[0]


class Training:
    """A script that is trained alone by plain Python, and by ``pliant run`` on one and two replicas.

    :param replica: workers of each.
    """

    def __init__(self, site: Site, text: str, replica: int = 1) -> None:
        self.site, self.replica = site, replica
        self.here, self.alone = site.folder / "resized", site.folder / "alone"
        for folder in (self.here, self.alone):
            folder.mkdir()
            (folder / "script.py").write_text(COMMON + text)

    def by_python(self) -> list[torch.Tensor]:
        (self.alone / "gate").touch()
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PLIANT")}
        done = subprocess.run(
            [sys.executable, "script.py", "gate"],
            cwd=self.alone,
            env={**kept, **OFFLINE, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return weights(self.alone)

    def resized(self, sizes: Sequence[int]) -> RunLog:
        """Trained on so many replicas, one after the other."""
        site, first, second = self.site, self.site.folder / "first", self.site.folder / "second"
        gate, most = self.here / "gate", 2 * self.replica
        if sizes[0] == 1:
            site.job("b", "--gate", first, samples=10, gpus=1)
        about = {"samples": 8 * STEPS, "resize": "relaunch", "elastic": "size", "workdir": str(self.here)}
        site.job(
            "a", text="placeholder", gpus=self.replica, high=most, each=self.replica, env=OFFLINE, **about
        )
        site.jobs[-1] = site.jobs[-1].model_copy(update={"command": ("script.py", str(gate))})
        options = replace(site.options(), timeouts=Timeouts())
        later = site.job("c", "--gate", second, samples=10, gpus=1)

        def shrink() -> None:
            submit(site.state, [later], "t", folder=site.folder, now_s=0.0)

        changes = changes_of(sizes)
        next_steps = [
            *({"grow": first.touch, "shrink": shrink}[change] for change in changes[1:]),
            gate.touch,
        ]
        to_do = [(self.trains_after(change), act) for change, act in zip(changes, next_steps, strict=True)]
        to_do.append((lambda log: log.jobs["a"].ended, second.touch))

        def view(log: RunLog, now_s: float) -> None:
            if to_do and to_do[0][0](log):
                to_do.pop(0)[1]()

        log, _ = run_until_done(options, view)
        return log

    def trained(self) -> list[tuple[int, int]]:
        """(step, workers) of each step that was trained."""
        path = self.here / "trained"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(size)) for step, size in map(str.split, lines)]

    def trains_after(self, change: str) -> Callable[[RunLog], bool]:
        """Whether the log knows the first step after a change, and so its cost."""
        return lambda _: change in costs(self.site)


def changes_of(sizes: Sequence[int]) -> list[str]:
    return ["start", *("grow" if before < after else "shrink" for before, after in pairwise(sizes))]


def costs(site: Site) -> dict[object, float]:
    """Seconds that each change of the job cost."""
    return {
        (event.detail or {}).get("after"): event.overhead_seconds
        for event in site.events()
        if event.job == "a" and event.event == "progress" and event.overhead_seconds is not None
    }


def weights(folder: Path) -> list[torch.Tensor]:
    saved: list[torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return saved


def check(site: Site, text: str, sizes: Sequence[int], replica: int = 1) -> None:
    """No step is lost or repeated, and but for rounding the weights are those of a plain training."""
    training = Training(site, text, replica)
    alone = training.by_python()
    log = training.resized(sizes)
    assert log.jobs["a"].phase == "finished", log.jobs["a"].reason
    trained = training.trained()
    assert [step for step, _ in trained] == list(range(1, STEPS + 1)), trained
    assert [size for size, _ in groupby(size for _, size in trained)] == [replica * one for one in sizes]
    torch.testing.assert_close(weights(training.here), alone, rtol=0, atol=1e-5)
    assert set(costs(site)) == set(changes_of(sizes))
    assert log.jobs["a"].samples_done == 8 * STEPS
