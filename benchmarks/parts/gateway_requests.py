"""How many orders of other accounts the door of a shared run takes in a second of its processor time.

An operator changes the priority of another account's job again and again, a connection each: the kernel says
who asks, roles say whether it may, and the order is in the spool when it is answered. The rest of the run's
work on an order is the same as without a door.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

import psutil

from benchmarks.parts.figure import Figure, NotMeasurableError
from tests.tools.run.gateway.people import ADA, OPS, ROLES, all_may_enter, shared_run

ORDERS: Final = 400
VISITS: Final = 3
MANY: Final = 1_000_000_000
JOB: Final = "asked-about"


def figures(orders: int = ORDERS, visits: int = VISITS) -> list[Figure]:
    """The best of several visits.

    :raises NotMeasurableError: this is not root, which alone becomes other accounts.
    """
    if os.geteuid() != 0:
        raise NotMeasurableError("needs root: it becomes several accounts")
    with all_may_enter() as folder, shared_run(folder) as run:
        run.set_roles(**ROLES, limits={"requests_per_second": MANY, "burst": MANY})
        job = {"id": JOB, "gpus": {"requested": 1}, "command": ["train.py"]}
        done = run.by(ADA, "submit -", stdin=json.dumps(job) + "\n")
        if done.exit_code:
            raise RuntimeError(done.stderr)
        asked = [
            json.dumps({"ask": "jobs", "action": "priority", "jobs": [JOB], "priority": number}).encode()
            for number in range(orders)
        ]
        best = max(_per_second(run, asked) for _ in range(visits))
    return [Figure("authorised_requests_per_s", round(best, 1), "1/s", None)]


def _per_second(run: Any, asked: list[bytes]) -> float:
    door = next(each for each in psutil.process_iter() if _is_gateway_of(each, str(run.state)))
    before = door.cpu_times()
    for line in asked:
        said = run.ask(OPS, line + b"\n")
        if "error" in said:
            raise RuntimeError(said["error"])
    after = door.cpu_times()
    return len(asked) / (after.user + after.system - before.user - before.system)


def _is_gateway_of(process: psutil.Process, state: str) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    return "pliant.tools.run.gateway.server" in line and state in line
