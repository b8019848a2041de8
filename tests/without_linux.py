"""``python -m tests.without_linux COMMANDS`` runs ``pliant`` without what only Linux has, in one process.

COMMANDS is a JSON list of lists of words. Libraries are imported first: they are built for this system.
"""

import builtins
import io
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

ONLY_LINUX: Final = {
    os: (
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "eventfd", "pipe2"),
        *(
            "posix_fadvise",
            "posix_fallocate",
            "copy_file_range",
            "getrandom",
            "setresuid",
            "unshare",
            "O_TMPFILE",
        ),
    ),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo", "pidfd_send_signal"),
    time: ("CLOCK_BOOTTIME",),
}
"""Names that Python has on Linux and not on macOS."""


def take_away() -> None:
    """Remove these names, ``/proc`` and ``/sys``, and say that the system is another."""
    import numpy as np  # noqa: F401
    import pandas as pd  # noqa: F401
    import psutil
    import scipy.optimize
    import scipy.stats  # noqa: F401

    for module, names in ONLY_LINUX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    del psutil.Process.cpu_affinity
    sys.platform = "darwin"
    real = builtins.open

    def without_proc(file: Any, *words: Any, **more: Any) -> Any:
        if isinstance(file, str | Path) and str(file).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return real(file, *words, **more)

    builtins.open = io.open = without_proc  # type: ignore[assignment]


def main(commands: list[list[str]]) -> int:
    """Run them in turn; the first exit code that is not 0."""
    take_away()
    from pliant.cli.main import main as pliant

    for words in commands:
        sys.argv = ["pliant", *words]
        try:
            pliant()
        except SystemExit as end:
            if end.code:
                return int(end.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
