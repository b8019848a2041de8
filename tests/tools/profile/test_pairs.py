"""What a profile says of two jobs on the same GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import profile_from_columns, profile_to_columns
from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.throughput import UNKNOWN, Load, PairTable
from tests.tools.profile.rows_builder import step

A, B = Load("a", 8), Load("b", 4)


def beside(row: ProfileRow, other: Load) -> ProfileRow:
    return replace(row, kind="pair", beside_model=other.model, beside_batch=other.local_batch)


def rows(
    gpus: int | str = 1, a_seconds: float | None = 0.2, b_seconds: float | None = 0.8
) -> list[ProfileRow]:
    """Alone, a step of a takes 0.1 s and one of b 0.2 s."""
    return [
        step(gpus, 8, 0.1, model="a"),
        step(gpus, 4, 0.2, model="b"),
        beside(step(gpus, 8, a_seconds, model="a"), B),
        beside(step(gpus, 4, b_seconds, model="b"), A),
    ]


def test_each_keeps_the_part_of_its_speed_that_was_measured() -> None:
    table = PairTable(rows())
    assert table.measured(A, B, "gpu", (1,)) == (0.5, 0.25)
    assert table.measured(B, A, "gpu", (1,)) == (0.25, 0.5)


def test_a_pair_that_did_not_fit_does_not_share() -> None:
    assert PairTable(rows(1, None, None)).measured(A, B, "gpu", (1,)) is None


def test_another_batch_or_gpu_type_was_not_measured() -> None:
    table = PairTable(rows())
    assert table.measured(Load("a", 16), B, "gpu", (1,)) == UNKNOWN
    assert table.measured(A, B, "other", (1,)) == UNKNOWN
    assert table.measured(A, A, "gpu", (1,)) == UNKNOWN


def test_another_placement_keeps_the_mean_of_those_measured() -> None:
    table = PairTable([*rows(), *rows(2, 0.1, 0.4)])
    assert table.measured(A, B, "gpu", (2,)) == (1.0, 0.5)
    assert table.measured(A, B, "gpu", (2, 2)) == (0.75, 0.375)


def test_what_did_not_fit_somewhere_does_not_share_elsewhere() -> None:
    assert PairTable([*rows(), *rows(2, None, None)]).measured(A, B, "gpu", (4,)) is None


def test_no_job_is_faster_for_company() -> None:
    assert PairTable(rows(1, 0.09, 0.2)).measured(A, B, "gpu", (1,)) == (1.0, 1.0)


def test_memory_is_that_of_the_next_batch_measured() -> None:
    small, large = replace(step(1, 8, 0.1), peak_memory=100), replace(step(2, 16, 0.2), peak_memory=170)
    table = PairTable([small, large])
    assert table.memory(Load("net", 5), "gpu") == 100
    assert table.memory(Load("net", 9), "gpu") == 170
    assert table.memory(Load("net", 17), "gpu") is None


def test_rows_of_pairs_go_through_columns_and_others_have_no_such_columns() -> None:
    columns = profile_to_columns(rows())
    assert list(profile_from_columns(columns)) == rows()
    assert "beside_model" not in profile_to_columns(rows()[:2])


@pytest.mark.parametrize(
    "wrong",
    [replace(rows()[2], beside_batch=None), replace(rows()[0], beside_model="b", beside_batch=4)],
)
def test_only_rows_of_pairs_name_another_job(wrong: ProfileRow) -> None:
    columns = profile_to_columns([*rows(), wrong])
    with pytest.raises(BadInputError, match="contradicts kind"):
        profile_from_columns(columns)
