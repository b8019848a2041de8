"""A script without the elastic library under ``pliant profile``: its own steps are timed, then it ends.

The script trains with its own batch, which no other party can change, so a launch measures one configuration:
the samples of a rank, and the micro-steps that keep the job's batch. It needs the standard library only. All
ranks end after the same number of steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ENV_PROFILE: Final = "PLIANT_PROFILE"
VISITS: Final = 3
"""How often the configuration is measured; the fastest that another one confirms counts."""


class ScriptMeasurement:
    """Times the steps of one rank.

    :param request: the file with the request.
    """

    def __init__(self, request: Path, rank: int) -> None:
        asked: dict[str, Any] = json.loads(request.read_bytes())
        self.batch: int | None = max(asked.get("global_batches", ()), default=None)
        """The job's batch, as far as the request knows it."""
        self.local_batch, self.accum, self.parameters = 1, 1, 0
        self._result, self._main = Path(asked["result"]), rank == 0
        self._warmup, self._steps = max(1, asked["warmup"]), asked["iterations"]
        self._seen = 0
        self._first_s: float | None = None
        self._before_s = 0.0
        self._step_s: list[float] = []
        self._points: list[dict[str, Any]] = []

    def step(self, memory: int) -> None:
        """A step is done.

        :param memory: most bytes that this process has held.
        :raises SystemExit: all is measured.
        """
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.monotonic()
        self._seen += 1
        if self._first_s is None:
            self._first_s = time.time()
            self._write(torch, done=False)
        if self._seen > self._warmup:
            self._step_s.append(now - self._before_s)
        self._before_s = now
        if len(self._step_s) == self._steps:
            self._end_visit(memory)
            self._write(torch, done=len(self._points) == VISITS)
        if len(self._points) == VISITS:
            self._leave(torch)

    def _end_visit(self, memory: int) -> None:
        point = {"local_batch": self.local_batch, "accum": self.accum, "peak_memory": memory}
        self._points.append({**point, "step_s": self._step_s})
        self._step_s = []

    def _write(self, torch: Any, *, done: bool) -> None:
        if not self._main:
            return
        found = {
            "points": self._points,
            "parameters": self.parameters,
            "torch": "" if torch is None else str(torch.__version__),
            "first_step_s": self._first_s,
            "done": done,
        }
        temporary = self._result.with_name(f"{self._result.name}.tmp")
        temporary.write_text(json.dumps(found))
        temporary.replace(self._result)

    def _leave(self, torch: Any) -> None:
        """:raises SystemExit: always."""
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        sys.exit()


def measurement_from_env(rank: int, environ: Mapping[str, str] = os.environ) -> ScriptMeasurement | None:
    """Returns None if this process is to train, not to be measured."""
    path = environ.get(ENV_PROFILE)
    return ScriptMeasurement(Path(path), rank) if path else None
