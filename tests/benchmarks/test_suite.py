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


def test_faults_are_looked_up_by_line_and_have_their_tests() -> None:
    mutant = Mutant("least.py", 4, 4, "statement", "values.sort()", "pass")
    before = TEXT.splitlines()
    assert mutated("import os\n\n" + TEXT, mutant, before) == "import os\n\n" + TEXT.replace(
        "values.sort()", "pass"
    )
    assert mutated(TEXT.replace("values.sort()", "values = sorted(values)"), mutant, before) is None
    # A module has the tests that import it.
    assert mutants.tests_of(ROOT, "tools/schedule/policies/gavel.py")[0].endswith("/test_gavel.py")
    assert mutants.tests_of(ROOT, "cli/whatif.py")
    # The faults of the record name lines and results.
    record = json.loads(mutants.RECORD.read_text())
    assert len(record["mutants"]) == mutants.COUNT
    assert all(isinstance(row["killed_before"], bool) for row in record["mutants"])


def test_processor_time_and_the_exit_code_are_written(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    assert cpu_of_all.main([str(file), sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert json.loads(file.read_text()).keys() == {"cpu_s", "wall_s"}
