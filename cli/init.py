"""``pliant init``: the files to begin with, from what this machine or its Slurm has."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pliant.cli.console import note, note_sentence, out_text
from pliant.schemas.errors import InfeasibleError, ServiceMissingError, UsageError

if TYPE_CHECKING:
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
    """Look what there is, write the files to begin with, and say the next command.

    cluster.json is what pliant cluster discover finds, pliant.toml names it,
    a state directory and a policy, and jobs.jsonl holds a first job that runs
    train.py. A file that is there stays as it is. The names of the files that
    were written go to stdout.

    Example: pliant init
    """
    from pliant.cli.starter import CLUSTER, JOBS, SCRIPT, SETTINGS, first_job, settings_text
    from pliant.schemas.file_io.documents import document_bytes
    from pliant.schemas.file_io.files import make_folder
    from pliant.schemas.io import read_cluster
    from pliant.tools.run.service.submit import user_name

    make_folder(folder)
    if (folder / CLUSTER).exists():
        cluster = read_cluster(folder / CLUSTER)
    else:
        found = _look(backend, slots, partition or [], gres)
        for text in found.notes:
            note_sentence(text)
        cluster = found.cluster
    script, jobs = first_job(cluster)
    texts = {
        CLUSTER: document_bytes(cluster, "cluster"),
        SETTINGS: settings_text(user_name()).encode(),
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
        found = look_for("slurm", slots, partitions, gres)
    except (ServiceMissingError, InfeasibleError, UsageError) as error:
        if partitions or gres:
            raise
        note_sentence(f"this machine alone, not Slurm: {error}")
        return look_for("local", slots, [], None)
    note_sentence("jobs run on the nodes of Slurm; with --backend local on this machine alone")
    return found


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
