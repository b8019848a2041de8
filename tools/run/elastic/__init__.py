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

The same script runs

- under plain ``python``: one worker, no files;
- under plain ``torchrun``: DistributedDataParallel over its workers, no files;
- under ``pliant profile``: the loader serves the measurements and ends the script;
- under ``pliant run``: rank, devices and the cut of the batch come from the job's plan, checkpoints are
  written and loaded, progress is reported, and the job stops at a step boundary when the plan says so.
  Newer plans change workers and batch between two steps, while training goes on: ``job.rank`` and
  ``job.world_size`` change with them. The workers meet when ``epochs`` begins.

``batch_size`` is the global batch: samples per optimizer step over all workers. How it is cut into workers
and micro-steps never shows: the gradient is the exact mean over the global batch, uneven shares included.
Each pass of the loop body is one micro-step, and ``optimizer.step()``, ``scheduler.step()`` and the methods
of a registered ``GradScaler`` act on the last micro-step of each step only.

A job goes on from its newest whole checkpoint, which lies between two steps: after some step of an epoch but
never after its last one, or between two epochs. So an epoch that is begun again has a batch to train, and
what follows its steps (validation, ``scheduler.step()``) runs once. A stop that comes while it runs is heard
at its end; a kill costs it and at most the steps since the last checkpoint, which before the last step of an
epoch is due after a quarter of the usual time. Rank 0 alone may validate for up to 30 minutes while the
others wait, and :meth:`ElasticJob.agree` tells them what it found. What follows the last epoch may run
without any epoch before it, where it failed and is tried again.

Leaving ``epochs`` by ``break`` ends the training, as far as the script then ends with exit code 0; by
``sys.exit("diverged")`` it is a failure. :class:`EarlyStopping` says when, by a target or with patience.
Neither saves a checkpoint. A final state that cannot be saved is a failure, too; checkpoints that fail
before are reported, and training goes on.

What the author promises: the loss is a mean over the samples of its batch; the dataset has a length and
gives a sample by its index; the loader is iterated inside ``job.epochs``, once an epoch; nothing but rank 0
writes files; all that is trained is in one module with one optimizer. Layers may be frozen and unfrozen, and
the optimizer given groups, by all workers at the same place: that is a part of the state.
Layers whose result depends on the whole batch (batch normalization) see the micro-batch, as under plain
DistributedDataParallel; they want ``drop_last=True``.
"""

from pliant.tools.run.elastic.early_stopping import EarlyStopping
from pliant.tools.run.elastic.job import ElasticJob, init

__all__ = ["EarlyStopping", "ElasticJob", "init"]
