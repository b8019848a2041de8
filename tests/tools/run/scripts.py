"""Training scripts that train nothing: they honour plans and write outcomes as the elastic library does.

They need no torch, so that a test of the launcher takes milliseconds. :class:`PlainBackend` starts a job's
command with Python alone where the real one would start torchrun.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pliant.tools.profile.torchrun.start import ONE_WORKER
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import Handle, Unit
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.backends.slurm.jobs import SlurmJobsBackend

OBEDIENT = '''
"""Trains --samples at --rate per second; stops when the plan says so; crashes after --crash-at samples."""
import argparse, json, os, pathlib, signal, sys, time

options = argparse.ArgumentParser()
options.add_argument("--samples", type=float, default=1e9)
options.add_argument("--rate", type=float, default=1000.0)
options.add_argument("--crash-at", type=float, default=1e18)
options.add_argument("--gate", default="/", help="no end before this file is there")
options.add_argument("--epoch", type=float, default=1e18, help="samples of an epoch, to report its ends")
options.add_argument("--deaf", action="store_true", help="ignore plans")
options.add_argument("--stubborn", action="store_true", help="ignore plans and SIGTERM")
options = options.parse_args()
if options.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(os.environ["PLIANT_JOB_DIR"])
plan = json.loads((folder / "plan.json").read_text())
slots = [member["slot"] for member in plan["members"]]
slot = os.environ["PLIANT_SLOT"]
rank = 0 if slot == "rank" else slots.index(slot)
attempt = folder / "attempts" / str(plan["attempt"])
saved = folder / f"saved-{rank}"
done = float(saved.read_text()) if saved.exists() else 0.0


def leave(outcome, code=0):
    text = json.dumps({"outcome": outcome, "samples_done": done, "message": "as told"})
    temporary = attempt / f"worker-{rank}.tmp"
    temporary.write_text(text)
    temporary.replace(attempt / f"worker-{rank}.json")
    sys.exit(code)


def say(**event):
    if rank == 0:
        with (attempt / "progress.jsonl").open("a") as file:
            if file.tell() == 0:
                file.write(json.dumps({"schema": "pliant.event/1"}) + "\\n")
            file.write(json.dumps({"time": time.time(), "job": plan["job"], **event}) + "\\n")


print("hello from", slot, flush=True)
reported = None
while done < options.samples or not os.path.exists(options.gate):
    time.sleep(0.01)
    done = min(options.samples, done + options.rate * 0.01)
    if done != reported:
        say(event="progress", samples_done=done, loss=1.0 / (1.0 + done))
    if done // options.epoch > (reported or 0.0) // options.epoch:
        epoch = int(done // options.epoch) - 1
        say(event="epoch", samples_done=done, loss=1.0 / (1.0 + done), metric=0.5, detail={"epoch": epoch})
    reported = done
    if done >= options.crash_at:
        leave("crashed", 1)
    if not (options.deaf or options.stubborn) and json.loads((folder / "plan.json").read_text())["abort"]:
        saved.write_text(str(done))
        leave("stopped")
leave("done")
'''

EXIT = "import sys; sys.exit(int(sys.argv[1]))"
ALWAYS_BY_TORCHRUN = "by_torchrun.py"
"""A script of this name is started as a user's is."""


class PlainBackend(LocalBackend):
    """Starts Python where the real backend starts torchrun, or a worker: one worker a unit."""

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        super().start(handle, [replace(unit, argv=plain(unit.argv)) for unit in units])


class PlainSlurmBackend(SlurmBackend):
    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        super().start(handle, [replace(unit, argv=plain(unit.argv)) for unit in units])


class PlainJobsBackend(SlurmJobsBackend):
    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        super().start(handle, [replace(unit, argv=plain(unit.argv)) for unit in units])


def plain(argv: Sequence[str]) -> tuple[str, ...]:
    """The job's own command in the command line of a unit, started by Python."""
    if any(word.endswith(ALWAYS_BY_TORCHRUN) for word in argv):
        return tuple(argv)
    if ONE_WORKER in argv:
        return tuple(argv[argv.index(ONE_WORKER) + 2 :])
    return (sys.executable, *argv[argv.index("--") + 1 :])


def script(folder: Path, text: str = OBEDIENT, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)
