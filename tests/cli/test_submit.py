from __future__ import annotations

from pathlib import Path

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
