"""One small moment in the life of a cluster, and what each policy decides in it.

Write the golden files anew, after a change that is meant, with::

    python -m tests.golden.scenario
"""

from pathlib import Path

from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import document_bytes, job_fields
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.schedule.decide import Question
from tests.builders import job, mixed_cluster
from tests.tools.profile.rows_builder import step
from tests.tools.schedule.histories import decide_from

FOLDER = Path(__file__).parent
NOW_S = 600.0
CLUSTER = mixed_cluster(t4=(4, 4), a100=(4,))
SPEEDS = {"t4": 1.0, "a100": 3.0}

JOBS = (
    job("wide", at=0, gpus=4, low=1, high=8, model="conv", batch=64, work={"samples": 400_000}),
    job("rigid", at=60, gpus=2, model="conv", batch=32, work={"samples": 90_000}),
    job("quick", at=120, gpus=2, low=1, high=4, model="text", batch=64, work={"samples": 40_000}),
    job("unknown", at=180, gpus=1, low=1, high=4, model="text", batch=64),
    job("gang", at=240, gpus=8, model="conv", batch=64, work={"iterations": 900}),
    job("small", at=300, gpus=1, low=1, high=2, model="text", batch=16, work={"samples": 2_000}),
    job("large", at=360, gpus=4, low=2, high=12, model="conv", batch=128, work={"samples": 800_000}),
    job("impossible", at=420, gpus=9, model="conv", batch=64, work={"samples": 100}),
)


def profile() -> Profile:
    """Two models on two GPU types; text scales badly beyond two GPUs."""
    return Profile(
        tuple(
            step(
                ",".join(["4"] * (gpus // 4)) or gpus,
                local,
                seconds / SPEEDS[gpu_type] * local / 16 + sync * (gpus - 1),
                model=model,
                gpu_type=gpu_type,
            )
            for model, seconds, sync in (("conv", 0.32, 0.004), ("text", 0.16, 0.08))
            for gpu_type in SPEEDS
            for gpus in (1, 2, 4, 8)
            for local in (8, 16, 32)
        )
    )


def _submitted(spec: Job) -> Event:
    return Event(spec.submit_time, "submit", spec.id, detail={"job": job_fields(spec)})


def log() -> tuple[Event, ...]:
    """The events so far: three jobs run, one of them lost its first node."""
    info = {
        "policy": "any",
        "simulated": True,
        "trace_hash": "0",
        "cluster": CLUSTER.model_dump(mode="json", by_alias=True),
        "pliant_version": "0",
    }
    return (
        Event(0, "decision", detail=info),
        _submitted(JOBS[0]),
        Event(0, "start", "wide", 4, (("a100-0", 4),), 64),
        *(_submitted(spec) for spec in JOBS[1:3]),
        Event(150, "start", "rigid", 2, (("t4-0", 2),), 32),
        Event(150, "start", "quick", 2, (("t4-0", 2),), 64),
        *(_submitted(spec) for spec in JOBS[3:6]),
        Event(310, "node_down", detail={"node": "t4-0"}),
        Event(310, "requeue", "quick", 0),
        Event(310, "requeue", "rigid", 0),
        Event(320, "start", "rigid", 2, (("t4-1", 2),), 32),
        Event(340, "node_up", detail={"node": "t4-0"}),
        *(_submitted(spec) for spec in JOBS[6:]),
        Event(500, "checkpoint", "wide", samples_done=120_000),
    )


def golden_bytes(policy: str) -> bytes:
    """The schedule of one policy, as ``pliant schedule --no-timing --explain`` would write it."""
    question = Question(policy, explain=True, timing=False)
    everyone = CLUSTER.with_preemptible("all")
    result = decide_from(log(), question, now_s=NOW_S, cluster=everyone, profile=profile())
    return document_bytes(result.model_copy(update={"profile": None, "cluster": CLUSTER}), "schedule")


def golden_file(policy: str) -> Path:
    return FOLDER / f"{policy}.json"


if __name__ == "__main__":
    from pliant.tools.schedule.registry import BUILT_IN

    for name in BUILT_IN:
        atomic_write(golden_file(name), golden_bytes(name))
