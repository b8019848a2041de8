"""Commands that write files to begin with: ``pliant init``, ``new``, ``examples`` and ``demo``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pliant.cli.console import note, note_sentence, out_text
from pliant.schemas.errors import InfeasibleError, ServiceMissingError, UsageError
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster
    from pliant.tools.run.discovery import Found


def init(
    folder: Annotated[
        Path, typer.Argument(help="Where the files go; made if it is not there.", show_default="here")
    ] = Path(),
    *,
    backend: Annotated[
        Literal["local", "slurm", "slurm-jobs"] | None,
        typer.Option(
            "--backend",
            help="Where jobs are to run: this machine, or the nodes of Slurm.",
            show_default="slurm if it answers, else local",
        ),
    ] = None,
    slots: Annotated[
        Literal["gpu", "cpu"] | None,
        typer.Option("--slots", help="What a slot is.", show_default="gpu if there are any, else cpu"),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", help="Slurm: nodes of this partition.", show_default="the default one"),
    ] = None,
    gres: Annotated[
        str | None,
        typer.Option("--gres", metavar="gpu:TYPE", help="Slurm: GPUs of this type.", show_default="all"),
    ] = None,
) -> None:
    """Write a cluster file, settings and a first job for this machine or Slurm.

    cluster.json is what pliant cluster discover finds, pliant.toml names it,
    a state directory and a policy, and jobs.jsonl holds a first job that runs
    train.py. A file that is there stays as it is. The names of the files that
    were written go to stdout.

    Example: pliant init
    """
    from pliant.schemas.file_io.documents import document_bytes
    from pliant.schemas.file_io.files import make_folder
    from pliant.schemas.io import read_cluster
    from pliant.tools.run.service.submit import user_name

    make_folder(folder)
    if (folder / _CLUSTER).exists():
        cluster = read_cluster(folder / _CLUSTER)
    else:
        discovered = _look(backend, slots, partition or [], gres)
        for text in discovered.notes:
            note_sentence(text)
        cluster = discovered.cluster
    script, jobs = first_job(cluster)
    texts = {
        _CLUSTER: document_bytes(cluster, "cluster"),
        _SETTINGS: _settings_text(user_name()).encode(),
        SCRIPT: script.encode(),
        JOBS: jobs.encode(),
    }
    for name, data in texts.items():
        if _write_new(folder / name, data):
            out_text(f"{folder / name}\n")
        else:
            note(f"{folder / name} is there already and stays as it is")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    note(f"next: {enter}pliant schedule {JOBS} | pliant run --until-done")


def _look(
    backend: Literal["local", "slurm", "slurm-jobs"] | None,
    slots: Literal["gpu", "cpu"] | None,
    partitions: list[str],
    gres: str | None,
) -> Found:
    """What is there; of a Slurm that was not asked for and does not help, this machine."""
    from pliant.cli.cluster import look_for

    if backend is not None:
        try:
            return look_for(backend, slots, partitions, gres)
        except ServiceMissingError as error:
            if backend == "local":
                raise
            raise ServiceMissingError(f"{error}; without Slurm: --backend local") from error
    if shutil.which("scontrol") is None and not partitions and gres is None:
        return look_for("local", slots, [], None)
    try:
        discovered = look_for("slurm", slots, partitions, gres)
    except (ServiceMissingError, InfeasibleError, UsageError) as error:
        if partitions or gres:
            raise
        note_sentence(f"this machine alone, not Slurm: {error}")
        return look_for("local", slots, [], None)
    note_sentence("jobs run on the nodes of Slurm; with --backend local on this machine alone")
    return discovered


def _write_new(path: Path, data: bytes) -> bool:
    """Write a file that is not there yet. Returns False, and changes nothing, if it is.

    :raises PliantError: it cannot be written.
    """
    from pliant.schemas.file_io.files import write_error

    try:
        with path.open("xb") as stream:
            stream.write(data)
    except FileExistsError:
        return False
    except OSError as error:
        raise write_error(error, str(path)) from error
    return True


_CLUSTER: Final = "cluster.json"
_SETTINGS: Final = "pliant.toml"
SCRIPT: Final = "train.py"
JOBS: Final = "jobs.jsonl"
_MOST_WORKERS: Final = 4
"""Maximum workers of the first job; with more it would mostly wait for them."""

_ELASTIC_SCRIPT: Final = '''\
"""A first job: a small network that learns a sum. Put your own model and data in their place."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic

EPOCHS, SAMPLES, BATCH = 5, 4096, 64


def main() -> None:
    job = elastic.init(batch_size=BATCH, seed=0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = job.prepare(model, optimizer, data)
    for _ in job.epochs(EPOCHS):
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), wanted)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)


if __name__ == "__main__":
    main()
'''

_PLAIN_SCRIPT: Final = '''\
"""A first job: a line fitted to noisy points. Put your own training in its place."""

import random

EPOCHS, SAMPLES, RATE = 5, 4096, 0.01


def main() -> None:
    random.seed(0)
    inputs = [random.uniform(-1, 1) for _ in range(SAMPLES)]
    points = [(x, 3 * x + 1 + random.gauss(0, 0.1)) for x in inputs]
    slope = offset = 0.0
    for epoch in range(EPOCHS):
        random.shuffle(points)
        squares = 0.0
        for x, y in points:
            error = slope * x + offset - y
            slope -= RATE * error * x
            offset -= RATE * error
            squares += error * error
        print(f"epoch {epoch + 1}: loss {squares / SAMPLES:.4f}", flush=True)


