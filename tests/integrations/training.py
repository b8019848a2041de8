"""A training that goes from one worker to two and back, by two relaunches, as users run it: with torchrun."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pliant.tools.run.service.members import Timeouts
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.log.fold import RunLog
from tests.tools.run.site import Site

STEPS = 40
PAGE = (Path(__file__).parents[2] / "docs" / "elastic-training.md").read_text()
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ACCELERATE_USE_CPU": "true"}


def need_installed(*libraries: str) -> None:
    """Skip the module without them. The trainings import them, the tests do not: that takes seconds."""
    if not all(map(importlib.util.find_spec, libraries)):
        pytest.skip("the extra integrations is not installed", allow_module_level=True)


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
    """A script that is trained alone by plain Python, and by ``pliant run`` on one, two and one replicas.

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

    def resized(self) -> RunLog:
        site, first, second = self.site, self.site.folder / "first", self.site.folder / "second"
        gate = self.here / "gate"
        site.job("b", "--gate", first, samples=10, gpus=1)
        site.job(
            "a",
            text="placeholder",
            samples=8 * STEPS,
            gpus=self.replica,
            high=2 * self.replica,
            each=self.replica,
            resize="relaunch",
            elastic="size",
            workdir=str(self.here),
            env=OFFLINE,
        )
        site.jobs[-1] = site.jobs[-1].model_copy(update={"command": ("script.py", str(gate))})
        options = replace(site.options(), timeouts=Timeouts())
        later = site.job("c", "--gate", second, samples=10, gpus=1)
        left = [
            (self.trains_after("start"), first.touch),
            (
                self.trains_after("grow"),
                lambda: submit(site.state, [later], "t", folder=site.folder, now_s=0.0),
            ),
            (self.trains_after("shrink"), gate.touch),
            (lambda log: log.jobs["a"].ended, second.touch),
        ]

        def view(log: RunLog, now_s: float) -> None:
            if left and left[0][0](log):
                left.pop(0)[1]()

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


def costs(site: Site) -> dict[object, float]:
    """Seconds that each change of the job cost."""
    return {
        (event.detail or {}).get("after"): event.overhead_seconds
        for event in site.events()
        if event.job == "a" and event.event == "progress" and event.overhead_seconds is not None
    }


def weights(folder: Path) -> list[torch.Tensor]:
    found: list[torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return found


def check(site: Site, text: str, tolerance: float = 1e-5, replica: int = 1) -> None:
    """No step is lost or repeated, and but for rounding the weights are those of a plain training."""
    training = Training(site, text, replica)
    alone = training.by_python()
    log = training.resized()
    assert log.jobs["a"].phase == "finished", log.jobs["a"].reason
    trained = training.trained()
    assert [step for step, _ in trained] == list(range(1, STEPS + 1)), trained
    sizes = [size for _, size in trained]
    assert [size for at, size in enumerate(sizes) if at == 0 or sizes[at - 1] != size] == [
        replica,
        2 * replica,
        replica,
    ]
    apart = max(float((a - b).abs().max()) for a, b in zip(alone, weights(training.here), strict=True))
    assert apart <= tolerance
    assert set(costs(site)) == {"start", "grow", "shrink"}
    assert log.jobs["a"].samples_done == 8 * STEPS
