"""Runs a script of examples/after as a worker; a file says up to which step it may train.

It trains in double precision: sums in another order then differ by 1e-16 of their terms, and not even Adam,
which divides gradients by their own size, makes of that what a lost or repeated sample would be.
"""

import json
import runpy
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from pliant.tools.run import elastic

options = json.loads(sys.argv[1])
allowed, jobs, init = Path(options["out"]) / "allowed", [], elastic.init


def kept(*arguments, **named):
    jobs.append(init(*arguments, **named))
    return jobs[0]


def wait(*_):
    while allowed.exists() and jobs[0]._loop.training.counters.step >= int(allowed.read_text() or 0):
        time.sleep(0.01)


torch.set_default_dtype(torch.float64)
elastic.init = kept
register_optimizer_step_post_hook(wait)
sys.argv = [options["example"], *options["words"]]
runpy.run_path(options["example"], run_name="__main__")
