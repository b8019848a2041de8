"""Start one command, wait for it, and write its exit code to a file: outcomes outlive the launcher.

Run as ``python -I -S keep.py CODE_FILE FOLDER COMMAND…``; the command starts in the folder. Imports next
to nothing, so it starts in milliseconds.
SIGTERM is passed on to the command; whatever ends it, the code file says so (negative: the signal).
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code of this process (0: the code file was written)."""
    code_file, folder, argv = arguments[0], arguments[1], arguments[2:]
    child: list[int] = []
    terminated: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        terminated.append(number)
        for pid in child:
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, forward)
    try:
        os.chdir(folder)
        child.append(os.posix_spawnp(argv[0], argv, os.environ, setsigdef=[signal.SIGTERM]))
    except OSError as error:
        print(f"{argv[0]}: cannot be started in {folder}: {error.strerror}", file=sys.stderr)
        return write_code(code_file, 127)
    if terminated:
        os.kill(child[0], signal.SIGTERM)
    os.waitid(os.P_PID, child[0], os.WEXITED | os.WNOWAIT)
    pid = child.pop()  # while it is not yet reaped, so that no signal goes to another process of its number
    _, status = os.waitpid(pid, 0)
    return write_code(code_file, os.waitstatus_to_exitcode(status))


def write_code(path: str, code: int) -> int:
    """Write the exit code as a whole or not at all."""
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        file.write(f"{code}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
