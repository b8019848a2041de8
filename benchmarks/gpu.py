"""What the library does on a GPU: ``make gpu-check`` runs what the machine allows, and names the rest.

Without a GPU it says so in one line and exits with 66; with one, 1 if a check has failed and 0 otherwise.
``python -m benchmarks.gpu CHECK…`` runs some of the checks and renews their rows of results/gpu.json. All of
them need one GPU; NCCL among several workers needs two and is not checked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Final

import psutil

from benchmarks.parts import checkpoint_cost, figure, gpu_training
from benchmarks.parts.figure import ROOT, Figure, NotMeasurableError
from benchmarks.parts.parted import Part
from pliant.tools.profile.torchrun.start import kill, tree

MEASURES: Final = ("tools/run/elastic", "tools/profile/measuring")
NAME: Final = "gpu"
FAILED: Final = 1
NO_GPU: Final = 66
LIMIT_S: Final = 1800.0
"""After this long a check hangs."""
LIMITS: Final = {
    "changes_device_growth_bytes": 2.0**20,
    "changes_memory_growth_bytes": 2.0**24,
    "streams_wrong_values": 0.0,
    "amp_relative_error": 1e-6,
    "compiled_before_relative_error": 1e-3,
    "compiled_after_relative_error": 1e-3,
    "ranks_relative_error": 1e-5,
    "demo_unfinished": 0.0,
    "use_idle_error": 0.1,
    "use_memory_error": 0.02,
    "use_missed": 0.0,
}
SMALL: Final = ("group", "streams", "amp")


def check(*names: str, device: str = "cuda:0") -> list[Figure]:
    """Checks in a process of their own; one that hangs leaves nothing on the GPU for the next.

    :raises CheckFailedError: one did not come to its end; the reason is the last line that it wrote.
    """
    words = [sys.executable, "-m", "benchmarks.parts.gpu_checks", ",".join(names), device]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise CheckFailedError(f"no end after {LIMIT_S:g} s") from None
    finally:
        if process.returncode is None:
            kill(tree(psutil.Process(process.pid)))
            process.communicate()
    if process.returncode:
        said = [line for line in err.splitlines() if line.strip()]
        raise CheckFailedError(said[-1] if said else f"exit code {process.returncode}")
    return [
        Figure(f"{name}_{key}", float(value), _unit(key), LIMITS.get(f"{name}_{key}"))
        for name, found in json.loads(out).items()
        for key, value in found.items()
    ]


def checkpoint(device: str = "cuda") -> list[Figure]:
    """The stall of a save; its main memory is left out, as pinned pages do not count as resident."""
    ours, theirs = checkpoint_cost.compared(
        checkpoint_cost.LAYERS, checkpoint_cost.WIDTH, checkpoint_cost.ROUNDS, device
    )
    return [Figure("checkpoint_stall_over_dcp_async", ours["stall_s"] / theirs["stall_s"], "ratio", 1.2)]


class CheckFailedError(RuntimeError):
    """A check that should have passed."""


CHECKS: Final = (
    "group", "changes", "streams", "amp", "compiled", "ranks", "profile", "demo", "scripts", "use"
)  # fmt: skip
PARTS: Final[dict[str, Part]] = {
    **{name: partial(check, name) for name in CHECKS},
    "checkpoint": checkpoint,
    "steps": gpu_training.steps,
    **{f"workers-{size}": partial(gpu_training.changes, states=(size,)) for size in gpu_training.STATES},
    "neighbours": gpu_training.neighbours,
    **{f"profile-{model}": partial(gpu_training.profiled, model) for model in gpu_training.PROFILED},
}


def figures() -> list[Figure]:
    """All checks.

    :raises NotMeasurableError: there is no GPU.
    """
    need_gpu()
    return [row for make in PARTS.values() for row in make()]


def smallest() -> list[Figure]:
    """The checks that a CPU can do, on one and in one process, as most of it is spent importing PyTorch."""
    return check(*SMALL, device="cpu")


def need_gpu() -> None:
    """:raises NotMeasurableError: PyTorch sees no GPU, or nothing here can ask the driver which one it is."""
    import torch

    if not torch.cuda.is_available():
        raise NotMeasurableError("PyTorch sees no GPU on this machine, so nothing is checked")
    if find_spec("pynvml") is None:
        raise NotMeasurableError("the driver cannot be asked for its GPUs: pip install 'pliant[gpu]'")


def main(arguments: Sequence[str]) -> int:
    """Check, by name or all; each is on disk when the next one begins."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("checks", nargs="*", metavar="CHECK", help=f"{', '.join(PARTS)}; by default all")
    wanted = options.parse_args(arguments).checks or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        options.error(f"no check {unknown[0]!r}; there are: {', '.join(PARTS)}")
    try:
        need_gpu()
    except NotMeasurableError as error:
        print(f"gpu-check: {error}; benchmarks/results/gpu.json stays as it is", file=sys.stderr)
        return NO_GPU
    failed = False
    for name in wanted:
        try:
            rows = PARTS[name]()
        except (RuntimeError, subprocess.SubprocessError, OSError) as error:
            print(f"{name}: FAILED: {error}")
            failed = True
            continue
        figure.renew(NAME, rows)
        for row in rows:
            word = {None: "", True: "holds", False: "FAILED"}[row.holds]
            print(f"{row.name:40s} {row.value or 0:>12.6g} {row.unit:12s} {word}")
            failed |= row.holds is False
    print("left out: NCCL among several workers, which needs several GPUs")
    return FAILED if failed else 0


def _unit(key: str) -> str:
    return {"s": "s", "bytes": "bytes", "error": "ratio", "values": "values"}.get(key.rpartition("_")[2], "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
