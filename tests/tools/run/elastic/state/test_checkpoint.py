"""Checkpoints: whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.elastic.state.checkpoint import FORMAT, Checkpoints
from pliant.tools.run.elastic.state.training import stored

ENDLESS = """
import itertools, sys, pathlib, torch
from pliant.tools.run.elastic.state.checkpoint import Checkpoints

kept = Checkpoints(pathlib.Path(sys.argv[1]))
newest = kept.load().state
for step in itertools.count(1 if newest is None else newest["step"] + 1):
    kept.save({"step": step, "weights": torch.full((1000,), step)}, step)
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


class TestCheckpoints:
    def test_a_checkpoint_takes_no_memory_beside_the_state(self, tmp_path: Path) -> None:
        state = {str(number): torch.zeros(1 << 18) for number in range(16)}
        tracemalloc.start()
        try:
            path = Checkpoints(tmp_path).save(state, 1)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 0.2 * path.stat().st_size

    def test_pytorch_reads_a_checkpoint_by_itself(self, tmp_path: Path) -> None:
        state = {"weights": torch.arange(5.0), "nested": OrderedDict(step=7)}
        path = Checkpoints(tmp_path).save(state, 7)
        torch.testing.assert_close(torch.load(path, weights_only=True), state, rtol=0, atol=0)

    def test_those_of_before_are_read_as_well(self, tmp_path: Path) -> None:
        body = stored({"step": 3, "weights": torch.ones(2)})
        head = {
            "format": "pliant.checkpoint/2",
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        path = tmp_path / f"step-{3:012}.ckpt"
        path.write_bytes(json.dumps(head).encode() + b"\n" + body)
        state = Checkpoints(tmp_path).load().state
        assert state is not None
        assert (state["step"], state["weights"].tolist()) == (3, [1.0, 1.0])
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(BadInputError, match="torn or damaged"):
            Checkpoints(tmp_path).load()

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

    def test_saving_alone_keeps_a_later_checkpoint(self, tmp_path: Path) -> None:
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

    def test_without_a_checkpoint_training_starts_at_the_beginning(self, tmp_path: Path) -> None:
        assert Checkpoints(tmp_path / "none").load().state is None

    def test_damaged_checkpoints_alone_are_an_error(self, tmp_path: Path) -> None:
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

    def test_a_full_disk_leaves_the_older_ones(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_a_killed_worker_loses_nothing_it_called_saved(self, tmp_path: Path) -> None:
        for number in range(4):
            with subprocess.Popen(
                [sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
            ) as worker:
                assert worker.stdout is not None
                for _ in range(number + 1):
                    called = int(worker.stdout.readline())
                worker.kill()
                called = max([called, *map(int, worker.stdout.read().split())])
            state = Checkpoints(tmp_path).load().state
            assert state is not None
            assert state["step"] >= called
            assert state["weights"].tolist() == [state["step"]] * 1000
        Checkpoints(tmp_path).save({}, 10**6)  # removes what the killed ones were writing

    def test_what_a_killed_writer_left_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / ".pliant-0123.tmp").write_bytes(b"half")
        path = Checkpoints(tmp_path).save({}, 1)
        assert list(tmp_path.iterdir()) == [path]
