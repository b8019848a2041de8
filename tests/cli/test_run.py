"""``pliant run`` before anything is started, ``pliant doctor`` and ``pliant cluster``."""

import json
import os
import re
from pathlib import Path

import pytest

from pliant.cli.run import run
from pliant.schemas.errors import UsageError
from pliant.schemas.io import write_cluster
from pliant.tools.run.doctor.examine import page
from pliant.tools.run.doctor.site import Check
from tests.builders import cluster
from tests.cli.calling import call
from tests.tools.run.fake_nvml import Card, install

BEGIN = ("--policy", "fifo", "--cluster", "cluster.json")


@pytest.mark.parametrize("until_done", [False, True])
def test_without_a_schedule_dev_null_is_not_an_empty_pipe(here: Path, until_done, monkeypatch) -> None:
    with open(os.devnull) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(UsageError, match="pipe one in from pliant schedule; pliant run --follow decides"):
            run(state=Path("live"), until_done=until_done)


def test_a_folder_of_other_things_is_no_place_for_a_run(here: Path) -> None:
    (here / "project").mkdir()
    (here / "project" / "README.md").write_text("mine\n")
    write_cluster(cluster(2, slots="cpu"), "cluster.json")
    done = call("run", "--follow", "--state", "project", *BEGIN)
    assert done.exit_code == 2
    assert "project: holds README.md and nothing of a state directory" in done.stderr
    assert os.listdir("project") == ["README.md"]


def doctor(*words: str):
    return call("doctor", *words)


def test_one_line_a_check_in_a_pipe_and_80_columns_on_a_terminal() -> None:
    checks = [
        Check("ok", "pliant 0.1.0", area="versions"),
        Check("problem", "it is full " * 9, "make room " * 5, area="folder"),
    ]
    piped = page(checks, None).splitlines()
    assert [line[:19] for line in piped] == ["ok       versions  ", "problem  folder    "]
    shown = page(checks, 80).splitlines()
    assert len(shown) > len(piped)
    assert max(map(len, shown)) <= 80
    assert " ".join(" ".join(shown).split()) == " ".join(" ".join(piped).split())


def test_it_is_the_same_for_programs(tmp_path: Path) -> None:
    done = doctor("--state", str(tmp_path / "live"), "-f", "json")
    document = json.loads(done.stdout)
    assert document["schema"] == "pliant.doctor/1"
    assert {"area", "verdict", "text", "advice"} == set(document["checks"][0])
    verdicts = [check["verdict"] for check in document["checks"]]
    assert document["verdict"] == (
        "problem" if done.exit_code else "warning" if "warning" in verdicts else "ok"
    )
    assert all(check["advice"] for check in document["checks"] if check["verdict"] != "ok")


def test_a_problem_is_exit_69_and_counted_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor("--state", str(tmp_path / "file"), "--cluster", str(tmp_path / "none.json"))
    assert done.exit_code == 69
    assert re.fullmatch(r"pliant: [23] problems, \d warnings?\n", done.stderr)
    assert "none.json: no such file; mend the file" in done.stdout


def discover(*words: str):
    return call("cluster", "discover", *words)


def test_the_cluster_goes_to_stdout_or_a_file_and_words_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Card("GPU-a"), Card("GPU-b"), Card("GPU-c", lost=True))
    done = discover()
    assert done.exit_code == 0
    assert json.loads(done.stdout)["nodes"][0]["devices"] == ["GPU-a", "GPU-b"]
    assert done.stderr == "pliant: left out: GPU 2: GPU is lost\npliant: 2 GPUs on 1 node\n"
    assert discover("--quiet", "-o", str(tmp_path / "c.json")).output == ""
    assert (tmp_path / "c.json").read_text() == done.stdout
    assert call("validate", "-", stdin=done.stdout_bytes).exit_code == 0
