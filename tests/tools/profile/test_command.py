from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pliant.cli.profile import numbers, profile
from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.io import read_profile, write_jobs, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.profile.measuring.run import MeasuredProfile
from pliant.tools.profile.profile_edit import import_rows
from tests.builders import job
from tests.cli.calling import call
from tests.tools.profile.rows_builder import reduce, step


def imported(folder: Path, *rows: Any) -> str:
    path = folder / "rows.parquet"
    write_profile(Profile(rows), path)
    return str(path)


def test_imported_rows_become_a_profile_or_are_appended_to_one(tmp_path: Path) -> None:
    out = tmp_path / "profile.parquet"
    profile(imported=imported(tmp_path, step(1, 8, 0.1)), output=str(out))
    made = read_profile(out)
    assert [row.source for row in made.rows] == ["imported"]
    assert "imported_from" in dict(made.metadata)
    # Appended rows replace those of the same key.
    old, out = tmp_path / "old.parquet", tmp_path / "new.parquet"
    write_profile(Profile((step(1, 8, 0.1), step(1, 16, 0.2))), old)
    profile(imported=imported(tmp_path, step(1, 16, 0.3)), append=str(old), output=str(out))
    assert [row.step_seconds for row in read_profile(out).rows] == [0.1, 0.3]
    # Lists of numbers.
    assert numbers("4,1,2,2", "--gpus") == (1, 2, 4)
    assert numbers("auto", "--gpus") is None
    for wrong in ("", "0", "1,x", "1,,2", "-1"):
        with pytest.raises(UsageError, match="--gpus"):
            numbers(wrong, "--gpus")


def test_what_is_wrong_is_refused_before_anything_is_measured(monkeypatch, tmp_path):
    jobs, out = str(tmp_path / "no-such-file"), str(tmp_path / "p")
    with pytest.raises(UsageError, match="give one of the two"):
        profile(jobs, imported=imported(tmp_path, step(1, 8, 0.1)), output=out)
    with pytest.raises(BadInputError, match="no such file"):
        profile(jobs, append=str(tmp_path / "old.parquet"), output=out)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="not written to a terminal"):
        profile(jobs)


def test_what_was_measured_is_written_though_a_model_failed(monkeypatch, tmp_path):
    made = MeasuredProfile(Profile((step(1, 8, 0.1),)), ('model "bad" failed: KeyError: 7',))
    monkeypatch.setattr("pliant.tools.profile.measuring.run.measure", lambda *_args, **_more: made)
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "profile.parquet"
    write_jobs([job("a")], jobs)
    with pytest.raises(JobsFailedError, match="KeyError: 7"):
        profile(str(jobs), output=str(out))
    assert len(read_profile(out).rows) == 1


def test_measured_rows_keep_the_error_of_the_model_on_them(tmp_path, monkeypatch):
    rows = (step(1, 8, 0.1), step(1, 16, 0.2), step(2, 8, 0.15), step(2, 16, 0.25), step(2, 32, 0.9))
    monkeypatch.setattr(
        "pliant.tools.profile.measuring.run.measure", lambda *_args, **_named: MeasuredProfile(Profile(rows))
    )
    write_jobs([job("a", model="net", command=("train.py",))], tmp_path / "jobs.jsonl")
    made = tmp_path / "p.parquet"
    profile(str(tmp_path / "jobs.jsonl"), output=str(made))
    errors = {(row.gpus, row.local_batch): row.model_error for row in read_profile(made).rows}
    assert errors[1, 8] is None, "one worker is measured, not modelled"
    assert (errors[2, 32] or 0.0) < -0.3


