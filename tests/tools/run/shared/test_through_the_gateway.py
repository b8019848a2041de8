"""A shared run from end to end: real accounts, the commands that they use, and real training."""

import json
from pathlib import Path

import pytest

from pliant.tools.run.statedir.state import read_log
from tests.tools.run.gateway.people import shared_run
from tests.tools.run.shared.in_sight import in_sight
from tests.tools.run.shared.users import ANN, BOB, of_user
from tests.tools.run.site import until
from tests.tools.run.test_training import ELASTIC

pytestmark = pytest.mark.torch
SAID = "for her eyes"


def test_a_job_trains_as_its_account_and_others_have_no_part(shared_folder: Path):
    with shared_run(shared_folder, *in_sight(shared_folder), idle=False) as run:
        (run.home(ANN) / "train.py").write_text(f"print({SAID!r}, flush=True)\n{ELASTIC}")
        done = run.by(ANN, "submit train.py --gpus 1-2 --batch 8 --name a -- 100000 0.5")
        assert (done.exit_code, done.stdout) == (0, "a\n"), done.stderr

        until(
            lambda: (
                (job := read_log(run.state).jobs.get("a")) and job.gpus == 2 and job.attempt.change is None
            )
        )
        job = read_log(run.state).jobs["a"]
        assert (job.uid, job.job.user, job.job.workdir) == (ANN, str(ANN), str(run.home(ANN)))
        assert of_user(ANN)
        assert of_user(BOB) == []

        assert SAID in run.by(ANN, "log a").stdout
        assert "running" in run.by(ANN, "status a").stdout
        explained = run.by(ANN, "why a --json")
        assert explained.exit_code == 0, explained.stderr
        assert json.loads(explained.stdout)["cost"]["held_gpu_seconds"] > 0
        shown = run.by(ANN, "stack a")
        assert (shown.exit_code, shown.stdout.startswith(("1 worker (", "2 workers ("))) == (0, True), shown
        public = json.loads(run.by(BOB, "why a --json").stdout)
        assert (public["job"]["id"], public["cost"]) == ("a", None)
        assert str(run.home(ANN)) not in json.dumps(public)

        run.refused(BOB, "stack a")

        assert run.by(ANN, "cancel a").exit_code == 0
        until(lambda: of_user(ANN) == [])
