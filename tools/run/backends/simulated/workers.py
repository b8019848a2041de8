"""The workers of one attempt, simulated: they write what real ones write, and end as real ones end.

A launcher knows workers by their files and by how their units end, so these are real: locked presence files,
``reached``, ``progress.json``, ``progress.jsonl``, outcomes. Training is a number that grows with the time
that goes by. All workers of an attempt are one object, as they act on one plan.
"""

import fcntl
import os
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pliant.schemas.errors import PliantError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.backends.protocol import Handle, StopLevel, Unit, UnitStatus
from pliant.tools.run.statedir.contract.folders import read_record
from pliant.tools.run.statedir.contract.plan import (
    ENV_SLOT,
    SLOT_FROM_RANK,
    Plan,
    Progress,
    WorkerOutcome,
    write_progress,
)

SAMPLES_PER_GPU_S: Final = 10.0
START_UP_S: Final = 3.0  # for a worker to import its libraries and build its model
BATCH: Final = 8
_LOCK: Final = struct.Struct("hhqqi4x").pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_RUNNING: Final = UnitStatus("running")


@dataclass(slots=True)
class SimulatedJob:
    """What a job has on disk, over all its attempts."""

    samples: float  # the work of the whole job
    saved: float = 0.0  # the samples in its newest checkpoint
    ends: int = 0  # how often it was trained to its end


@dataclass(slots=True)
class SimulatedUnit:
    """A launcher and what it has started on one node."""

    unit: Unit
    slots: tuple[str, ...]
    ready_s: float  # when its worker has started up
    status: UnitStatus = _RUNNING
    lock: int = -1
    stands_still: bool = False  # it was stopped by SIGSTOP
    responds: bool = True  # to plans and to SIGTERM
    dies_in_s: float = 0.0  # what SIGKILL needs to end it
    dies_s: float = float("inf")

    @property
    def runs(self) -> bool:
        return self.status.state == "running"

    @property
    def is_ready(self) -> bool:
        return self.lock >= 0

    def end(self, code: int | None) -> None:
        """It ends; without a code if how it ended is not known."""
        self.status = UnitStatus("lost") if code is None else UnitStatus("exited", code)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


