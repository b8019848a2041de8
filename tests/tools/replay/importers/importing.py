"""Import small texts and look at what came out."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas import io
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.replay.importers.conversion import ImportSummary
from pliant.tools.replay.importers.run import CONVERGENCE, JOBS, PROFILE, import_trace
from pliant.tools.replay.inputs import Inputs, Sources

TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
WORKLOAD = "name,time,application,num_replicas,batch_size"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    "scheduled_time"
)


@dataclass(frozen=True)
class Result:
    """The jobs of an import, in the order of the file, and its summary."""

    jobs: tuple[Job, ...]
    summary: ImportSummary
    out: Path

    def job(self, job_id: str) -> Job:
        return next(job for job in self.jobs if job.id == job_id)

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.summary.dropped)

    @property
    def drops(self) -> str:
        """Of each reason, in the order of the alphabet, how many rows were dropped for it."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))


def text(folder: Path, name: str, *lines: str) -> str:
    """A file of lines; returns its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def run(tmp_path: Path, kind: str, *paths: str, **more: Any) -> Result:
    """Import to a file, or to a folder where the format gives one."""
    folder = len(paths) == 1 and Path(paths[0]).is_dir() and kind != "pai"
    out = tmp_path / ("out" if folder else "out.jsonl")
    summary = import_trace(kind, paths, str(out), **more)
    jobs = out / "jobs.jsonl" if folder else out
    return Result(io.read_jobs(jobs) if summary.jobs else (), summary, out)


def pai(folder: Path, jobs: tuple[str, ...], tasks: tuple[str, ...]) -> str:
    """The folder of PAI's tables, with their headers beside them."""
    text(folder, "pai_job_table.header", "job_name,inst_id,user,status,start_time,end_time")
    names = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
    text(folder, "pai_task_table.header", names)
    text(folder, "pai_job_table.csv", *jobs)
    text(folder, "pai_task_table.csv", *tasks)
    return str(folder)


def problems(tmp_path: Path, kind: str, *paths: str, **more: Any) -> list[str]:
    """What a strict import says is wrong, without the folder; nothing is written."""
    out, folder = tmp_path / "out.jsonl", tmp_path / "out"
    out.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    with pytest.raises(BadInputError) as caught:
        run(tmp_path, kind, *paths, **more)
    assert not out.exists()
    assert not folder.exists()
    return [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]


def labels(trace: str, stated: str) -> dict[str, str]:
    """``"status=FAILED nodes=2"`` as the labels of a job of a trace."""
    return {"trace": trace, **dict(pair.split("=", 1) for pair in stated.split())}


def facts(job: Job) -> tuple[str, float, int, float]:
    """Id, time of submission, GPUs and GPU-seconds."""
    return job.id, job.submit_time, job.gpus.requested, gpu_seconds(job)


def gpu_seconds(job: Job) -> float:
    assert isinstance(job.work, GpuTimeWork)
    return job.work.gpu_seconds


def pollux_inputs(data: Path, workload: str | Path, nodes: int, folder: Path) -> Inputs:
    """A workload of the Pollux simulator on nodes of 4 GPUs, by way of files."""
    import_trace("pollux", [str(data)], str(folder), workload=str(workload))
    four = {"name": "n{}", "gpus": 4, "gpu_type": "t4", "count": nodes}
    io.write_cluster(Cluster.model_validate({"nodes": (four,)}), folder / "cluster.json")
    jobs, machines, profile, tables = (
        str(folder / name) for name in (JOBS, "cluster.json", PROFILE, CONVERGENCE)
    )
    return Sources(jobs, machines, profile, convergence=tables).read()
