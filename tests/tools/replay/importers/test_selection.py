"""Which jobs an import keeps, and how far apart they arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.replay.importers.run import Selection
from tests.tools.replay.importers.importing import HELIOS, TIRESIAS, run, text


def hourly(folder: Path, jobs: int = 5) -> str:
    """A job of one GPU an hour from 2020-04-04 00:00, of two users and two virtual clusters in turn."""
    rows = (
        f"j{n},u{n % 2},v{n % 2},1,4,1,COMPLETED,2020-04-04 {n:02}:00:00,2020-04-04 {n:02}:01:00,x,60,60"
        for n in range(jobs)
    )
    return text(folder, "cluster_log.csv", HELIOS, *rows)


def kept(tmp_path: Path, **selection: object) -> list[tuple[str, float]]:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    jobs = run(tmp_path, "helios", hourly(tmp_path), selection=chosen).jobs
    return [(job.id, job.submit_time) for job in jobs]


def test_a_span_holds_its_beginning_and_not_its_end(tmp_path: Path) -> None:
    expected = [("j1", 0.0), ("j2", 3600.0)]
    assert kept(tmp_path, begin="1h", end="3h") == expected
    assert kept(tmp_path, begin="2020-04-04 01:00", end="2020-04-04T05:00:00+02:00") == expected


def test_users_and_virtual_clusters(tmp_path: Path) -> None:
    assert [job for job, _ in kept(tmp_path, users=("u1",))] == ["j1", "j3"]
    assert [job for job, _ in kept(tmp_path, groups=("v0",))] == ["j0", "j2", "j4"]
    with pytest.raises(BadInputError, match=r"no job in 5 rows \(5 are of other users"):
        kept(tmp_path, users=("nobody",))


def test_a_sample_is_always_the_same(tmp_path: Path) -> None:
    first = kept(tmp_path, sample=0.4)
    assert len(first) == 2
    assert kept(tmp_path, sample=0.4) == first


def test_scaled_time_moves_submissions_and_leaves_work(tmp_path: Path) -> None:
    assert [time_s for _, time_s in kept(tmp_path, scale_time=0.5)] == [0.0, 1800.0, 3600.0, 5400.0, 7200.0]


def test_every_row_is_kept_or_accounted_for(tmp_path: Path) -> None:
    chosen = Selection(begin="1h", users=("u0",), sample=0.5)
    summary = run(tmp_path, "helios", hourly(tmp_path, 9), selection=chosen).summary
    assert summary.rows == summary.jobs + summary.dropped.total()
    assert summary.dropped == {
        "are of other users": 4,
        "were submitted outside of --from and --to": 1,
        "are not in the sample": 2,
    }


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"sample": 0.0}, "--sample 0: expected"),
        ({"sample": 1.5}, "--sample 1.5: expected"),
        ({"scale_time": 0.0}, "--scale-time 0: expected"),
        ({"begin": "soon"}, "--from soon: expected a length of time"),
        ({"begin": "3h", "end": "1h"}, "--to 1h: expected a time after --from"),
    ],
)
def test_what_cannot_be_kept(tmp_path: Path, selection: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kept(tmp_path, **selection)


def test_a_trace_without_dates_has_lengths_of_time_alone(tmp_path: Path) -> None:
    path = text(tmp_path, "jobs.csv", TIRESIAS, "1,1,30,6,vgg,10,30", "2,1,90,6,vgg,10,30")
    (job,) = run(tmp_path, "tiresias", path, selection=Selection(begin="60s")).jobs
    assert (job.id, job.submit_time) == ("2", 0.0)
    with pytest.raises(UsageError, match="this trace has no dates"):
        run(tmp_path, "tiresias", path, selection=Selection(begin="2020-04-04"))
