"""torchrun and its workers as forks of a process that has their libraries already, which saves their imports.

``forked.py ADDRESS SOURCE`` executes the source, which imports them, and listens. Started as
torchrun's script is, this file has that process run it, and ends with its exit code.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Client, Listener
from typing import Any, NoReturn

ENV_ADDRESS = "FORKED_AT"
FORK = get_context("fork")


def ask(address: str, words: Sequence[str], env: Mapping[str, str], folder: str, out: str, err: str) -> int:
    """Run a script there; its output goes to these files. Returns its exit code."""
    with Client(address) as server:
        server.send((list(words), dict(env), folder, out, err))
        return int(server.recv())


def run(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    out: int,
    err: int,
    end: Callable[[int], object] = int,
) -> NoReturn:
    from tests.tools.run.elastic.nursery import run_to_its_end  # with torch, which is not for all that ask

    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(out, 1)
    os.dup2(err, 2)
    code = run_to_its_end(*words)
    end(code)
    os._exit(code)


class Worker:
    def __init__(self, handler: Any, words: Sequence[str], env: Mapping[str, str]) -> None:
        script = words[words.index("-u") + 1 :]
        files = handler._stdout.fileno(), handler._stderr.fileno()
        self._process = FORK.Process(target=run, args=(script, env, ".", *files))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.poll()


def serve(address: str, source: str) -> None:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from pliant.tools.profile.torchrun.start import RUN_TORCHRUN

    exec(source)  # noqa: S102 - of the tests
    SubprocessHandler._popen = Worker  # called with the handler by run_torchrun.py
    with Listener(address) as listener:
        while True:
            with listener.accept() as asked:
                words, env, folder, *files = asked.recv()
                if words[0] == __file__:
                    words[0] = RUN_TORCHRUN
                if os.fork() == 0:
                    out, err = (os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in files)
                    run(words, env, folder, out, err, asked.send)


if __name__ == "__main__":
    if ENV_ADDRESS not in os.environ:
        serve(*sys.argv[1:])
    streams = (f"/proc/{os.getpid()}/fd/{number}" for number in (1, 2))
    sys.exit(ask(os.environ[ENV_ADDRESS], sys.argv, os.environ, os.getcwd(), *streams))
