from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.tools.replay.sweep.run import array_scripts, array_size, submit, write_scripts

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=pliant-sweep
#SBATCH --array=0-2,5,7-8%4
#SBATCH --output="/data/my sweep/.sweep/%a.log"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
exec python3 -m pliant.cli replay -o '/data/my sweep' --table 3f2a --task "$SLURM_ARRAY_TASK_ID"
"""


def scripts(folder: str, numbers: list[int], at_once: int | None = None, size: int = 1001) -> list[str]:
    command = ["python3", "-m", "pliant.cli"]
    return array_scripts(folder, numbers, command, at_once, table="3f2a", size=size)


def test_the_script_names_the_tasks_that_are_left() -> None:
    assert scripts("/data/my sweep", [7, 0, 1, 2, 8, 5], at_once=4) == [SCRIPT]


def test_without_a_limit_slurm_decides_how_many_run_at_once_and_a_percent_sign_is_no_pattern() -> None:
    [script] = scripts("/data/50%", [3])
    assert "--array=3\n" in script
    assert '--output="/data/50%%/.sweep/%a.log"' in script


def test_a_folder_that_would_break_out_of_its_line_is_refused() -> None:
    with pytest.raises(UsageError, match="sbatch cannot name this folder"):
        scripts('/data/"\n#SBATCH --x', [3])


def arrays(texts: list[str]) -> list[str]:
    return [line.rpartition("=")[2] for text in texts for line in text.splitlines() if "--array" in line]


def test_a_sweep_that_one_array_cannot_hold_becomes_several() -> None:
    assert arrays(scripts("/data", list(range(1001)))) == ["0-1000"]
    assert arrays(scripts("/data", list(range(2005)), at_once=8)) == ["0-1000%8", "0-1000%8", "0-2%8"]
    assert arrays(scripts("/data", [3, 17, 42], size=10)) == ["3", "7", "2"]


def test_a_later_array_counts_from_where_the_one_before_it_ended(tmp_path: Path) -> None:
    (_, second) = array_scripts(str(tmp_path), [3, 17], ["echo"], None, table="3f2a", size=10)
    assert f'--output="{tmp_path}/.sweep/10+%a.log"' in second
    shown = subprocess.run(
        ["bash", "-c", second], env={"SLURM_ARRAY_TASK_ID": "7"}, capture_output=True, text=True, check=True
    )
    assert shown.stdout.endswith("--table 3f2a --task 17\n")


def test_a_slurm_without_job_arrays_is_said() -> None:
    with pytest.raises(ServiceMissingError, match="MaxArraySize is 0"):
        scripts("/data", [1], size=0)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("reply", "size"),
    [
        ('printf "MaxArraySize            = 4001\\nMaxJobCount = 7\\n"', 4001),
        ('echo "slurm_load_ctl_conf error" >&2; exit 1', 1001),
        ('echo "MaxArraySize = many"', 1001),
    ],
)
def test_the_size_of_arrays_is_what_slurm_says(
    programs: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, reply: str, size: int
) -> None:
    programs("scontrol", reply)
    assert array_size() == size
    monkeypatch.setenv("PATH", "")
    assert array_size() == 1001, "without Slurm its usual size"


def test_without_slurm_the_scripts_are_there_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    one, two = write_scripts([SCRIPT, "second"], tmp_path)
    with pytest.raises(ServiceMissingError, match=f"no sbatch here: submit {one}, {two} where there is one"):
        submit([one, two], in_turn=False)
    with pytest.raises(ServiceMissingError, match="each after the end of the one before it"):
        submit([one, two], in_turn=True)
    assert (one.read_text(), two.read_text()) == (SCRIPT, "second")
    assert (tmp_path / ".sweep").is_dir()


def test_scripts_of_a_longer_sweep_do_not_stay(tmp_path: Path) -> None:
    write_scripts([SCRIPT, "second", "third"], tmp_path)
    assert write_scripts([SCRIPT], tmp_path) == [tmp_path / "sweep.sbatch"]
    assert [path.name for path in tmp_path.glob("*.sbatch")] == ["sweep.sbatch"]


def test_arrays_that_share_a_limit_run_one_after_the_other(
    tmp_path: Path, programs: Callable[[str, str], None]
) -> None:
    calls = shlex.quote(str(tmp_path / "calls"))
    programs("sbatch", f'echo "$*" >> {calls}; wc -l < {calls}')
    paths = write_scripts([SCRIPT, "second"], tmp_path)
    assert submit(paths, in_turn=True) == ["1", "2"]
    assert submit(paths, in_turn=False) == ["3", "4"]
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"--parsable {paths[0]}",
        f"--parsable --dependency=afterany:1 {paths[1]}",
        f"--parsable {paths[0]}",
        f"--parsable {paths[1]}",
    ]


def test_why_sbatch_refuses_is_handed_on(tmp_path: Path, programs: Callable[[str, str], None]) -> None:
    programs("sbatch", 'case "$*" in *sweep-2*) echo "invalid partition" >&2; exit 1;; esac; echo "7;site"')
    paths = write_scripts([SCRIPT, "second"], tmp_path)
    assert submit(paths[:1], in_turn=True) == ["7"]
    with pytest.raises(ServiceMissingError, match=r"sweep-2.*: invalid partition \(submitted before it: 7\)"):
        submit(paths, in_turn=False)
