"""What a job takes along from where it is submitted: a few variables, and the active Python environment."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from pliant.schemas.errors import UsageError
from pliant.schemas.job import LONGEST_TEXT, Job
from pliant.schemas.output_files import pattern_fault
from pliant.tools.profile.torchrun.start import child_environment, small_environment
from pliant.tools.run.backends.contain import OF_HOST
from pliant.tools.run.statedir.output_paths import output_file

ALL: Final = "all"
_LONGEST_LINE: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def with_variables(job: Job, asked: Sequence[str], here: Mapping[str, str]) -> Job:
    """A job with the variables that ``--env`` names, which count before those that it states.

    :param asked: ``NAME=VALUE``, ``NAME`` for its value here, ``all`` for every one here.
    :raises UsageError: one is not set here, or cannot be passed on.
    """
    variables: dict[str, str] = {}
    for text in asked:
        name, stated, value = text.partition("=")
        if text == ALL:
            variables |= {
                name: value
                for name, value in child_environment(here, {}).items()
                if _passes(name, value) and not (job.container is not None and name in OF_HOST)
            }
            continue
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {text}: expected NAME, NAME=VALUE or {ALL}")
        if not stated and name not in here:
            raise UsageError(f"--env {name}: is not set here: set it, or say --env {name}=VALUE")
        variables[name] = value if stated else here[name]
        if not _passes(name, variables[name]):
            raise UsageError(f"--env {name}: is no text of at most {LONGEST_TEXT:,} bytes")
    return job.model_copy(update={"env": {**job.env, **variables}}) if variables else job


def hidden_values(names: Sequence[str], here: Mapping[str, str]) -> dict[str, str]:
    """The values of the variables that ``--secret`` names.

    :raises UsageError: one is not set here, or cannot be passed on.
    """
    for name in names:
        if "=" in name:
            text = "expected a NAME that is set here: its value on a command line is no secret"
            raise UsageError(f"--secret {name.partition('=')[0]}=…: {text}")
        if not _passes(name, here.get(name, "\udcff")):
            raise UsageError(
                f"--secret {name}: is not set here, or is no text of at most {LONGEST_TEXT:,} bytes"
            )
    return {name: here[name] for name in names}


def _passes(name: str, value: str) -> bool:
    """Whether a variable can be kept as text and given to a process."""
    try:
        return _NAME.fullmatch(name) is not None and len(value.encode()) < LONGEST_TEXT - len(name)
    except UnicodeEncodeError:
        return False


def without(job: Job, names: Collection[str]) -> Job:
    """A job that does not hold these variables."""
    kept = {name: value for name, value in job.env.items() if name not in names}
    return job if len(kept) == len(job.env) else job.model_copy(update={"env": kept})


def with_output(job: Job, output: str | None, error: str | None) -> Job:
    """A job whose output goes to the files that ``--output`` and ``--error`` name.

    :raises UsageError: they name none.
    """
    patterns = {"output": output, "error": error}
    stated = {name: pattern for name, pattern in patterns.items() if pattern is not None}
    for name, pattern in stated.items():
        if (fault := pattern_fault(pattern)) is not None:
            raise UsageError(f"--{name} {pattern}: {fault}")
    return job.model_copy(update=stated) if stated else job


def output_obstacle(job: Job) -> str | None:
    """Why the files of its output cannot be written, as a clause. Returns None if they can, seen from here.

    :param job: with its folder written out.
    """
    for pattern in filter(None, (job.output, job.error)):
        path = Path(output_file(pattern, job, attempt=1, node="", rank=0, user=job.user))
        above = next((folder for folder in path.parents if folder.exists()), Path("/"))
        if path.is_dir() or not above.is_dir():
            return f"{path if path.is_dir() else above} is {'a' if path.is_dir() else 'no'} folder"
        if not os.access(path if path.exists() else above, os.W_OK):
            return f"{path} cannot be written: {os.strerror(errno.EACCES).lower()}"
    return None


def shared_files(jobs: Iterable[Job]) -> list[tuple[str, int]]:
    """(path, number of jobs) of each output file that several of these jobs write to."""
    paths = [
        {output_file(each, job, attempt=1, node="*", rank="*", user=job.user) for each in patterns}
        for job in jobs
        if (patterns := [*filter(None, (job.output, job.error))])
    ]
    return [(path, count) for path, count in Counter(chain.from_iterable(paths)).items() if count > 1]


def of_submitter(job: Job, here: Mapping[str, str]) -> Job:
    """A job with the small environment of its submitter, and the Python that is active there."""
    unseen = OF_HOST if job.container is not None else ()
    small = {
        name: value
        for name, value in small_environment(here).items()
        if _passes(name, value) and name not in unseen
    }
    changed: dict[str, object] = {"env": {**small, **job.env}}
    if job.own_python is None and job.command and (python := _shebang_python(job) or _python_here(job, here)):
        changed["python"] = python
    changed_job = job.model_copy(update=changed)
    changed_job.model_fields_set.update(changed)
    return changed_job


def _python_here(job: Job, here: Mapping[str, str]) -> str | None:
    """As :func:`active_python`; a program that is started as it is needs none.

    :raises UsageError: the environment is gone.
    """
    try:
        return active_python(here)
    except UsageError:
        if job.launcher == "program":
            return None
        raise


def active_python(here: Mapping[str, str]) -> str | None:
    """The Python of the virtual or conda environment that is active, or first on PATH. Returns None without
    one.

    :raises UsageError: the environment is gone.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if not (environment := here.get(name)):
            continue
        python = Path(environment, "bin", "python")
        if os.access(python, os.X_OK):
            return str(python)
        if name == "VIRTUAL_ENV" or not os.path.isdir(environment):
            missing = python if os.path.isdir(environment) else environment
            raise UsageError(f"{name}: {missing} is not there: unset it, or name a Python with --python")
    first = Path(shutil.which("python", path=here.get("PATH", "")) or os.devnull)
    return _of_environment(first)


def _of_environment(python: Path) -> str | None:
    """A Python of a virtual or conda environment other than the one that runs this process, as a path."""
    environment = python.parent.parent
    marked = (environment / "pyvenv.cfg").is_file() or (environment / "conda-meta").is_dir()
    return os.path.abspath(python) if marked and environment != Path(sys.prefix) else None


def _shebang_python(job: Job) -> str | None:
    """The environment's Python that the first line of a job's Python script names by its path."""
    if job.elastic != "none" or job.container is not None:
        return None
    try:
        with Path(job.workdir or ".", job.script[0]).open("rb") as file:
            line = os.fsdecode(file.readline(_LONGEST_LINE))
    except OSError:
        return None
    python = line.removeprefix("#!").strip()
    is_named = line.startswith("#!/") and "python" in Path(python).name and os.access(python, os.X_OK)
    return _of_environment(Path(python)) if is_named else None
