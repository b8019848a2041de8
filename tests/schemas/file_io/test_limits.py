"""Small files that would be large in memory are refused by what they would become, before they become it."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pliant.schemas import io
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io import limits
from pliant.schemas.file_io.events import event_columns
from pliant.schemas.kinds import validate_file
from pliant.schemas.profile import PROFILE, ProfileRow

ROW = ProfileRow("train", "m", "gpu", 2, 6, "4,2", 8, step_seconds=0.5, samples_per_second=96.0)
RAISED = "PLIANT_INPUT_LIMITS=10 in the environment makes all such limits ten times as large"


def profile(path: Path, rows: int, model: str = "m", **how: object) -> Path:
    """A profile of equal rows, which Parquet keeps as one."""
    columns = {name: pa.array([value] * rows) for name, (value,) in io.profile_to_columns([ROW]).items()}
    columns["model"] = pa.DictionaryArray.from_arrays(pa.array([0] * rows), pa.array([model])).cast("string")
    table = pa.table(
        {name: column.cast(PROFILE.arrow().field(name).type) for name, column in columns.items()}
    )
    pq.write_table(
        table.replace_schema_metadata({"schema": "pliant.profile/1"}), path, compression="zstd", **how
    )
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        io.read_profile(path)
    (problem,) = caught.value.problems
    return problem.message


@pytest.fixture
def one_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files may become that large, so that a test need not write large ones."""
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)


def test_many_rows_in_a_small_file(tmp_path: Path) -> None:
    path = profile(tmp_path / "p.parquet", 200_000)
    size = path.stat().st_size
    assert size < 25_000
    assert refusal(path) == f"expands too far: 200,000 rows in a file of {size:,} bytes; {RAISED}"
    with pytest.raises(BadInputError, match="200,000 rows"):
        validate_file(path)


@pytest.mark.parametrize("dictionary", [True, False])
def test_long_texts_in_a_small_file(tmp_path: Path, dictionary: bool) -> None:
    path = profile(tmp_path / "p.parquet", 500, "m" * 200_000, use_dictionary=dictionary)
    assert path.stat().st_size < 100_000
    assert refusal(path).startswith("expands too far: 100,0")
    path = profile(path, 1, "m" * (limits.LONGEST_TEXT + 1), use_dictionary=dictionary)
    assert refusal(path) == f"holds a text of more than 16,777,216 characters; {RAISED}"


@pytest.mark.usefixtures("one_megabyte")
@pytest.mark.parametrize("nested", ["[" + "[]," * 30_000 + "[]]", '[{"a":1}' + ',{"a":1}' * 20_000 + "]"])
def test_json_whose_values_take_more_than_its_text(tmp_path: Path, nested: str) -> None:
    """A list of nothing is two characters of a text, and thirty times as much in memory."""
    path = profile(tmp_path / "p.parquet", 1, nested)
    assert path.stat().st_size < 10_000
    assert len(nested) < 200_000
    assert refusal(path).startswith("expands too far: nested values in its texts in a file of")


def test_many_values_in_one_row_or_in_many_columns(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"model": pa.array([[0] * 3_000_000])}), path)
    assert refusal(path).startswith("expands too far: 3,000,000 values in")
    pq.write_table(pa.table({"model": pa.array([["m"] * 3])}), path)
    assert "expected one value a row" in refusal(path)
    pq.write_table(pa.table({f"c{number}": pa.nulls(40_000) for number in range(100)}), path)
    assert refusal(path).startswith("expands too far: 4,000,000 values in")


@pytest.mark.usefixtures("one_megabyte")
def test_the_environment_raises_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = profile(tmp_path / "p.parquet", 3000)
    assert refusal(path).endswith(RAISED)
    monkeypatch.setenv("PLIANT_INPUT_LIMITS", "10")
    assert len(io.read_profile(path).rows) == 3000
    profile(path, 30_000)
    assert "PLIANT_INPUT_LIMITS=100 in the environment" in refusal(path)


@pytest.mark.parametrize("stated", ["many", "0", "-1", "nan", "inf", ""])
def test_a_factor_that_is_no_number_is_refused(tmp_path, monkeypatch, stated) -> None:
    monkeypatch.setenv("PLIANT_INPUT_LIMITS", stated)
    with pytest.raises(UsageError, match=r"PLIANT_INPUT_LIMITS is .*, expected a number above 0"):
        io.read_profile(profile(tmp_path / "p.parquet", 1))


ALIKE = [Event(0.0, "decision", detail={"policy": "fifo"})] * 3000


@pytest.mark.usefixtures("one_megabyte")
def test_a_report_refuses_an_event_file_that_expands_too_far(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    io.write_events(ALIKE, path)
    pq.write_table(pq.read_table(path), path, compression="zstd")
    with pytest.raises(BadInputError):
        next(event_columns(path.read_bytes(), "e"))
    with pytest.raises(BadInputError, match="3,000 rows"):
        io.read_events(path)


@pytest.mark.usefixtures("one_megabyte")
@pytest.mark.parametrize("factor", ["1", "100"])
def test_what_is_written_can_be_read_however_alike_its_rows(tmp_path, monkeypatch, factor) -> None:
    monkeypatch.setenv("PLIANT_INPUT_LIMITS", factor)
    io.write_events(ALIKE, tmp_path / "e.parquet")
    monkeypatch.delenv("PLIANT_INPUT_LIMITS")
    assert len(io.read_events(tmp_path / "e.parquet")) == len(ALIKE)


def test_a_log_of_many_events_is_within_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million-job replay has the density of this one; nothing is granted beyond a part of its size."""
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    drawn = random.Random(0)
    times = sorted(drawn.uniform(0, 1e6) for _ in range(20_000))
    details = [None, {"reason": "a larger size is worth its cost"}]
    events = [
        Event(time, "grow", f"job-{drawn.randrange(2000)}", gpus=8, detail=drawn.choice(details))
        for time in times
    ]
    io.write_events(events, tmp_path / "e.parquet")
    assert len(io.read_events(tmp_path / "e.parquet")) == len(events)
