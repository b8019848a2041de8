"""What each task of an attempt's Slurm job runs: it finds its unit, its GPUs and its address.

Run as ``python -I -S task.py ATTEMPT``; ATTEMPT is the attempt's folder, whose launch record has the units in
the order of the tasks. ``step.py`` then takes the unit over.

In a job of another account than the launcher's this is that account's process, and what it reads a copy that
the account could change: all of it concerns what runs as this account alone.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN = "--local-addr="
FIRST = "--master-addr="
ENV_ADDRESS = "PLIANT_ADDRESS"


class TooFewGpusError(Exception):
    """Slurm has given the task too few GPUs."""


def main(arguments: list[str]) -> int:
    (attempt,) = arguments
    number = int(os.environ["SLURM_PROCID"])
    if (unit := unit_of(attempt, number)) is None:
        return 0
    first = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    own = address_towards(first) if first else ""
    try:
        gpus = gpus_of(os.environ, wanted=len(names(unit["env"].get(VISIBLE, ""))))
    except TooFewGpusError as error:
        print(f"pliant: {error}", file=sys.stderr)
        return int(_by_place("supervisor").write_code(os.path.join(attempt, f"exit-{number}"), 1))
    os.environ.update(unit["env"])
    os.environ.update({VISIBLE: ",".join(gpus), **({ENV_ADDRESS: own} if own else {})})
    words = [attempt, str(number), "slurm" if gpus else "none", unit["cwd"]]
    return int(_by_place("step", "slurm").main([*words, *on_this_node(unit["argv"], own, first)]))


def unit_of(attempt: str, number: int) -> Any:
    """The command, folder and environment of a unit; None if there is none of that number.

    Of another account's unit the limits and the umask hold from here on.
    """
    try:
        with open(os.path.join(attempt, f"start-{number}.json")) as file:
            unit = json.load(file)
    except FileNotFoundError:
        with open(os.path.join(attempt, "launch.json")) as file:
            units = json.load(file)["units"]
        return units[number] if number < len(units) else None
    account = unit["account"]
    os.umask(account["umask"])
    for limit, value in account["limits"]:
        _, most = resource.getrlimit(limit)
        within = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (within, within))
    return {**unit, "env": account["env"]}


def gpus_of(env: Mapping[str, str], *, wanted: int) -> list[str]:
    """The GPUs of this task: those that Slurm names, or its share if Slurm names all tasks' on the node.

    :raises TooFewGpusError: there are fewer than wanted.
    """
    if not wanted:
        return []
    given = names(env.get(VISIBLE, ""))
    if len(given) > wanted:
        begin = int(env.get("SLURM_LOCALID", "0")) * wanted
        given = given[begin : begin + wanted]
    if len(given) < wanted:
        raise TooFewGpusError(f"{wanted} GPUs are needed, Slurm gives the task {','.join(given) or 'none'}")
    return given


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name and name != "NoDevFiles"]


def on_this_node(argv: Sequence[str], own: str, first: str) -> list[str]:
    """The command of a torchrun that meets others, with this node's address and the first node's."""
    end = argv.index("--") if "--" in argv else len(argv)
    if not own or not any(word.startswith(FIRST) for word in argv[:end]):
        return list(argv)
    known = {OWN: own, FIRST: first}
    return [
        next((f"{begin}{value}" for begin, value in known.items() if word.startswith(begin)), word)
        for word in argv[:end]
    ] + list(argv[end:])


def address_towards(other: str) -> str:
    """The address of this machine on the route to another; empty if there is none. Sends nothing."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _by_place(name: str, *folder: str) -> ModuleType:
    """A module of the backends by its path, as this process has no packages."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *folder))
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
