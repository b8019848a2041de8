from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.tools.replay.array_job import array_script, submit, write_script

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=pliant-sweep
#SBATCH --array=0-2,5,7-8%4
#SBATCH --output="/data/my sweep/.sweep/%a.log"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
exec python3 -m pliant.cli replay -o '/data/my sweep' --task "$SLURM_ARRAY_TASK_ID"
"""


def test_the_script_names_the_tasks_that_are_left() -> None:
    command = ["python3", "-m", "pliant.cli"]
    assert array_script("/data/my sweep", [7, 0, 1, 2, 8, 5], command, at_once=4) == SCRIPT


def test_without_a_limit_slurm_decides_how_many_run_at_once() -> None:
    assert "--array=3\n" in array_script("/data", [3], ["pliant"], at_once=None)


def test_a_percent_sign_in_a_folder_is_no_pattern_of_slurm() -> None:
    assert '--output="/data/50%%/.sweep/%a.log"' in array_script("/data/50%", [3], ["pliant"], at_once=None)


def test_a_folder_that_would_break_out_of_its_line_is_refused() -> None:
    with pytest.raises(UsageError, match="sbatch cannot name this folder"):
        array_script('/data/"\n#SBATCH --x', [3], ["pliant"], at_once=None)


def test_without_slurm_the_script_is_there_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    script = write_script(SCRIPT, tmp_path)
    with pytest.raises(ServiceMissingError, match=f"no sbatch here: submit {script} where there is one"):
        submit(script)
    assert script.read_text() == SCRIPT
    assert (tmp_path / ".sweep").is_dir()


@pytest.mark.parametrize("accepts", [True, False])
def test_what_sbatch_says_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    reply = 'echo "Submitted batch job 7: $1"' if accepts else 'echo "invalid partition" >&2; exit 1'
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\n{reply}\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    script = write_script(SCRIPT, tmp_path)
    if accepts:
        assert submit(script) == f"Submitted batch job 7: {script}"
    else:
        with pytest.raises(ServiceMissingError, match=r"sbatch refuses .*: invalid partition"):
            submit(script)
