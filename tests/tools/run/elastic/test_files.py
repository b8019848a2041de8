"""Checkpoints, plans and addresses: what a worker reads and writes."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.tools.run.elastic.context import WorkerContext, find_context
from pliant.tools.run.elastic.loop.data_loader import DataSource, to_device
from pliant.tools.run.elastic.membership.interface import own_address
from pliant.tools.run.elastic.membership.plan_watch import PlanWatch
from pliant.tools.run.elastic.state.checkpoint import FORMAT, Checkpoints
from pliant.tools.run.elastic.state.state import generator_states, restore_generators, seed_everything
from pliant.tools.run.service.attempt.plan_file import write_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_SLOT, SLOT_FROM_RANK, Plan
from tests.tools.run.site import until

PRESENT = """
import sys
from pathlib import Path
from pliant.tools.run.statedir.contract.presence import Presence

Presence(Path(sys.argv[1])).begin()
sys.stdin.read()
"""


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def plan(generation: int = 1, **fields: Any) -> Plan:
    members = tuple({"slot": f"n{i}/0", "node": f"n{i}", "address": f"10.0.0.{i}"} for i in range(2))
    record = {"job": "a", "generation": generation, "attempt": 1, "members": members, **fields}
    return Plan.model_validate(record)


def put(folder: Path, content: Plan) -> JobDir:
    job = JobDir(folder)
    job.attempt(content.attempt).path.mkdir(parents=True, exist_ok=True)
    write_plan(job, content)
    return job


class TestCheckpoints:
    """Whole or not there."""

    def test_the_bytes_of_a_checkpoint_are_in_memory_once(self, tmp_path: Path) -> None:
        state = {str(number): torch.zeros(1 << 18) for number in range(16)}
        tracemalloc.start()
        try:
            path = Checkpoints(tmp_path).save(state, 1)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 1.5 * path.stat().st_size

    def test_the_newest_two_are_kept_and_the_newest_is_loaded(self, tmp_path: Path) -> None:
        kept = Checkpoints(tmp_path / "checkpoints")
        for step in (5, 10, 15, 1000):
            kept.save({"weights": torch.full((3,), float(step)), "nested": OrderedDict(step=step)}, step)
        assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == [
            "step-000000000015.ckpt",
            "step-000000001000.ckpt",
        ]
        state = kept.load().state
        assert state is not None
        assert state["weights"].tolist() == [1000.0] * 3

    def test_who_saves_alone_leaves_the_one_of_a_worker_that_is_a_step_further(self, tmp_path: Path) -> None:
        kept = Checkpoints(tmp_path)
        kept.save({"step": 9}, 9)
        kept.save({"step": 11}, 11, alone=True)
        kept.save({"step": 10}, 10, alone=True)
        assert kept.load().state == {"step": 11}
        kept.save({"step": 10}, 10)
        assert kept.load().state == {"step": 10}, "of a past that is no more, where all save together"

    @pytest.mark.parametrize(
        "damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:-9] + b"x" * 9]
    )
    def test_a_damaged_one_is_passed_over_and_named(self, tmp_path: Path, damage: Any) -> None:
        kept = Checkpoints(tmp_path)
        kept.save({"step": 1}, 1)
        newest = kept.save({"step": 2}, 2)
        newest.write_bytes(damage(newest.read_bytes()))
        loaded = kept.load()
        assert loaded.state == {"step": 1}
        assert loaded.problems == (f"{newest}: the checkpoint is torn or damaged",)

    def test_one_of_another_version_is_named_as_such(self, tmp_path: Path) -> None:
        kept = Checkpoints(tmp_path)
        path = kept.save({"step": 2}, 2)
        path.write_bytes(path.read_bytes().replace(FORMAT.encode(), b"pliant.checkpoint/1", 1))
        with pytest.raises(BadInputError, match=rf"is pliant\.checkpoint/1, expected {FORMAT}"):
            kept.load()

    def test_without_a_checkpoint_training_starts_anew(self, tmp_path: Path) -> None:
        assert Checkpoints(tmp_path / "none").load().state is None

    def test_with_damaged_checkpoints_only_nothing_starts_anew_in_silence(self, tmp_path: Path) -> None:
        kept = Checkpoints(tmp_path)
        for step in (1, 2):
            kept.save({"step": step}, step).write_bytes(b"torn")
        with pytest.raises(BadInputError, match=r"no checkpoint is whole.*000002.*000001"):
            kept.load()

    def test_damaged_ones_never_crowd_out_whole_ones(self, tmp_path: Path) -> None:
        before = Checkpoints(tmp_path)
        before.save({"step": 1}, 1)
        before.save({"step": 4}, 4)
        for step in (7, 8):
            (tmp_path / f"step-{step:012}.ckpt").write_bytes(b"torn")
        resumed = Checkpoints(tmp_path)
        assert resumed.load().state == {"step": 4}
        resumed.save({"step": 5}, 5)
        assert [path.stem[-1] for path in sorted(tmp_path.iterdir())] == ["4", "5"]

    def test_a_damaged_one_in_between_is_not_one_of_the_two(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path).save({"step": 1}, 1)
        (tmp_path / f"step-{2:012}.ckpt").write_bytes(b"torn")
        resumed = Checkpoints(tmp_path)
        resumed.load()
        resumed.save({"step": 3}, 3)
        assert [path.stem[-1] for path in sorted(tmp_path.iterdir())] == ["1", "3"]
        resumed.save({"step": 2}, 2)
        assert resumed.load().state == {"step": 2}

    def test_a_full_disk_leaves_the_older_ones_and_no_remains(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = Checkpoints(tmp_path)
        older = kept.save({"step": 1}, 1)

        def full(descriptor: int, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(ServiceMissingError, match="no space left"):
                kept.save({"step": 2}, 2)
        assert list(tmp_path.iterdir()) == [older]
        assert kept.load().state == {"step": 1}

    def test_what_a_killed_writer_left_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / ".pliant-0123.tmp").write_bytes(b"half")
        path = Checkpoints(tmp_path).save({}, 1)
        assert list(tmp_path.iterdir()) == [path]


class TestPlans:
    """Seen at once, never half."""

    def test_a_newer_plan_is_seen_and_an_older_one_is_not(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(3))
        watch = PlanWatch(WorkerContext(job, plan(3), 0))
        assert watch.newest().generation == 3
        put(tmp_path, plan(4, abort=True))
        assert watch.newest().abort
        put(tmp_path, plan(2))
        assert watch.newest().generation == 4
        job.plan.unlink()
        assert watch.newest().generation == 4

    def test_a_plan_that_cannot_be_understood_stops_no_training(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(3))
        watch = PlanWatch(WorkerContext(job, plan(3), 0))
        job.plan.write_text("{")
        assert watch.newest().generation == 3
        put(tmp_path, plan(5))
        assert watch.newest().generation == 5

    def test_a_plan_that_only_others_see_is_waited_for_and_then_missed(self, tmp_path: Path) -> None:
        watch = PlanWatch(WorkerContext(put(tmp_path, plan(1)), plan(1), 0))
        with pytest.raises(ServiceMissingError, match=r"plan-2\.json was announced by another worker"):
            watch.exactly(2, timeout_s=0.05)
        put(tmp_path, plan(2))
        put(tmp_path, plan(3))
        assert watch.exactly(2, timeout_s=60).generation == 2

    def test_a_plan_is_in_force_when_the_workers_that_it_adds_are_ready(self, tmp_path: Path) -> None:
        job = put(tmp_path, plan(1))
        context = WorkerContext(job, plan(1), 0)
        context.settle()
        watch = PlanWatch(context)
        three = (*plan().members, {"slot": "n2/0", "node": "n2", "address": "10.0.0.2"})
        put(tmp_path, plan(2, members=three))
        assert watch.in_force().generation == 1
        with subprocess.Popen(
            [sys.executable, "-c", PRESENT, str(job.attempt(1).presence(2))],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as worker:
            until(lambda: watch.in_force().generation == 2)
            worker.kill()
        put(tmp_path, plan(3, members=three))
        time.sleep(0.02)  # longer than between two looks: it would be in force now
        assert watch.in_force().generation == 2, "that worker is dead"

    def test_rank_is_the_position_in_the_plan_whatever_torchrun_says(self, tmp_path: Path) -> None:
        put(tmp_path, plan())
        env = {ENV_JOB_DIR: str(tmp_path), "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
        context = find_context({**env, ENV_SLOT: "n1/0"})
        assert (context.rank, context.world_size) == (1, 2)
        assert find_context({**env, ENV_SLOT: SLOT_FROM_RANK, "RANK": "1"}).rank == 1

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            ({ENV_SLOT: "n9/0"}, "slot n9/0 is not in generation 1 of job a: n0/0, n1/0"),
            ({}, "PLIANT_SLOT is not"),
            ({ENV_SLOT: SLOT_FROM_RANK, "RANK": "2"}, "has 2 members"),
        ],
    )
    def test_contradictions_are_named(self, tmp_path: Path, env: dict[str, str], message: str) -> None:
        put(tmp_path, plan())
        with pytest.raises(UsageError, match=message):
            find_context({ENV_JOB_DIR: str(tmp_path), "OMP_NUM_THREADS": "1", **env})

    def test_a_job_without_a_plan_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(BadInputError, match=r"plan\.json: no such file"):
            find_context({ENV_JOB_DIR: str(tmp_path), ENV_SLOT: "n0/0"})

    def test_without_a_plan_torchrun_counts_and_without_torchrun_one_worker(self) -> None:
        context = find_context({"RANK": "2", "WORLD_SIZE": "4"})
        assert (context.rank, context.world_size, context.plan) == (2, 4, None)
        assert find_context({}).world_size == 1
        with pytest.raises(UsageError, match="0 <= RANK < WORLD_SIZE"):
            find_context({"RANK": "4", "WORLD_SIZE": "4"})
        with pytest.raises(UsageError, match="expected a whole number"):
            find_context({"RANK": "first"})


class TestAddresses:
    """Never open to the world."""

    public = (
        {"slot": "m/0", "node": "m", "address": "8.8.8.8"},
        {"slot": "n/1", "node": "n", "address": "n"},
    )

    def test_workers_of_one_node_meet_on_the_loopback_address(self) -> None:
        members = tuple({**member, "node": "n"} for member in self.public)
        assert own_address(plan(members=members), 0) == "127.0.0.1"

    def test_several_nodes_use_their_private_addresses(self) -> None:
        assert own_address(plan(), 1) == "10.0.0.1"

    @pytest.mark.parametrize("address", ["8.8.8.8", "100.64.0.1"])
    def test_an_address_that_others_reach_is_refused(self, address: str) -> None:
        members = ({**self.public[0], "address": address}, self.public[1])
        with pytest.raises(UsageError, match="not a loopback or private address"):
            own_address(plan(members=members), 0)


def test_all_generators_go_on_where_they_were() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(1)), random.random(), float(np.random.rand())]  # noqa: NPY002

    seed_everything(3)
    saved = generator_states()
    first = drawn()
    assert drawn() != first
    restore_generators(saved)
    assert drawn() == first


def test_a_dataset_without_length_or_samples_is_refused() -> None:
    for samples in (iter([1]), []):
        with pytest.raises(UsageError, match="expected a dataset"):
            DataSource(samples, torch.device("cpu")).size  # type: ignore[arg-type]  # noqa: B018


def test_batches_of_any_nesting_reach_the_device() -> None:
    batch = {"a": [torch.ones(2), "name"], "b": (torch.ones(1), Pair(torch.ones(1), 3))}
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"][1].x.device.type == "meta"
    assert (moved["a"][1], moved["b"][1].y) == ("name", 3)
