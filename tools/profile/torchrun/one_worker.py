"""Become a command, with its output in files: what torchrun does for a single worker, without torch.

Run as ``python -I -S one_worker.py FOLDER COMMAND…``. torchrun needs a second to start a worker, and some 300
MB for as long as it lives. Here no process stays beside the worker, so signals and exit codes need no relay.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> None:
    """Redirect the output to private files and become the command; its umask is unchanged."""
    folder, command = arguments[0], arguments[1:]
    umask = os.umask(0o077)
    os.makedirs(folder, exist_ok=True)
    os.umask(umask)
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        file = os.open(os.path.join(folder, name), flags, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell: that is the point
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    main(sys.argv[1:])