@dataclass
class SimulatedWorkers:
    """All units of one attempt."""

    handle: Handle
    training: SimulatedJob
    units: list[SimulatedUnit] = field(default_factory=list)
    trains: Plan | None = None  # the plan that they train under
    done: float = 0.0  # samples that are trained
    reported: int = 0  # events that its workers have written
    # A script of its own was sent SIGTERM: if it then ends with 0, it counts as saved
    signalled: bool = False
    _plan: Plan | None = None
    _mark: tuple[int, int] = (0, 0)
    _rendezvous_s: float = float("inf")
    _alone_s: float = float("inf")
    _reported_s: float = float("-inf")
    _checkpoint_s: float = 0.0

    def start(self, units: Iterable[Unit], now_s: float) -> None:
        self._read_plan()
        for unit in units:
            slot = unit.env.get(ENV_SLOT, SLOT_FROM_RANK)
            self.units.append(SimulatedUnit(unit, self._slots(unit, slot), now_s + START_UP_S))
        self.done = self.training.saved

    def _slots(self, unit: Unit, slot: str) -> tuple[str, ...]:
        if slot != SLOT_FROM_RANK:
            return (slot,)
        members = () if self._plan is None else self._plan.members
        return tuple(member.slot for member in members if member.node == unit.node)

    @property
    def is_elastic(self) -> bool:
        return any(one.unit.env.get(ENV_SLOT) != SLOT_FROM_RANK for one in self.units)

    @property
    def statuses(self) -> tuple[UnitStatus, ...]:
        return tuple(one.status for one in self.units)

    @property
    def runs(self) -> bool:
        return any(one.runs for one in self.units)

    def stop(self, level: StopLevel, only: Collection[int] | None, now_s: float) -> None:
        for number, one in enumerate(self.units):
            if not one.runs or (only is not None and number not in only):
                continue
            if level == "kill":
                one.dies_s = min(one.dies_s, now_s + one.dies_in_s)
                if one.dies_s <= now_s:
                    one.end(-9)
            else:
                self.signalled = True
                if one.responds and not one.stands_still:
                    self._terminate(number)

    def _terminate(self, number: int) -> None:
        """SIGTERM: a script of its own ends; a worker saves with the others, where they live."""
        if not self.is_elastic:
            self.training.saved = self.done
            self.units[number].end(-15)
        elif self.trains is not None and self._all_train(self.trains):
            self._leave("stopped", 1)
        else:
            self.units[number].end(1)

    def go_on(self, now_s: float, wall_s: float, seconds: float, *, room: bool) -> None:
        self._read_plan()
        for one in self.units:
            if one.runs and one.dies_s <= now_s:
                one.end(-9)
        if not self.is_elastic:
            self._train_rigidly(now_s, seconds, room=room)
            return
        for worker, one in enumerate(self.units):
            if one.runs and not one.stands_still:
                self._touch_presence(worker, one, now_s, wall_s)
        if room:
            self._obey(now_s, wall_s)
            self._train(now_s, wall_s, seconds)

    def _train_rigidly(self, now_s: float, seconds: float, *, room: bool) -> None:
        if not room or not all(one.runs and not one.stands_still for one in self.units):
            return
        if now_s >= max(one.ready_s for one in self.units):
            self.done += SAMPLES_PER_GPU_S * seconds * sum(len(one.slots) for one in self.units)
        if self.done >= self.training.samples:
            self.training.ends += not self.signalled
            for one in self.units:
                one.end(0)

    def _read_plan(self) -> None:
        try:
            stat = self.handle.job_files.plan.stat()
            mark = (stat.st_mtime_ns, stat.st_ino)
            if mark != self._mark:
                plan = read_record(self.handle.job_files.plan, "plan", Plan, tries=1)
                self._mark = mark
                own = plan is not None and plan.attempt == self.handle.attempt
                self._plan = plan if own else self._plan
        except (OSError, PliantError):
            return

    def _touch_presence(self, worker: int, one: SimulatedUnit, now_s: float, wall_s: float) -> None:
        if one.lock < 0 and now_s >= one.ready_s:
            path = self.handle.files.presence(worker)
            one.lock = os.open(path.with_suffix(".new"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.fcntl(one.lock, fcntl.F_OFD_SETLK, _LOCK)  # a probe from this very process sees it, too
            path.with_suffix(".new").replace(path)
        if one.lock >= 0:
            os.utime(one.lock, (wall_s, wall_s))

    def _obey(self, now_s: float, wall_s: float) -> None:
        plan = self._plan
        if plan is None or (self.trains is not None and plan.generation <= self.trains.generation):
            return
        if self.trains is not None and not all(one.responds for one in self.units if one.runs):
            return
        if self.trains is None and not plan.abort:
            self._rendezvous(plan, now_s)
        if plan.abort:
            if self.trains is None or self._all_train(self.trains):
                self._leave("stopped", 0)
        elif self._all_train(plan):
            first = self.trains is None
            self.trains, self._alone_s = plan, float("inf")
            for worker, one in enumerate(self.units):
                if one.runs and worker not in plan.workers and one.is_ready:
                    self._write_outcome(worker, "left")
                    one.end(0)
            self._replace(self.handle.files.reached, str(plan.generation))
            how = {} if first else {"mechanism": "in place"}
            detail = {"first_step": True, "generation": plan.generation, **how}
            batch, cost_s = plan.global_batch or BATCH, None if first else 0.5
            self._append(
                Event(
                    wall_s, "progress", plan.job, global_batch=batch, detail=detail, overhead_seconds=cost_s
                )
            )
            self._reported_s, self._checkpoint_s = float("-inf"), now_s

    def _rendezvous(self, plan: Plan, now_s: float) -> None:
        """Workers that are ready at the start wait for the others, up to a limit."""
        waiting = [number for number, one in enumerate(self.units) if one.is_ready and not one.stands_still]
        self._rendezvous_s = min(self._rendezvous_s, now_s) if waiting else float("inf")
        if now_s - self._rendezvous_s >= plan.timeout_s:
            for number in waiting:
                self._write_outcome(number, "crashed", "the others did not come")
                self.units[number].end(1)

    def _all_train(self, plan: Plan) -> bool:
        return all(
            worker < len(self.units)
            and self.units[worker].runs
            and self.units[worker].is_ready
            and not self.units[worker].stands_still
            for worker in plan.workers
        )

    def _train(self, now_s: float, wall_s: float, seconds: float) -> None:
        plan = self.trains
        if plan is None or not self.runs:
            return
        if not self._all_train(plan):
            self._wait_for_a_plan(plan, now_s)
            return
        self.done = min(self.training.samples, self.done + SAMPLES_PER_GPU_S * seconds * len(plan.workers))
        if now_s - self._checkpoint_s >= plan.checkpoint_s:
            self.training.saved, self._checkpoint_s = self.done, now_s
            self._append(Event(wall_s, "checkpoint", plan.job, samples_done=self.done, overhead_seconds=0.1))
        if self.done >= self.training.samples:
            self.training.saved = self.done
            self.training.ends += 1
            self._leave("done", 0)
        elif now_s - self._reported_s >= plan.progress_s:
            self._report(plan)
            self._reported_s = now_s

    def _wait_for_a_plan(self, plan: Plan, now_s: float) -> None:
        """A worker is gone. One that stands still is waited for indefinitely."""
        if all(self.units[worker].runs for worker in plan.workers):
            return
        self._alone_s = min(self._alone_s, now_s)
        if now_s - self._alone_s >= plan.patience_s:
            self._leave("stopped", 0, "no plan came to go on without the worker that is gone")

    def _leave(self, how: Literal["stopped", "done"], code: int, message: str = "") -> None:
        self.training.saved = self.done
        for worker, one in enumerate(self.units):
            if one.runs and not one.stands_still:
                self._write_outcome(worker, how, message)
                one.end(code)

    def crash(self, number: int) -> None:
        one = self.units[number]
        if self.is_elastic:
            self._write_outcome(number, "crashed", "ValueError: a bad sample")
        one.end(1)

    def _write_outcome(
        self, worker: int, how: Literal["done", "stopped", "crashed", "left"], message: str = ""
    ) -> None:
        record = WorkerOutcome(outcome=how, samples_done=self.training.saved, message=message)
        self._replace(self.handle.files.outcome(worker), record.model_dump_json())

    def _report(self, plan: Plan) -> None:
        batch = plan.global_batch or BATCH
        report = Progress(
            job=plan.job,
            attempt=plan.attempt,
            generation=plan.generation,
            gpus=len(plan.workers),
            global_batch=batch,
            step=int(self.done / batch),
            epoch=0,
            samples_done=self.done,
            loss=1 / (1 + self.done),
            samples_per_second=SAMPLES_PER_GPU_S * len(plan.workers),
            step_seconds=batch / (SAMPLES_PER_GPU_S * len(plan.workers)),
        )
        write_progress(self.handle.job_files.progress, report)

    def _append(self, event: Event) -> None:
        self.reported += 1
        with EventWriter(self.handle.files.progress) as writer:
            writer.append([event])

    def _replace(self, path: Path, text: str) -> None:
        temporary = path.with_name(f"{path.name}.part")
        temporary.write_text(text)
        temporary.replace(path)
