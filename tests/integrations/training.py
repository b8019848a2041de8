"""A training that is resized by relaunches, as users run it: with torchrun."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import psutil
import pytest
import torch

from pliant.tools.profile.torchrun import start
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.log.fold import RunLog
from tests.integrations import forked
from tests.tools.run.site import Site, environment, until

STEPS = 40
PAGE = (Path(__file__).parents[2] / "docs" / "elastic-training.md").read_text()
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ACCELERATE_USE_CPU": "true"}


COMMON = f"""
import os, pathlib, sys, time, torch
STEPS, BATCH = {STEPS}, 4


def after_step(step):
    "Note the step; be slow until the job had all its sizes."
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
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return section.split(f"```{kind}\n")[1].split("\n```")[0]


@contextmanager
def imported(site: Site, source: str, *, forks: bool = True) -> Iterator[str]:
    """The address of a process that has what the source imports. It runs torchrun, too, if that ``forks``."""
    address = str(site.folder / "socket")
    line = [sys.executable, forked.__file__, address, source]
    env = {**environment(), **OFFLINE, **start.ONE_THREAD}
    with subprocess.Popen(line, env=env) as server, pytest.MonkeyPatch.context() as patch:
        if forks:
            # a job has nothing of the loop's environment
            stand_in = site.folder / "torchrun.py"
            stand_in.write_text(
                "import os, runpy, sys\n"
                f"os.environ[{forked.ENV_ADDRESS!r}], sys.argv[0] = {address!r}, {forked.__file__!r}\n"
                f"runpy.run_path({forked.__file__!r}, run_name='__main__')\n"
            )
            patch.setattr(start, "RUN_TORCHRUN", str(stand_in))
        try:
            until(lambda: Path(address).exists() or server.poll() is not None)
            yield address
        finally:
            start.kill(start.tree(psutil.Process(server.pid)))


def trained_alone(site: Site, text: str, address: str) -> list[torch.Tensor]:
    folder = site.folder / "alone"
    folder.mkdir()
    (folder / "script.py").write_text(text)
    (folder / "gate").touch()
    errors, env = folder / "errors", {**environment(), **OFFLINE, "CUDA_VISIBLE_DEVICES": ""}
    words = ("script.py", "gate")
    assert forked.ask(address, words, env, str(folder), "/dev/null", str(errors)) == 0, errors.read_text()
    return weights(folder)


def resized(site: Site, text: str, replica: int) -> RunLog:
    """Trained on one, two, and one replica of so many workers again, one after the other."""
    here, first, second = (site.folder / name for name in ("resized", "first", "second"))
    here.mkdir()
    (here / "script.py").write_text(text)
    site.job("b", "--gate", first, samples=10, gpus=1)
    about = {"samples": 8 * STEPS, "resize": "relaunch", "elastic": "size", "workdir": str(here)}
    site.job("a", text="placeholder", gpus=replica, high=2 * replica, each=replica, env=OFFLINE, **about)
    site.jobs[-1] = site.jobs[-1].model_copy(update={"command": ("script.py", str(here / "gate"))})
    options = replace(site.options(), timeouts=Timeouts())
    later = site.job("c", "--gate", second, samples=10, gpus=1)
    to_do = [
        ("start", first.touch),
        ("grow", lambda: submit(site.state, [later], "t", folder=site.folder, now_s=0.0)),
        ("shrink", (here / "gate").touch),
    ]

    def view(log: RunLog, now_s: float) -> None:
        """Once the log knows the first step after a change, and so its cost, the next one comes."""
        if to_do and to_do[0][0] in costs(site):
            to_do.pop(0)[1]()
        if log.jobs["a"].ended:
            first.touch()
            second.touch()

    log, _ = run_until_done(options, view)
    return log


def costs(site: Site) -> dict[object, float]:
    return {
        (event.detail or {}).get("after"): event.overhead_seconds
        for event in site.events()
        if event.job == "a" and event.event == "progress" and event.overhead_seconds is not None
    }


def weights(folder: Path) -> list[torch.Tensor]:
    saved: list[torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return saved


def check(site: Site, imports: str, text: str, *, replica: int = 1, forks: bool = True) -> None:
    """No step is lost or repeated, and but for rounding the weights are those of a plain training."""
    text = f"{COMMON}{imports}{text}"
    with imported(site, imports, forks=forks) as address:
        alone = trained_alone(site, text, address)
        log = resized(site, text, replica)
    assert log.jobs["a"].phase == "finished", log.jobs["a"].reason
    lines = map(str.split, (site.folder / "resized" / "trained").read_text().splitlines())
    trained = [(int(step), int(size)) for step, size in lines]
    assert [step for step, _ in trained] == list(range(1, STEPS + 1)), trained
    assert [size for size, _ in groupby(size for _, size in trained)] == [replica, 2 * replica, replica]
    torch.testing.assert_close(weights(site.folder / "resized"), alone, rtol=0, atol=1e-5)
    assert set(costs(site)) == {"start", "grow", "shrink"}
    assert log.jobs["a"].samples_done == 8 * STEPS
