"""A command that is killed at one of its own steps: ``python -m … STEP before|after COUNT ARGUMENTS…``.

STEP names a function as ``module:name`` or ``module:Class.name``; the process kills itself as with
``kill -9`` before, or after, its COUNT-th call.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from tests.tools.run import runner_process


def main() -> None:
    step, moment, count, *words = sys.argv[1:]
    arm(step, moment, int(count))
    sys.argv[1:] = words
    runner_process.main()


def arm(step: str, moment: str, count: int) -> None:
    """Replace the function by one that kills this process."""
    module, _, path = step.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    original, calls = getattr(holder, name), []

    def deadly(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if moment == "before" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if moment == "after" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, deadly)


if __name__ == "__main__":
    main()
