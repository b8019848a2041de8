"""Variables that reach jobs from shells that they do not belong to."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.jobs.cluster import SmallCluster
from pliant.tools.profile.torchrun.start import SMALL

_LOOP, _SUBMITTER = "of the loop", "of the submitter"
_NAMES: Final = (
    *("AWS_SECRET_ACCESS_KEY", "BASH_ENV", "CONDA_DEFAULT_ENV", "CUDA_VISIBLE_DEVICES", "DISPLAY", "EDITOR"),
    *("HF_TOKEN", "http_proxy", "KUBECONFIG", "LANGUAGE", "LC_MONETARY", "LOCAL_RANK", "LOGNAME", "MAIL"),
    *("MASTER_ADDR", "MASTER_PORT", "OLDPWD", "OMPI_COMM_WORLD_RANK", "PIP_INDEX_URL", "PLIANT_JOB_ID"),
    *("PMI_RANK", "PS1", "PYTHONDONTWRITEBYTECODE", "PYTHONUSERBASE", "RANK", "SHELL", "SLURM_JOB_ID"),
    *("SSH_AUTH_SOCK", "TERM", "TORCHELASTIC_RUN_ID", "TZ", "USER", "WANDB_API_KEY", "WORLD_SIZE"),
    *("XDG_RUNTIME_DIR", "_"),
)
_JOBS: Final = """
echo 'import os; [print(*each, sep="=") for each in os.environ.items()]' > shown.py
pliant submit env --name program
pliant submit shown.py --name script
pliant submit shown.py --array 1 --name array
printf '#!/bin/sh\\nenv\\n' | pliant submit - --name stdin
echo '{"id": "file", "gpus": {"requested": 1}, "command": ["shown.py"]}' > jobs.jsonl
pliant submit jobs.jsonl
"""


def figures() -> list[Figure]:
    """Names in the environments of five jobs whose values were set where the loop was started, or where they
    were submitted although they are in no small environment.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-environment-") as folder:
        cluster = SmallCluster(Path(folder).resolve())
        cluster.shell("ada", _JOBS, **dict.fromkeys(_NAMES, _SUBMITTER))
        cluster.run(**dict.fromkeys(_NAMES, _LOOP))
        shown = {
            job: cluster.output(job).splitlines() for job in ("program", "script", "array-1", "stdin", "file")
        }
    foreign = [
        f"{job}: {line}" for job, lines in shown.items() for line in lines or ["nothing"] if _is_foreign(line)
    ]
    print(*foreign, sep="\n", end="\n" if foreign else "", file=sys.stderr)
    return [Figure("foreign_environment_names", float(len(foreign)), "names", 0.0)]


def _is_foreign(line: str) -> bool:
    name, _, value = line.partition("=")
    is_small = name in SMALL or name.startswith("LC_")
    return line == "nothing" or value == _LOOP or (value == _SUBMITTER and not is_small)
