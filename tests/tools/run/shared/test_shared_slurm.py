"""A shared run on a real Slurm, by both of its backends; its accounts are in files that the test makes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.run.shared.in_sight import in_sight
from tests.tools.run.shared.users import ANN, BOB, CREW, CYD
from tests.tools.run.site import environment

WITH_ACCOUNTS = """
set -e
mount --bind "$1" /etc/passwd
mount --bind "$2" /etc/group
shift 2
exec "$@"
"""


PEOPLE = {"ann": ANN, "bob": BOB, "cyd": CYD}


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("hostile", "slurm"),
        ("hostile", "slurm-jobs"),
        pytest.param("elastic", "slurm", marks=pytest.mark.torch),
    ],
)
def test_jobs_on_slurm_run_as_their_users(shared_folder: Path, kind: str, backend: str) -> None:
    begin = in_sight(shared_folder)
    lines = {
        "passwd": [f"pliant-{name}:x:{uid}:{uid}::/nowhere:/bin/sh" for name, uid in PEOPLE.items()],
        "group": [
            *(f"pliant-{name}:x:{uid}:" for name, uid in PEOPLE.items()),
            f"pliant-crew:x:{CREW}:pliant-ann",
        ],
    }
    for name, own in lines.items():
        (shared_folder / name).write_text(
            Path("/etc", name).read_text() + "".join(f"{line}\n" for line in own)
        )
    files = [str(shared_folder / name) for name in lines]
    within = ["unshare", "-m", "sh", "-c", WITH_ACCOUNTS, "sh", *files]
    if subprocess.run([*within, "true"], check=False, capture_output=True).returncode:
        pytest.skip("the system does not let this process have an /etc/passwd of its own")
    play = [sys.executable, "-m", "tests.tools.run.shared.slurm_scenario", kind, backend]
    words = [*begin, *within, *play, str(shared_folder / "site"), *map(str, PEOPLE.values())]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"needs Slurm: {done.stdout}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
