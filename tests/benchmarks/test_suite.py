"""How the benchmark of the test suite plants faults and counts processor time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.parts import cpu_of_all, mutants
from benchmarks.parts.figure import ROOT
from benchmarks.parts.mutants import Mutant, mutated

TEXT = """\
def least(values, low: int = 1):
    if not values or len(values) < 2:
        raise ValueError("few")
    values.sort()
    return values[0] + low
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in mutants.PRODUCT:
        (tmp_path / folder).mkdir()
    (tmp_path / "tools" / "least.py").write_text(TEXT)
    return tmp_path


def test_a_fault_changes_one_place_of_a_drawn_line(repository: Path) -> None:
    drawn = mutants.draw(repository, count=9)
    assert drawn == mutants.draw(repository, count=9)
    assert {mutant.line for mutant in drawn} == {1, 2, 3, 4, 5}
    for mutant in drawn:
        text = mutated(TEXT, mutant)
        assert text is not None
        assert text != TEXT
        compile(text, "least.py", "exec")
    kinds = Counter(kind for node, kind, _ in mutants._changes_of(mutants.ast.parse(TEXT)))
    assert kinds == {"constant": 3, "comparison": 1, "operator": 3, "statement": 3}


def test_a_line_that_moved_is_looked_up_and_one_that_is_gone_is_not() -> None:
    mutant = Mutant("least.py", 4, 4, "statement", "values.sort()", "pass")
    before = TEXT.splitlines()
    assert mutated("import os\n\n" + TEXT, mutant, before) == "import os\n\n" + TEXT.replace(
        "values.sort()", "pass"
    )
    assert mutated(TEXT.replace("values.sort()", "values = sorted(values)"), mutant, before) is None


def test_a_module_has_the_tests_that_import_it() -> None:
    assert mutants.tests_of(ROOT, "tools/schedule/policies/gavel.py")[0].endswith("/test_gavel.py")
    assert mutants.tests_of(ROOT, "cli/whatif.py")


def test_the_faults_of_the_record_name_lines_and_results() -> None:
    record = json.loads(mutants.RECORD.read_text())
    assert len(record["mutants"]) == mutants.COUNT
    assert all(isinstance(row["killed_before"], bool) for row in record["mutants"])


def test_processor_time_and_the_exit_code_are_written(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    assert cpu_of_all.main([str(file), sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert json.loads(file.read_text()).keys() == {"cpu_s", "wall_s"}
