"""The files between launcher and workers: absent, unreadable and damaged are three things."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError
from pliant.tools.run.service.commands import last_generation, read_plan, write_plan
from pliant.tools.run.statedir.contract.folders import (
    DamagedError,
    JobDir,
    UnreadableError,
    read_record,
    write_record,
)
from pliant.tools.run.statedir.contract.plan import Member, Plan, WorkerOutcome

PLAN = Plan(job="a", generation=3, attempt=2, members=(Member(slot="n0/0", node="n0", address="n0"),))


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    left, read = [number] * times, Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if left:
            raise OSError(left.pop(), "it cannot be")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


def test_a_file_names_its_schema_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_record(path, "plan", PLAN)
    assert json.loads(path.read_text())["schema"] == "pliant.plan/1"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_record(path, "plan", Plan) == PLAN


def test_what_is_not_there_was_never_written(tmp_path: Path) -> None:
    assert read_record(tmp_path / "plan.json", "plan", Plan) is None
    assert WorkerOutcome.read(tmp_path / "worker-0.json") is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EIO, errno.EACCES])
def test_what_cannot_be_read_is_tried_again_and_is_not_taken_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "plan.json"
    write_record(path, "plan", PLAN)
    refuse(monkeypatch, number, times=1)
    assert read_record(path, "plan", Plan) == PLAN
    refuse(monkeypatch, number, times=2)
    with pytest.raises(UnreadableError, match=r"plan\.json: cannot be read: it cannot be"):
        read_record(path, "plan", Plan)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "pliant.plan/1", "job": 7}'])
def test_what_makes_no_sense_is_damaged(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(DamagedError):
        read_record(path, "plan", Plan)


def test_an_unknown_major_version_is_refused_and_a_newer_minor_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    fields = json.loads(PLAN.model_dump_json())
    path.write_text(json.dumps({"schema": "pliant.plan/2", **fields}))
    with pytest.raises(BadInputError, match="major version 2 of 'plan' is unknown") as refused:
        read_record(path, "plan", Plan)
    assert not isinstance(refused.value, DamagedError)
    path.write_text(json.dumps({"schema": "pliant.plan/1.7", **fields, "colour": "red"}))
    assert read_record(path, "plan", Plan) == PLAN
    path.write_text(json.dumps(fields))
    assert read_record(path, "plan", Plan) == PLAN, "files of the first version name no schema"


@pytest.mark.parametrize("lost", [False, True])
def test_a_plan_that_is_damaged_or_lost_is_replaced_by_its_copy(tmp_path: Path, lost: bool) -> None:
    job = JobDir(tmp_path)
    job.attempt(2).path.mkdir(parents=True)
    for generation in (9, 10):
        write_plan(job, PLAN.model_copy(update={"generation": generation}))
    job.plan.unlink() if lost else job.plan.write_text("{")
    found = read_plan(job)
    assert found is not None
    assert found.generation == last_generation(job) == 10
    assert json.loads(job.plan.read_text())["generation"] == 10
