"""A shared run on a real Slurm, by both of its backends; its accounts are in files that the test makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.run.shared.in_sight import in_sight
from tests.tools.run.shared.users import ANN, BOB
from tests.tools.run.site import environment

WITH_ACCOUNTS = """
set -e
mount --bind "$1" /etc/passwd
mount --bind "$2" /etc/group
shift 2
exec "$@"
"""


@pytest.mark.parametrize("backend", ["slurm", "slurm-jobs"])
def test_jobs_run_as_their_users_and_a_hostile_one_harms_itself_alone(
    shared_folder: Path, backend: str
) -> None:
    begin, crew = in_sight(shared_folder), BOB + 1
    lines = {
        "passwd": [
            f"pliant-{name}:x:{uid}:{uid}::/nowhere:/bin/sh" for name, uid in (("ann", ANN), ("bob", BOB))
        ],
        "group": [f"pliant-ann:x:{ANN}:", f"pliant-bob:x:{BOB}:", f"pliant-crew:x:{crew}:pliant-ann"],
    }
    for name, own in lines.items():
        (shared_folder / name).write_text(
            Path("/etc", name).read_text() + "".join(f"{line}\n" for line in own)
        )
    files = [str(shared_folder / name) for name in lines]
    within = ["unshare", "-m", "sh", "-c", WITH_ACCOUNTS, "sh", *files]
    if subprocess.run([*within, "true"], check=False, capture_output=True).returncode:
        pytest.skip("the system does not let this process have an /etc/passwd of its own")
    play = [sys.executable, "-m", "tests.tools.run.shared.slurm_scenario", backend]
    words = [*begin, *within, *play, str(shared_folder / "site"), str(ANN), str(BOB)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"needs Slurm: {done.stdout}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
