"""What a step runs on its node: it takes the unit over, gives it its GPUs, and becomes its keeper.

Run as ``python -I -S step.py ATTEMPT UNIT GPUS FOLDER COMMAND…`` with the environment of the unit; ATTEMPT is
the attempt's folder. GPUS are numbers of slots (``0,2``), ``slurm`` if Slurm has chosen them, or ``none``.

The first step of a unit takes it over, through a file; a second one does nothing. Another file says when the
unit is to end, because a signal of Slurm would reach every process of the step and need the controller.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

FOREIGN = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
"""Slurm's variables, by which libraries would think that it has started the workers."""
OF_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
NOTHING = "NoDevFiles"
"""What Slurm says if a step has no GPUs."""
SIGNALS = {"term": signal.SIGTERM, "kill": signal.SIGKILL}


class NoGpuError(Exception):
    """Slurm has not given the step what it needs."""


def main(arguments: list[str]) -> int:
    """Keep one unit. Returns the exit code of the step: 0, as the unit's own is in its file."""
    attempt, unit, gpus, folder, *argv = arguments
    keeper = _keeper()
    code_file = os.path.join(attempt, f"exit-{unit}")
    orders = Orders(os.path.join(attempt, f"orders-{unit}"))
    if not take_over(os.path.join(attempt, f"unit-{unit}.alive")):
        return 0
    if ordered := orders.next():  # checked after the unit was taken over: see SlurmUnit
        return int(keeper.write_code(code_file, -ordered))
    try:
        found = environment(os.environ, gpus)
    except NoGpuError as error:
        print(f"pliant: {error}", file=sys.stderr)
        return int(keeper.write_code(code_file, 1))
    os.environ.clear()
    os.environ.update(found)
    return int(keeper.keep(code_file, folder, argv, orders.next))


def take_over(path: str) -> bool:
    """Take the unit over. Returns False if another process has done so before."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    where = {"node": os.environ.get("SLURMD_NODENAME", ""), "pid": os.getpid()}
    os.write(descriptor, json.dumps(where).encode() + b"\n")
    os.close(descriptor)
    return True


class Orders:
    """What the launcher wants of a unit."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._done = ""

    def next(self) -> int:
        """The signal that the unit is to get now; 0 for none, or if it was given before.

        Opening the file makes a file server say what it has now.
        """
        try:
            with open(self._path) as file:
                order = file.read().strip()
        except OSError:
            return 0
        if order == self._done and order != "kill":
            return 0
        self._done = order
        return int(SIGNALS.get(order, 0))


def environment(base: Mapping[str, str], gpus: str) -> dict[str, str]:
    """The environment of a unit: its own GPUs, and of Slurm only the place of its configuration.

    Slurm may count the GPUs of a step from 0. So a slot is a place in Slurm's list, and only without such a
    list the number of a GPU.

    :raises NoGpuError: Slurm gives the step fewer GPUs.
    """
    kept = {name: value for name, value in base.items() if not name.startswith(FOREIGN)}
    if "SLURM_CONF" in base:
        kept["SLURM_CONF"] = base["SLURM_CONF"]
    given = kept.get("CUDA_VISIBLE_DEVICES", "")
    for name in OF_GPUS:
        kept.pop(name, None)
    if gpus == "none":
        return {**kept, "CUDA_VISIBLE_DEVICES": ""}
    if gpus == "slurm":
        return {**kept, "CUDA_VISIBLE_DEVICES": given}
    slots = [int(slot) for slot in gpus.split(",")]
    names = [] if given == NOTHING else [name for name in given.split(",") if name]
    if "CUDA_VISIBLE_DEVICES" not in base:
        names = [str(slot) for slot in range(max(slots) + 1)]
    if max(slots) >= len(names):
        node = base.get("SLURMD_NODENAME", "this node")
        raise NoGpuError(f"slot {max(slots)} of {node} has no GPU: Slurm gives the step {given or 'none'}")
    return {**kept, "CUDA_VISIBLE_DEVICES": ",".join(names[slot] for slot in slots)}


def _keeper() -> ModuleType:
    """``keep.py`` by its path, as this process has no packages."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        return importlib.import_module("keep")
    finally:
        del sys.path[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