# Profiles put together, compared and thinned out.


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``new`` was measured later than ``old``: one row beside others, one slower, one new, one gone."""
    monkeypatch.chdir(tmp_path)
    old = [step(1, 4, 0.1), step(1, 8, 0.2), step(1, 16, 0.4), step(2, 4, 0.15)]
    new = [replace(step(1, 4, 0.9), busy_share=0.5), step(1, 8, 0.3), step(2, 4, 0.15), step(2, 8, 0.2)]
    for name, rows, at in (("old", old, 1e9), ("new", new, 2e9)):
        write_profile(Profile(tuple(replace(row, measured_at=at) for row in rows)), f"{name}.parquet")
    return tmp_path


def seconds(name: str) -> dict[tuple[int, int], float | None]:
    return {(row.gpus, row.local_batch): row.step_seconds for row in read_profile(name).rows}


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_of_like_rows_the_newest_undisturbed_one_is_kept(files, order):
    done = call("profile", "merge", *(f"{name}.parquet" for name in order), "-o", "both.parquet")
    assert (done.exit_code, done.stderr) == (0, "pliant: 5 rows of 8\n")
    assert seconds("both.parquet") == {(1, 4): 0.1, (1, 8): 0.3, (1, 16): 0.4, (2, 4): 0.15, (2, 8): 0.2}


def test_profiles_are_compared_and_rows_taken_out(files: Path) -> None:
    done = call("profile", "diff", "old.parquet", "new.parquet")
    assert [line.split()[2:] for line in done.stdout.splitlines()[1:]] == [
        ["1", "4", "100", "900", "+800%"],
        ["1", "8", "200", "300", "+50%"],
        ["1", "16", "400", "-", "gone"],
        ["2", "8", "-", "200", "new"],
    ]
    assert call("profile", "diff", "old.parquet", "old.parquet").stdout == ""
    # Rows that match all options are taken out.
    call("profile", "prune", "new.parquet", "--disturbed", "-o", "kept.parquet")
    assert set(seconds("kept.parquet")) == {(1, 8), (2, 4), (2, 8)}
    none = call("profile", "prune", "new.parquet", "--disturbed", "--before", "2020-01-01", "-o", "4.parquet")
    assert none.stderr == "pliant: 0 rows of 4 taken out\n"
    assert call("profile", "prune", "new.parquet").exit_code == 2
    assert call("profile", "prune", "old.parquet", "--before", "2020-01-01", "-o", "no").exit_code == 3
    assert not (files / "no").exists()


# Rows measured elsewhere.


HEADER = (
    "kind,model,gpu_type,nodes,gpus,placement,local_batch,accum_steps,step_seconds,iterations,feasible,source"
)


def csv(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def test_rows_of_other_programs_need_only_some_columns(tmp_path: Path) -> None:
    path = csv(tmp_path, 'train,net,v100,2,6,"4,2",32,1,0.25,100,true,measured')
    (row,) = import_rows(path)
    assert (row.model, row.gpus, row.placement, row.step_seconds) == ("net", 6, "4,2", 0.25)
    assert (row.source, row.measured_at, row.feasible) == ("imported", None, True)
    # What did not fit has empty cells and modelled rows stay modelled.
    lines = ("train,net,v100,1,1,1,64,1,,0,false,imported", "train,net,v100,1,1,1,8,1,1.5,0,true,modelled")
    modelled, misfit = import_rows(csv(tmp_path, *lines))
    assert (misfit.feasible, misfit.step_seconds, modelled.source) == (False, None, "modelled")
    # A Parquet file needs only the columns.
    path = tmp_path / "rows.parquet"
    write_profile(Profile((step(1, 8, 0.1), reduce(2, 100, 0.1))), path)
    found = [(row.kind, row.source) for row in import_rows(path)]
    assert found == [("allreduce", "imported"), ("train", "imported")]
    # Parquet from elsewhere needs only the columns.
    values = ["train", "net", "v100", 1, 1, "1", 8, 1, 0.1, 3, True, "imported"]
    columns = {name: [value] for name, value in zip(HEADER.split(","), values, strict=True)}
    pq.write_table(pa.table(columns), tmp_path / "p")
    (row,) = import_rows(tmp_path / "p")
    assert row.local_batch == 8


def test_every_bad_cell_is_told_with_its_line(tmp_path: Path) -> None:
    path = csv(
        tmp_path,
        "train,net,v100,1,1,1,eight,1,0.1,3,true,imported",
        "train,net,v100,1,1,1,8,1,fast,3,maybe,imported",
    )
    with pytest.raises(BadInputError) as error:
        import_rows(path)
    assert [str(problem).removeprefix(str(tmp_path)) for problem in error.value.problems] == [
        "/rows.csv:2: /local_batch: 'eight', expected a whole number",
        "/rows.csv:3: /step_seconds: 'fast', expected a number",
        "/rows.csv:3: /feasible: 'maybe', expected true or false",
    ]
    # A picture is not rows.
    path = tmp_path / "rows.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(BadInputError, match="neither Parquet nor text"):
        import_rows(path)


@pytest.mark.parametrize(
    ("header", "line", "message"),
    [
        ("kind,model", "train,net", "/gpu_type: column is missing"),
        (f"{HEADER},colour", "train,net,v100,1,1,1,8,1,0.1,3,true,imported,x", "/colour: is not a column"),
        (HEADER, "train,net,v100,1,1,1,8,1,nan,3,true,imported", "step_seconds"),
        (HEADER, "train,net,v100,1,1,1,8,1,0.1,3,true,imported,1,2", "more than the 12 fields"),
        (HEADER, "train,net,v100,1,1,1,,1,0.1,3,true,imported", "local_batch"),
    ],
)
def test_columns_and_values_that_no_profile_may_hold(tmp_path: Path, header, line, message) -> None:
    with pytest.raises(BadInputError, match=message):
        import_rows(csv(tmp_path, line, header=header))