if __name__ == "__main__":
    main()
'''


def _settings_text(user: str) -> str:
    """``pliant.toml``."""
    return f"""\
# What commands in this folder and below it need not be given.
# The command line counts before PLIANT_STATE, and that before this file.
cluster = "{_CLUSTER}"
state = "pliant-state"
# fair-share needs to know nothing of the jobs; with a profile of them take shadow-price.
policy = "fair-share"

# Fields of jobs that do not state them.
[job]
user = {json.dumps(user)}
"""


def first_job(cluster: Cluster, *, elastic: bool | None = None) -> tuple[str, str]:
    """A training script and the line of a job file that runs it.

    :param elastic: whether the script uses PyTorch and can be resized; None: if PyTorch is installed.
    """
    if not (find_spec("torch") is not None if elastic is None else elastic):
        return _PLAIN_SCRIPT, _line({"id": "first", "command": [SCRIPT]})
    most = min(_MOST_WORKERS, max(node.gpus for node in cluster.nodes))
    job: dict[str, object] = {
        "id": "first",
        "command": [SCRIPT],
        "gpus": {"requested": 1, "max": most},
        "elastic": "size",
        "batch": {"size": 64},
        "work": {"epochs": 5, "dataset_size": 4096},
    }
    return _ELASTIC_SCRIPT, _line(job)


def _line(job: Mapping[str, object]) -> str:
    return json.dumps(job) + "\n"


def new_policy(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the policy, like my-policy.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The folder of the package.", show_default="pliant-NAME"),
    ] = None,
) -> None:
    """Make a package with a working policy, to be changed into your own.

    It has the policy, its test (the checks that pliant's own policies pass) and a
    pyproject.toml. Prints the files. docs/writing-a-policy.md explains them.

    Example: pliant new policy my-policy && pliant policies pliant-my-policy/pliant_my_policy.py
    """
    from pliant.schemas.file_io.files import atomic_write, make_folder
    from pliant.tools.schedule.new_policy import package_files

    files = package_files(name)
    folder = folder or Path(f"pliant-{name}")
    there = [path for path in (folder / each for each in files) if path.exists()]
    if there:
        raise UsageError(f"{there[0]} is there: name another folder")
    make_folder(folder)
    for each, text in files.items():
        atomic_write(folder / each, text.encode())
    out_text("".join(f"{folder / each}\n" for each in files))
    place = folder if folder.is_absolute() else f"./{folder}"  # pip takes a bare name for one of its index
    source = next(folder / each for each in files if each.startswith("pliant_"))
    note(f"try it: --policy {source} in schedule, replay and run; install it: pip install {place}")


SUBCOMMANDS = (new_policy,)


_SOURCE: Final = Path(__file__).resolve().parents[1] / "examples"
"""Source of the examples: a package of the installation, or a folder of a checkout."""
NAME: Final = "examples"
"""The folder in which the jobs of the examples look for their scripts."""


def examples(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where the folder examples is made.")
    ] = Path(),
) -> None:
    """Copy the examples into DIR/examples: training scripts, jobs, clusters, and the demos.

    Files that are there and the same stay. If one differs, none is written.

    Example: pliant examples . && pliant replay examples/jobs.jsonl --cluster examples/cluster.json
    --policy fifo -o fifo.parquet
    """
    written = _copy_examples(folder)
    home = folder / NAME
    note(f"{counted(len(written), 'file')} in {home}; {home / 'README.md'} says what they show")


def demo(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to write; made if missing.")] = Path(
        "pliant-demo"
    ),
    *,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Simulate 32 GPUs under three policies instead; nothing trains."),
    ] = False,
) -> None:
    """Profile, schedule, run and report real training on two CPU slots, then replay the same jobs.

    It takes some minutes, needs PyTorch (pip install 'pliant[run]') and shows
    each command before it runs. The files stay in DIR.

    Example: pliant demo, or without PyTorch: pliant demo --replay
    """
    from pliant.schemas.errors import missing

    if not replay and (advice := missing("torch")) is not None:
        raise UsageError(f"the demo trains with torch, but {advice}; without it: pliant demo --replay")
    _copy_examples(folder)
    script = folder / NAME / ("replay.sh" if replay else "demo.sh")
    environment = os.environ | {"PLIANT_PYTHON": sys.executable}
    code = subprocess.run(["bash", str(script)], env=environment, check=False).returncode
    if code:
        raise typer.Exit(128 - code if code < 0 else code)
    note(f"all of it is in {folder}, where these commands ran")


def _copy_examples(folder: Path) -> list[Path]:
    """Copy the examples; returns the files that were not there.

    :raises UsageError: a file is there with other content; nothing is written then.
    :raises PliantError: the folder cannot be written.
    """
    from pliant.schemas.file_io.files import atomic_write, write_error

    files = {
        folder / NAME / path.relative_to(_SOURCE): path.read_bytes()
        for path in sorted(_SOURCE.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    try:
        there = {path for path in files if path.exists()}
        changed = sorted(path for path in there if path.read_bytes() != files[path])
        if changed:
            raise UsageError(f"{changed[0]} is there and differs: move it away, or name another folder")
        new = [path for path in files if path not in there]
        for path in new:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, files[path])
    except OSError as error:
        raise write_error(error, str(folder / NAME), "cannot be written") from error
    return new
