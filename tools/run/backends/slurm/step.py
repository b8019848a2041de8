"""What a step runs on its node: it takes the unit over, gives it its GPUs, and becomes its supervisor.

Run as ``python -I -S step.py ATTEMPT UNIT GPUS FOLDER COMMAND…`` with the environment of the unit; ATTEMPT is
the attempt's folder. GPUS are numbers of slots (``0,2``), ``slurm`` if Slurm has chosen them, or ``none``.

The first step of a unit takes it over, through a file; a second one does nothing. Another file says when the
unit is to end, because a signal of Slurm would reach every process of the step and need the controller.

Run by root as ``step.py KEPT UNIT GPUS`` it keeps a unit of another account. KEPT is the launcher's own
folder of the attempt: what is started as whom, orders, beats and the exit code are there, where only root can
write or read. A job that could write its exit code itself would have its GPUs given to others while it trains
on. For all else this process has the account's file rights, and the command starts with nothing of root's.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

FOREIGN = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
"""Slurm's variables, by which libraries would think that it has started the workers."""
OF_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
OF_NODE = ("SLURM_CONF", "SLURMD_NODENAME", "SLURM_JOB_ID")
STEP = "PLIANT_SLURM_STEP"
"""Variable with the node on which pyxis starts a container; see ``contain.py``."""
SUPERVISOR_ENV = ("CUDA_VISIBLE_DEVICES", "PLIANT_LOG_BYTES")
"""Variables of another account's unit that its supervisor uses."""
NOTHING = "NoDevFiles"
"""Value of Slurm's variable if a step has no GPUs."""
SIGNALS = {"term": signal.SIGTERM, "kill": signal.SIGKILL}


class NoGpuError(Exception):
    """Slurm has not given the step what it needs."""


def main(arguments: list[str]) -> int:
    """Keep one unit. Returns the exit code of the step: 0, as the unit's own is in its file."""
    if len(arguments) == 3:
        return supervise_as(*arguments)
    attempt, unit, gpus, folder, *argv = arguments
    supervisor = _beside("supervisor")
    code_file = os.path.join(attempt, f"exit-{unit}")
    orders = Orders(os.path.join(attempt, f"orders-{unit}"))
    if not take_over(os.path.join(attempt, f"unit-{unit}.alive")):
        return 0
    if ordered := orders.next():  # checked after the unit was taken over: see SlurmUnit
        return int(supervisor.write_code(code_file, -ordered))
    try:
        added = environment(os.environ, gpus)
    except NoGpuError as error:
        print(f"pliant: {error}", file=sys.stderr)
        return int(supervisor.write_code(code_file, 1))
    os.environ.clear()
    os.environ.update(added)
    return int(supervisor.supervise(code_file, folder, argv, order=orders.next))


def supervise_as(kept: str, unit: str, gpus: str) -> int:
    """Keep one unit of another account."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what Slurm's daemon has left open is root's
    supervisor, others = _beside("supervisor"), _beside("supervisor_setuid")
    code_file = os.path.join(kept, f"exit-{unit}")
    try:
        told = _read_order(os.path.join(kept, f"start-{unit}.json"))
        if not take_over(os.path.join(kept, f"unit-{unit}.alive")):
            return 0
    except OSError as error:
        node, why = os.environ.get("SLURMD_NODENAME", "this node"), error.strerror
        print(f"error: root of {node} cannot use {kept}: {why} (no_root_squash?)", file=sys.stderr)
        return 1
    orders = Orders(os.path.join(kept, f"orders-{unit}"))
    if ordered := orders.next():
        return int(supervisor.write_code(code_file, -ordered))
    given = {name: os.environ[name] for name in (*OF_NODE, *OF_GPUS) if name in os.environ}
    asked = {name: value for name, value in told["account"]["env"].items() if name not in OF_GPUS}
    account = others.SetuidAccount(told["account"])
    supervisor.Helpers.load(account.env)
    account.take_file_rights()
    _redirect_output(os.path.join(told["attempt"], "logs", f"launcher-{unit}.log"))
    try:
        account.env = environment({**asked, **given}, gpus)
    except NoGpuError as error:
        print(f"pliant: {error}", file=sys.stderr, flush=True)
        with account.as_root():
            return int(supervisor.write_code(code_file, 1))
    own = {"PATH": os.defpath} | {name: account.env[name] for name in SUPERVISOR_ENV if name in account.env}
    os.environ.clear()
    os.environ.update(own)
    shown = os.path.join(told["attempt"], f"exit-{unit}")
    about = {"order": orders.next, "account": account, "shown": shown}
    return int(supervisor.supervise(code_file, told["cwd"], told["argv"], **about))


def _read_order(path: str) -> Any:
    """What is to be started as whom, in a file that is root's alone.

    :raises OSError: it cannot be read, or is not.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != 0 or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(errno.EPERM, "is not root's alone")
        return json.load(file)


def _redirect_output(path: str) -> None:
    """Let output go to a plain file of the account's, or nowhere if there is something else."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        log = os.open(path, flags, 0o600)
        status = os.fstat(log)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(log)
            raise PermissionError
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


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
    if STEP in base:
        kept[STEP] = f"{base.get('SLURM_JOB_ID', '')}:{base.get('SLURMD_NODENAME', '')}"
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


def _beside(name: str) -> ModuleType:
    """A module of the folder above, ``supervisor.py`` or ``supervisor_setuid.py``: this process has no
    packages.
    """
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
