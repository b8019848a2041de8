"""Checkpoints: whole or not there, when one is due, and who knows of it while workers and ranks change."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.file_io.files import Draft
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.state import checkpoint
from pliant.tools.run.elastic.state.checkpoint import FORMAT, Checkpoints, Saving, Written
from pliant.tools.run.elastic.state.training import TrainingCounters, stored
from pliant.tools.run.statedir.contract.folders import JobDir
from tests.tools.run.elastic.alone import Alone, Author, Clock
from tests.tools.run.elastic.gang import plan
from tests.tools.run.elastic.nursery import CONTEXT
from tests.tools.run.site import until

Patch = pytest.MonkeyPatch
EVERY_S = 10.0


def name_of(step: int) -> str:
    return f"step-{step:012}.ckpt"


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def saves_for_ever(folder: Path) -> None:
    """Goes on from the newest checkpoint, and says which steps are saved."""
    kept = Checkpoints(folder)
    newest = kept.load().state
    step = 1 if newest is None else newest["step"] + 1
    with (folder.parent / "called").open("a", buffering=1) as called:
        while True:
            kept.save({"step": step, "weights": torch.full((1000,), step)}, step)
            called.write(f"{step}\n")
            step += 1


class TestCheckpoints:
    @pytest.fixture
    def kept(self, tmp_path: Path) -> Checkpoints:
        return Checkpoints(tmp_path)

    def test_pytorch_reads_a_checkpoint_by_itself(self, kept: Checkpoints) -> None:
        """And to write it takes no memory beside the state."""
        state = {"weights": torch.zeros(1 << 22), "nested": OrderedDict(step=7)}
        tracemalloc.start()
        try:
            path = kept.save(state, 7)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 0.2 * path.stat().st_size
        torch.testing.assert_close(torch.load(path, weights_only=True), state, rtol=0, atol=0)

    def test_those_of_the_former_format_are_read_as_well(self, kept: Checkpoints, tmp_path: Path) -> None:
        body = stored({"step": 3, "weights": torch.ones(2)})
        digest = hashlib.sha256(body).hexdigest()
        head = {"format": "pliant.checkpoint/2", "bytes": len(body), "sha256": digest}
        path = tmp_path / name_of(3)
        path.write_bytes(json.dumps(head).encode() + b"\n" + body)
        state = kept.load().state
        assert state is not None
        assert (state["step"], state["weights"].tolist()) == (3, [1.0, 1.0])
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(BadInputError, match="torn or damaged"):
            kept.load()
        path = kept.save({"step": 4}, 4)
        path.write_bytes(path.read_bytes().replace(FORMAT.encode(), b"pliant.checkpoint/1", 1))
        with pytest.raises(BadInputError, match=rf"is pliant\.checkpoint/1, expected {FORMAT}"):
            kept.load()

    def test_the_newest_two_are_kept_and_the_newest_is_loaded(self, tmp_path: Path) -> None:
        kept = Checkpoints(tmp_path / "checkpoints")
        assert kept.load().state is None
        for step in (5, 10, 15, 1000):
            kept.save({"weights": torch.full((3,), float(step)), "nested": OrderedDict(step=step)}, step)
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == list(
            map(name_of, (15, 1000))
        )
        state = kept.load().state
        assert state is not None
        assert state["weights"].tolist() == [1000.0] * 3
        for step in (1002, 1001):
            kept.save({"step": step}, step, alone=True)
        assert kept.load().state == {"step": 1002}, "who saves alone may be behind"
        kept.save({"step": 999}, 999)
        assert kept.load().state == {"step": 999}, "of a past that is no more, where all save together"

    @pytest.mark.parametrize(
        "damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:-9] + b"x" * 9]
    )
    def test_a_damaged_one_is_passed_over_and_named(self, kept: Checkpoints, damage: Any) -> None:
        older, newest = kept.save({"step": 1}, 1), kept.save({"step": 2}, 2)
        newest.write_bytes(damage(newest.read_bytes()))
        loaded = kept.load()
        assert loaded.state == {"step": 1}
        assert loaded.problems == (f"{newest}: the checkpoint is torn or damaged",)
        older.write_bytes(b"torn")
        with pytest.raises(BadInputError, match=r"no checkpoint is whole.*000002.*000001"):
            kept.load()

    @pytest.mark.parametrize(
        ("whole", "torn", "saved", "remaining"), [((1, 4), (7, 8), 5, [4, 5]), ((1,), (2,), 3, [1, 3])]
    )
    def test_damaged_ones_do_not_count_among_the_two(
        self, tmp_path: Path, whole: Any, torn: Any, saved: int, remaining: list[int]
    ) -> None:
        before = Checkpoints(tmp_path)
        for step in whole:
            before.save({"step": step}, step)
        for step in torn:
            (tmp_path / name_of(step)).write_bytes(b"torn")
        resumed = Checkpoints(tmp_path)
        assert resumed.load().state == {"step": whole[-1]}
        resumed.save({"step": saved}, saved)
        assert sorted(path.name for path in tmp_path.iterdir()) == list(map(name_of, remaining))
        resumed.save({"step": 2}, 2)
        assert resumed.load().state == {"step": 2}

    def test_a_killed_worker_loses_nothing_it_called_saved(self, tmp_path: Path) -> None:
        folder, called = tmp_path / "checkpoints", tmp_path / "called"
        folder.mkdir()

        def calls() -> list[int]:
            return [int(line) for line in called.read_text().splitlines()] if called.exists() else []

        for number in range(4):
            before = len(calls())
            worker = CONTEXT.Process(target=saves_for_ever, args=(folder,))
            worker.start()
            until(lambda before=before, number=number: len(calls()) > before + number)
            worker.kill()
            worker.join()
            state = Checkpoints(folder).load().state
            assert state is not None
            assert state["step"] >= max(calls())
            assert state["weights"].tolist() == [state["step"]] * 1000
        (folder / ".pliant-0123.tmp").write_bytes(b"half")
        path = Checkpoints(folder).save({}, 10**6)
        assert [one for one in folder.iterdir() if one.suffix == ".tmp"] == [], "of killed writers"
        assert path.exists()


class Workers:
    """The savings of the workers of one job, each with the clock of its host."""

    def __init__(self, folder: Path, patch: Patch) -> None:
        self.dir, self._patch = JobDir(folder), patch
        self.checkpoints = Checkpoints(self.dir.checkpoints)
        self.dir.attempt(1).path.mkdir(parents=True)

    def new(self, rank: int) -> tuple[Saving, WorkerContext]:
        context = WorkerContext(self.dir, plan(), rank)
        return Saving(context), context

    def on(self, clock: Clock) -> None:
        """What follows happens on this host."""
        self._patch.setattr(checkpoint, "time", clock)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.dir.checkpoints.glob("*"))


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: Patch) -> Workers:
    return Workers(tmp_path, monkeypatch)


def no_space(*_: Any, **__: Any) -> Written:
    raise ServiceMissingError("no space left")


def save(saving: Saving, training: Any) -> str:
    """Begin a checkpoint and wait for its end; returns why it failed."""
    saving.begin(training)
    saved = saving.ended(wait=True)
    return "" if saved is None else saved.problem


def at_step(step: int) -> Any:
    counters = TrainingCounters(step=step, samples_done=10 * step, epoch_samples=10 * step)
    state = {"counters": counters.as_dict()}
    return SimpleNamespace(counters=counters, capture=lambda: state, resume=lambda _: None)


def test_a_checkpoint_that_lacks_a_part_is_refused_by_its_name(workers: Workers) -> None:
    training = at_step(3)
    workers.checkpoints.save(training.capture(), 3)
    training.capture = lambda: {"counters": {}, "seed": 1}
    with pytest.raises(BadInputError, match="the newest checkpoint is of another version, without seed"):
        workers.new(0)[0].load(training)


def test_changes_do_not_delay_checkpoints(job: Alone, monkeypatch: Patch) -> None:
    clock, author = Clock(), Author()
    monkeypatch.setattr(checkpoint, "time", clock)

    def change() -> None:
        clock.now_s += 1.0
        job.publish(lr_scale=1.0 + clock.now_s % 2, checkpoint_s=4.0, history_s=1e-9)

    author.in_pass = change
    job.run(author, checkpoint_s=4.0, history_s=1e-9)
    assert [event.samples_done for event in job.events("checkpoint")] == [40, 87, 134, 141]


def test_a_newcomer_knows_how_old_the_checkpoint_is(workers: Workers) -> None:
    here, there = Clock(1000.0), Clock(5.0)
    workers.on(here)
    (one, _), (other, context) = workers.new(0), workers.new(1)
    one.load(at_step(0))
    here.now_s += EVERY_S - 1
    pack = one.pack()
    workers.on(there)
    other.unpack(pack)
    assert other.counters == one.counters
    context.rank = 0
    assert not other.due(EVERY_S, before_last=False)
    there.now_s += 1
    assert other.due(EVERY_S, before_last=False)


def test_a_worker_counts_on_a_checkpoint_once_it_knows_it(workers: Workers) -> None:
    (first, _), (second, _) = workers.new(0), workers.new(1)
    for one in (first, second):
        assert save(one, at_step(7)) == ""
    assert (first.step, second.step) == (7, 0)
    second.note_saved(0)
    assert second.step == 0
    second.note_saved(first.step)
    assert second.counters == at_step(7).counters


def test_a_failed_write_of_rank_0_is_known_to_all(workers: Workers, monkeypatch: Patch) -> None:
    clock = Clock(100.0)
    workers.on(clock)
    (first, _), (second, context) = workers.new(0), workers.new(1)
    second.unpack(first.pack())
    clock.now_s += EVERY_S
    monkeypatch.setattr(Checkpoints, "write", no_space)
    for one in (first, second):
        save(one, at_step(7))
    second.note_saved(first.step)
    assert (first.step, second.step) == (0, 0)
    context.rank = 0
    assert second.due(EVERY_S, before_last=False), "as the next rank 0 it tries at once"
    assert not first.due(EVERY_S, before_last=False), "the same one waits"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_goes_on_while_a_checkpoint_is_written(
    workers: Workers, monkeypatch: Patch, device: str
) -> None:
    may_end, publish = threading.Event(), Draft.publish

    def slowly(draft: Draft) -> None:
        assert may_end.wait(60)
        publish(draft)

    monkeypatch.setattr(Draft, "publish", slowly)
    (first, context), training = workers.new(0), at_step(7)
    context.device = torch.device(device)  # what a GPU's state is copied by copies any state
    state = training.capture() | {"weights": torch.ones(1000), "slots": {0: {"step": torch.tensor(7.0)}}}
    training.capture = lambda: state
    first.begin(training)
    state["weights"].zero_()
    state["slots"][0]["step"].add_(1)
    assert (first.ended(wait=False), first.step) == (None, 0)
    may_end.set()
    saved = first.ended(wait=True)
    assert saved is not None
    assert (saved.problem, saved.counters.step, first.step) == ("", 7, 7)
    assert saved.stall_s <= saved.took_s
    loaded = workers.checkpoints.load().state
    assert loaded is not None
    assert (loaded["weights"].tolist(), loaded["slots"][0]["step"]) == ([1.0] * 1000, 7.0)


@pytest.mark.parametrize("place", [(os, "write"), (Draft, "publish")], ids=["at once", "meanwhile"])
def test_a_full_disk_leaves_the_older_ones(workers: Workers, monkeypatch: Patch, place: Any) -> None:
    first, _ = workers.new(0)
    assert save(first, at_step(3)) == ""
    with monkeypatch.context() as patch:
        patch.setattr(*place, full)
        assert save(first, at_step(7)).endswith(".ckpt: cannot be written: no space left on device")
    assert (first.step, workers.files) == (3, [name_of(3)])
    assert save(first, at_step(9)) == ""
    assert first.step == 9


class TestAlone:
    def test_two_of_them_a_step_apart_keep_each_other_s_files(self, workers: Workers) -> None:
        workers.checkpoints.save({}, 3)
        workers.checkpoints.save({}, 6)
        other = workers.dir.checkpoints / ".pliant-0.tmp"
        other.write_bytes(b"of another one, that is at it")
        for rank, step in ((1, 10), (0, 9)):
            assert workers.new(rank)[0].save_alone(at_step(step)) == ""
        assert workers.files == [".pliant-0.tmp", *map(name_of, (3, 6, 9, 10))]
        other.unlink()
        assert workers.checkpoints.load().state == {"counters": at_step(10).counters.as_dict()}

    def test_of_those_at_one_step_one_writes(self, workers: Workers, monkeypatch: Patch) -> None:
        writing, may_end = threading.Event(), threading.Event()
        written: list[int] = []
        write: Callable[..., Written] = Checkpoints.write

        def slowly(*arguments: Any, **options: Any) -> Written:
            written.append(arguments[2])
            writing.set()
            assert may_end.wait(60)
            return write(*arguments, **options)

        monkeypatch.setattr(Checkpoints, "write", slowly)
        savings = [workers.new(rank)[0] for rank in range(2)]
        threads = [threading.Thread(target=one.save_alone, args=(at_step(5),)) for one in savings]
        threads[0].start()
        assert writing.wait(60)
        threads[1].start()
        assert {one.step for one in savings} == {0}
        may_end.set()
        for thread in threads:
            thread.join(60)
        assert written == [5]
        assert {one.step for one in savings} == {5}

    def test_after_a_failed_write_the_next_one_writes(self, workers: Workers, monkeypatch: Patch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "write", no_space)
            assert "no space left" in workers.new(0)[0].save_alone(at_step(5))
        other, _ = workers.new(1)
        assert other.save_alone(at_step(5)) == ""
        assert (other.step, workers.files) == (5, [name_of(5)])


@pytest.mark.parametrize("while_writing", [False, True])
def test_an_overtaken_worker_removes_no_checkpoint(
    workers: Workers, monkeypatch: Patch, while_writing: bool
) -> None:
    """The others train under the next generation, and save; from then on it writes none, either."""
    publish: Callable[..., None] = Draft.publish

    def others_go_on() -> None:
        workers.dir.attempt(1).reached.write_text("2\n")
        for step in (100, 200):
            workers.checkpoints.save({}, step)

    def slowly(draft: Draft) -> None:
        publish(draft)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Draft, "publish", publish)
            others_go_on()

    first, _ = workers.new(0)
    if while_writing:
        monkeypatch.setattr(Draft, "publish", slowly)
    assert save(first, at_step(7)) == ""
    if not while_writing:
        others_go_on()
    assert workers.files[-2:] == [name_of(100), name_of(200)]
    before = workers.files
    for problem in (save(first, at_step(8)), first.save_alone(at_step(9))):
        assert problem == "no checkpoint: the job trains on without this worker"
    assert (workers.files, first.step) == (before, 7)
