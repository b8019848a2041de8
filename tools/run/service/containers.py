"""The containers that jobs run in: what starts one, and whether an image holds what it has to."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pliant.schemas.container import Container
from pliant.schemas.job import IMAGE_PYTHON, Job
from pliant.tools.run.backends import contain

CONTAIN: Final = str(Path(contain.__file__))
_FILES: Final = (".sif", ".simg", ".sqsh", ".img")
"""Endings of images that are files."""
_NAME_CHARS: Final = 40
_DIGEST_CHARS: Final = 12
_TRY_S: Final = 60.0
TRIED: Final = ("podman", "docker", "apptainer")
_ELSEWHERE: Final = re.compile(
    r"image not known|No such image|Unable to find image|no such image", re.IGNORECASE
)
"""Messages of a runtime that would fetch the image first."""
_LOOK: Final = (
    "import importlib.util as u, sys; "
    "print('missing', *(n for n in sys.argv[1:] if u.find_spec(n) is None), sep=' ')"
)


def words(
    container: Container, note: Path, folders: Sequence[Path] = (), stated: Sequence[str] = ()
) -> tuple[str, ...]:
    """What stands before a command that is to run in a container.

    :param note: the file that says how it is ended, while there may be one.
    :param folders: what it sees under the same paths, beside the folder that it starts in.
    :param stated: variables that the job states.
    """
    digest = hashlib.sha256(str(note).encode()).hexdigest()[:_DIGEST_CHARS]
    *_, job, _, attempt, _ = ("", "", *note.parts)[-5:]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"pliant-{job[:_NAME_CHARS]}-{attempt}-{digest}")
    spec = contain.Spec(
        runtime=container.runtime,
        image=container.image,
        mounts=list(container.mounts),
        options=list(container.options),
        stated=sorted(stated),
        folders=[str(folder) for folder in folders],
        note=str(note),
        name=name,
    )
    return sys.executable, "-I", "-S", CONTAIN, json.dumps(spec._asdict(), ensure_ascii=False)


def step_variables(container: Container | None) -> dict[str, str]:
    """What the step of a unit on Slurm fills in, so that pyxis can start a step of its own."""
    return {contain.ENV_SLURM: ""} if container is not None and container.runtime == "pyxis" else {}


def obstacle(job: Job, *, fetched: bool = False) -> str | None:
    """Why a job would not start in its container, as a clause, as far as this machine can tell.

    Returns None if it would, has none, or its image is still to be fetched.

    :param job: settled, with its folder written out.
    :param fetched: an image that is not here yet is an obstacle, too.
    """
    if (container := job.container) is None:
        return None
    folder = Path(job.workdir or ".")
    is_file = container.image.endswith(_FILES) or container.image.startswith(("./", "/"))
    if is_file and "://" not in container.image and not (folder / container.image).exists():
        return f"no such image: {folder / container.image}"
    if container.runtime not in TRIED:
        return None
    needs: tuple[str, ...] = ()
    if job.launcher != "program":
        alone = job.elastic == "none" and (job.gpus.requested == 1 or job.launcher == "python")
        modules = () if alone and not job.names_torchrun else ("torch", "pliant")
        needs = (job.own_python or IMAGE_PYTHON, *modules)
    return _tried(container, folder, tuple(sorted(job.env.items())), needs, fetched)


@lru_cache(maxsize=64)
def _tried(
    container: Container,
    folder: Path,
    env: tuple[tuple[str, str], ...],
    needs: tuple[str, ...],
    fetched: bool,
) -> str | None:
    """What a try in the container shows to be wrong, as a clause.

    :param needs: the Python that it has to have, and modules of that; empty: none.
    """
    python, *modules = needs or ("",)
    command = (python, "-c", _LOOK, *modules) if python else ("true",)
    code, output = attempt(container, folder, command, dict(env))
    error = next((line for line in output.splitlines() if line.startswith("ContainerError: ")), "")
    if error:
        no_program = "executable file" in error
        if (_ELSEWHERE.search(error) and not fetched) or (no_program and not python):
            return None
        if no_program:
            return f"{container.image} has no {python}: install it there, or name another image"
        return error.removeprefix("ContainerError: ")
    missing = next((line.split()[1:] for line in output.splitlines() if line.startswith("missing")), [])
    if missing:
        needed = " and no ".join(missing)
        return f"{container.image} has no {needed}, which starts its workers: install it there"
    return (
        f"{container.image}: {output.strip().splitlines()[-1]}"
        if code and output.strip() and python
        else None
    )


def attempt(
    container: Container, folder: Path, command: Sequence[str], env: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command in a container as a unit of a job would; returns its exit code, and what it says.

    Images are not fetched for it.

    :param env: variables that the job states.
    """
    if container.runtime in ("podman", "docker"):
        container = container.model_copy(update={"options": (*container.options, "--pull=never")})
    with TemporaryDirectory(prefix="pliant-") as scratch:
        output = Path(scratch, "output")
        note = Path(scratch, "try.container")
        inside = words(container, note, (), tuple(env))
        argv = (*inside, *command)
        own = {name: value for name, value in os.environ.items() if name in contain.OF_HOST}
        with output.open("wb") as file:
            try:
                done = subprocess.run(
                    argv,
                    cwd=folder,
                    env={**own, **env, "TMPDIR": scratch},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=_TRY_S,
                    check=False,
                )
                code, late = done.returncode, ""
            except subprocess.TimeoutExpired:
                code, late = -9, f"ContainerError: {container.runtime} has not started after {_TRY_S:.0f} s\n"
            except OSError as error:
                return 127, f"ContainerError: {error}\n"
        contain.remove(contain.Spec(**json.loads(inside[-1])))
        return code, output.read_text(errors="replace") + late
