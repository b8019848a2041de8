from __future__ import annotations

import json
import re
from pathlib import Path

from pliant.tools.run.doctor import Check, page
from tests.cli.calling import call


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
