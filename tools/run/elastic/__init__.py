"""The elastic training library: the few lines that make a training script one that can be resized.

    from pliant.tools.run import elastic

    job = elastic.init(batch_size=256, seed=0)
    model, optimizer, loader = job.prepare(model, optimizer, dataset)
    scheduler = StepLR(optimizer, 30)
    job.register(scheduler)                  # what else has state: schedulers, GradScaler, averages
    for epoch in job.epochs(90):
        for x, y in loader:                  # batches arrive on job.device
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)      # a mean over the samples of the batch
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
        scheduler.step()
        job.log(metric=accuracy(model))      # optional

A script without epochs takes its samples by number, and several models or optimizers go the same way::

    model, muon, adamw = job.prepare(model, muon, adamw)
    for step in job.steps(5000):
        for _ in job.micro_steps():                     # gradient accumulation, as the plan cuts the batch
            x, y = get_batch(job.batch_indices(len(data) - block))
            ...

The same script runs

- under plain ``python``: one worker, no files;
- under plain ``torchrun``: among its workers, no files;
- under ``pliant profile``: the loader serves the measurements and ends the script;
- under ``pliant run``: rank, devices and the cut of the batch come from the job's plan, checkpoints are
  written and loaded, progress is reported, and the job stops at a step boundary when the plan says so.
  Newer plans change workers and batch between two steps, while training goes on: ``job.rank`` and
  ``job.world_size`` change with them. The workers meet when ``epochs`` begins.

``batch_size`` is the global batch: samples per optimizer step over all workers. How it is cut into workers
and micro-steps never shows: the gradient is the exact mean over the global batch, uneven shares included.
Each pass of the loop body is one micro-step, and ``optimizer.step()``, ``scheduler.step()`` and the methods
of a registered ``GradScaler`` act on the last micro-step of each step only.

A checkpoint lies between two steps: after some step of an epoch but never after its last one, or between two
epochs. So what follows the steps of an epoch (validation, ``scheduler.step()``) runs once.

At an optimizer's step every gradient is that of the global batch, however the script calls its model. The
workers compare their replicas now and then, and end rather than train apart.

docs/elastic-training.md has a recipe for each kind of script. docs/elastic-library.md says what a script must
keep to, how it ends early, and what happens when workers change, when one is lost and at a stop.
"""

import gc
import os

from pliant.schemas.errors import missing
from pliant.tools.run.statedir.contract.recording import ENV_RECORDING

try:
    from pliant.tools.run.elastic.job import EarlyStopping, ElasticJob, init

    if ENV_RECORDING in os.environ:  # a run of pliant verify
        from pliant.tools.run.elastic.recording import RecordedJob

        ElasticJob.made_as = RecordedJob
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    text = f"the elastic library trains with torch, but {missing('torch')}"
    raise ModuleNotFoundError(text, name="torch") from None

# What PyTorch's import has made stays: not to scan it again makes a worker's start a sixth shorter.
gc.freeze()

__all__ = ["EarlyStopping", "ElasticJob", "init"]
