from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.io import write_jobs
from tests.builders import job
from tests.cli.calling import call

SUBMIT = ("submit", "jobs.jsonl", "--state", "live")


def test_a_script_that_is_not_there_is_refused_unless_no_check_says_otherwise(here: Path):
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    refused = call(*SUBMIT, columns=200)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert f'job "a": no such script: {here}/train.py (--no-check skips this check)' in refused.stderr
    assert not (here / "live" / "submit").exists()
    assert call(*SUBMIT, "--no-check").stdout == "a\n"


def test_of_several_jobs_none_is_submitted_where_one_is_refused_and_it_says_so(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    write_jobs([job("a", command=("train.py",)), job("b", command=("trian.py",))], "jobs.jsonl")
    refused = call(*SUBMIT, columns=200)
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "none of the 2 jobs was submitted:" in refused.stderr
    assert call("status", "--state", "live").exit_code == 2


def test_a_script_that_is_there_is_taken_without_a_word_about_it(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    write_jobs([job("a", command=("train.py",))], "jobs.jsonl")
    done = call(*SUBMIT)
    assert (done.exit_code, done.stdout) == (0, "a\n")
    assert "train.py" not in done.stderr


def test_a_script_is_a_job_without_a_file(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    words = ("train.py", "--gpus", "1-4", "--batch", "128", "--priority", "2")
    shown = call("submit", *words, "--dry-run", "--", "--epochs", "90")
    assert (shown.exit_code, (here / "live").exists()) == (0, False)
    [found] = parse_jobs(shown.stdout.encode(), "shown")
    assert found.command == ("train.py", "--epochs", "90")
    assert (found.id, found.gpus.min, found.gpus.max, found.elastic) == ("train", 1, 4, "size")
    assert (found.batch.size, found.priority) == (128, 2)


def test_a_script_that_is_submitted_again_gets_a_new_id(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    printed = [call("submit", "train.py", "--state", "live").stdout for _ in range(3)]
    assert printed == ["train\n", "train-2\n", "train-3\n"]
    assert call("submit", "train.py", "--name", "train", "--state", "live").exit_code == 3


def test_what_a_dry_run_prints_can_be_submitted(here: Path):
    (here / "train.py").write_text("print('hello')\n")
    shown = call("submit", "train.py", "--gpus", "2", "--relaunch", "--dry-run").stdout
    (here / "jobs.jsonl").write_text(shown)
    assert '"resize":"relaunch"' in shown
    assert call(*SUBMIT).stdout == "train\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("jobs.jsonl", "--gpus", "2"), "about a script (*.py): in a file each job states them"),
        (("jobs.jsonl", "--", "--epochs"), "about a script (*.py): in a file each job states them"),
        (
            ("train.py", "--gpus", "4-1"),
            "--gpus 4-1: expected a number of GPUs, as 2, or the least and the most",
        ),
        (("train.py", "--epochs", "3"), "No such option: --epochs; what is the script's goes behind --"),
        (("train.py", "--gpus", "0"), "--gpus 0: expected a number of GPUs"),
    ],
)
def test_options_that_make_no_job_are_refused(here: Path, words: tuple[str, ...], message: str):
    (here / "train.py").write_text("print('hello')\n")
    refused = call("submit", *words, "--state", "live", columns=200)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in refused.stderr
