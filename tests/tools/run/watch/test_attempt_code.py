from pathlib import Path

from pliant.tools.run.backends.record_code import SCHEMA
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.watch.attempt_code import CodeRecord, code_facts, code_fields, differing, recorded_code

FIRST = CodeRecord(
    host="n0", python="3.11.7", torch="2.1", folder="/w", commit="a" * 40, changes="1f", files={"t.py": "0"}
)


def changed(record: CodeRecord = FIRST, **fields: object) -> CodeRecord:
    return record.model_copy(update=fields)


def test_what_differs_is_named() -> None:
    assert FIRST.differences(FIRST) == []
    assert changed(host="n1", driver="550").differences(FIRST) == []
    files = {"t.py": "1", "new.py": "2"}
    later = changed(commit="b" * 40, changes="2f", files=files, python="3.12.1", torch=None)
    found = later.differences(FIRST)
    assert found == ["commit aaaaaaaaaa → bbbbbbbbbb", "new.py", "t.py", "Python 3.11.7 → 3.12.1"]
    # Of very many files not all are named, and what was never seen is not compared.
    assert changed(changes="2f").differences(FIRST) == ["files that are not committed"]
    assert changed(folder=None, commit=None, changes="", files={}).differences(FIRST) == []


def test_attempts_compare_with_the_last_and_units_with_the_first(tmp_path: Path) -> None:
    dirs = StateDir(tmp_path)
    written = {
        (1, 0): FIRST,
        (2, 0): changed(commit="b" * 40),
        (2, 10): changed(commit="b" * 40, changes="2f", files={"t.py": "1"}, host="n1"),
        (2, 9): changed(commit="b" * 40),
        (10, 0): changed(commit="b" * 40),
    }
    for (attempt, unit), record in written.items():
        path = dirs.job("a").attempt(attempt).code(unit)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"schema":"{SCHEMA}",{record.model_dump_json(exclude={"attempt", "unit"})[1:]}')
    for name, text in (
        ("code-1.json", "{"),
        ("code-x.json", "{}"),
        ("code-2.json", '{"schema":"pliant.code/9"}'),
    ):
        (dirs.job("a").attempt(1).path / name).write_text(text)
    records = recorded_code(dirs, "a")
    assert [(each.attempt, each.unit) for each in records] == [(1, 0), (2, 0), (2, 9), (2, 10), (10, 0)]
    found = [
        (record.attempt, record.unit, before.attempt, what) for record, before, what in differing(records)
    ]
    assert found == [(2, 0, 1, ["commit aaaaaaaaaa → bbbbbbbbbb"]), (2, 10, 2, ["t.py"])]
    assert [*code_facts(records)] == [
        ("code", "commit bbbbbbbbbb, not committed 1f (t.py), Python 3.11.7, torch 2.1, host n0"),
        ("differs", "attempt 2 runs other code than attempt 1: commit aaaaaaaaaa → bbbbbbbbbb"),
        ("differs", "unit 10 on n1 runs other code than unit 0: t.py"),
    ]
    fields = code_fields(records)
    assert fields["code"]["attempt"] == 10
    assert [each["from_attempt"] for each in fields["code_differences"]] == [1, 2]
    assert code_fields([]) == {"code": None, "code_differences": []}
