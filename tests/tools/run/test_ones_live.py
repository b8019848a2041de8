"""The policy ones on a job that really trains: its batch and its workers grow in place, epoch by epoch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pliant.schemas.io import read_schedule, write_cluster
from pliant.tools.profile.predictor import ended_jobs
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_and_follow
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.schedule.decide import Question
from tests.tools.run.site import Site

pytestmark = pytest.mark.torch

ENDS_ONCE_GROWN = """
import time, torch
from pliant.tools.run import elastic

def workers():
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1

job = elastic.init(batch_size=8)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
stopping = elastic.EarlyStopping(target=2.0)
job.register(stopping=stopping)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
for epoch in job.epochs(100000):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        time.sleep(0.03 if workers() == 1 else 0)
    job.log(metric=workers())
    if stopping.reached(workers()):
        break
"""


def leaves_when_finished(log: RunLog, now_s: float) -> None:
    if "a" in log.jobs and log.jobs["a"].phase in ("finished", "failed"):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_job_that_states_no_work_grows_by_its_epochs_and_ends_itself(tmp_path: Path) -> None:
    site = Site(tmp_path)
    write_cluster(site.cluster, site.folder / "cluster.json")
    batch = {"size": 8, "min": 8, "max": 16, "per_gpu_max": 8}
    spec = site.job("a", text=ENDS_ONCE_GROWN, work=None, elastic="size+batch", batch=batch, high=2)
    submit(site.state, [spec], "jobs", folder=site.folder, now_s=0.0)
    options = RunOptions(site.state, question=Question("ones"), cluster=str(site.folder / "cluster.json"))
    run_and_follow(options, leaves_when_finished)

    assert site.of("a") == ["submit a", "start a 1", "grow a 2", "finish a 0"]
    changes = {each.event: each for each in site.events() if each.event in ("start", "grow")}
    assert [changes[name].global_batch for name in ("start", "grow")] == [8, 16]
    job = StateDir(site.state).job("a")
    assert not job.attempt(2).path.exists(), "it was launched again"
    assert "in place" in [(each.detail or {}).get("mechanism") for each in site.events()]

    epochs = [each for each in site.events() if each.event == "epoch"]
    assert [each.metric for each in epochs] == [1.0] * (len(epochs) - 1) + [2.0], "it ended when it had grown"
    assert all(each.loss is not None for each in epochs[:-1])
    assert epochs[-1].samples_done == 64 * len(epochs)

    (learned,) = ended_jobs(site.events())
    assert learned.total_samples == 64 * len(epochs)
    kept = read_schedule(site.state / "schedule.json").forecast
    assert kept is not None
    assert kept.predictor.jobs == 1
    plan = read_plan(job)
    assert plan is not None
    assert plan.lr_scale == 2.0, "the learning rate follows the batch"
