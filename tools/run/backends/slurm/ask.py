"""Run one of Slurm's commands, and read what it prints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from pliant.schemas.errors import ServiceMissingError

TIMEOUT_S: Final = 30.0
"""A controller that does not answer is asked again by the command itself for about ten seconds."""
CONF: Final = "SLURM_CONF"
"""Which Slurm is meant."""
JWT: Final = "SLURM_JWT"
"""A token that stands for the user where Slurm asks for one; srun does not support it."""
_OPTIONS: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_")


def of_slurm(env: Mapping[str, str], *names: str) -> dict[str, str]:
    """Those of Slurm's variables; all others stand for options, or belong to a job that we may be in."""
    return {name: env[name] for name in names if name in env}


def ask(
    argv: Sequence[str],
    *,
    text: str | None = None,
    timeout_s: float = TIMEOUT_S,
    base: Mapping[str, str] | None = None,
) -> str:
    """What the command prints.

    :param text: its standard input.
    :param base: its environment, but for what is Slurm's; None: that of this process.
    :raises ServiceMissingError: it is not there, does not end in time, or fails.
    """
    base = os.environ if base is None else base
    env = {name: value for name, value in base.items() if not name.startswith(_OPTIONS)}
    env |= of_slurm(os.environ, CONF, JWT)
    try:
        done = subprocess.run(
            argv,
            input=text or "",
            env={**env, "LC_ALL": "C"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise ServiceMissingError(f"Slurm's {argv[0]} is not here: run on a host of the cluster") from None
    except subprocess.TimeoutExpired:
        raise ServiceMissingError(
            f"Slurm does not answer: {argv[0]} took more than {timeout_s:.0f} s"
        ) from None
    except OSError as error:
        raise ServiceMissingError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), "") or f"exit code {done.returncode}"
        raise ServiceMissingError(f"{argv[0]}: {said.removeprefix(f'{argv[0]}: ')}")
    return done.stdout
