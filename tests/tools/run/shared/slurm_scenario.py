"""A shared run on a Slurm of its own, whose hosts have three accounts more: KIND BACKEND FOLDER UIDS.

It is a process of its own since these accounts are in files that it alone sees. "hostile": one account's job
trains, another's does all the harm it can, and a third's is cancelled; the service is killed in the middle.
"elastic": one account's job gives a GPU to another's and trains on. ``service`` as the first argument runs
that service, and ``plain`` as its last one a stand-in for torchrun.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parts.slurm_cluster import NoSlurmError, SlurmCluster, slurm_cluster
from pliant.schemas.cluster import Cluster
from pliant.tools.profile.torchrun.start import ONE_THREAD
from pliant.tools.run.backends.protocol import Backend, ProcessLimits
from pliant.tools.run.backends.slurm import jobs as slurm_jobs
from pliant.tools.run.service import decisions
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.submit import cancel, submit
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.scripts import OBEDIENT, PlainJobsBackend, PlainSlurmBackend
from tests.tools.run.shared.users import of_user, submit_event_of
from tests.tools.run.site import QUICK, Site, environment, in_order, python_path, until
from tests.tools.run.test_training import ELASTIC, slow_until_the_gate

PROCESSES = 60
SHOWS = """
import json, os, resource, time
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        children.append(pid)
except OSError as error:
    refused = error.errno
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
umask = os.umask(0o077)
print(json.dumps({
    "ids": [*os.getresuid(), *os.getresgid()], "groups": sorted(os.getgroups()), "umask": umask,
    "core": resource.getrlimit(resource.RLIMIT_CORE), "children": len(children), "refused": refused,
    "env": dict(os.environ),
}), flush=True)
"""
HARMS = """
import contextlib, os, pathlib, subprocess, sys, time
secret, gate = map(pathlib.Path, sys.argv[1:])
attempt = pathlib.Path(os.environ["PLIANT_JOB_DIR"]) / "attempts/1"


def put(path, make):
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        path.rename(f"{path}.was")
    make(path)


link, pipe = (lambda path: path.symlink_to(secret)), os.mkfifo
for name in ("launcher-0.log", "slurm.log", "srun-0.log"):
    put(attempt / "logs" / name, link)
for name in ("unit-0.displaced", "unit-0.use", "exit-0.tmp", "start-0.json"):
    put(attempt / name, link)
for name in ("unit-0.alive", "orders-0", "launch.json", "worker-0.json"):
    put(attempt / name, pipe)
put(attempt / "exit-0", lambda path: path.write_text("0"))
listed = subprocess.run(["squeue", "-h", "--me", "-o", "%i %j"], capture_output=True, text=True, check=True)
for number, name in map(str.split, listed.stdout.splitlines()):
    if name.endswith(".b.1"):
        subprocess.run(["scontrol", "update", f"jobid={number}", "jobname=another"], check=True)
        pathlib.Path("renamed").touch()
pathlib.Path("harmed").touch()
while not gate.exists():
    time.sleep(0.05)
print("of b alone", flush=True)
sys.exit(3)
"""


def serve(state: Path, uids: dict[str, int], schedule: str | None, *, stand_in: bool) -> None:
    def opened(name: str, nodes: Cluster, dirs: StateDir) -> Backend:
        return PlainJobsBackend(nodes, dirs) if name == "slurm-jobs" else PlainSlurmBackend(nodes, dirs)

    if stand_in:
        vars(runner)["open_backend"] = opened
    vars(slurm_jobs)["SHOWS_S"] = 1.0
    vars(decisions)["submit_event"] = partial(submit_event_of, uids)
    limits = ProcessLimits(processes=PROCESSES) if stand_in else ProcessLimits()
    options = RunOptions(state, schedule, shared=True, timeouts=QUICK, limits=limits, retries=0)
    run_until_done(options, lambda _log, _time_s: None)


class Scenario:
    def __init__(
        self, backend: str, folder: Path, slurm: SlurmCluster, uids: Sequence[int], gpus: int
    ) -> None:
        self.backend, self.slurm, self.site = backend, slurm, Site(folder)
        self.ann, self.bob, self.cyd = uids
        self.dirs = StateDir(self.site.state)
        nodes = ({"name": "n0", "gpus": gpus},)
        self.site.cluster = Cluster.model_validate({"nodes": nodes, "slots": "cpu", "backend": backend})

    def service(self, schedule: str = "", *, stand_in: bool = True) -> subprocess.Popen[str]:
        uids = json.dumps({"a": self.ann, "b": self.bob, "c": self.cyd})
        own = [sys.executable, "-m", __spec__.name, "service", str(self.site.state), uids, schedule]
        own += ["plain"] if stand_in else []
        env = {**environment(), **self.slurm.env, "SECRET_OF_THE_SERVICE": "x"}
        return subprocess.Popen(own, cwd=self.site.folder, env=env, text=True)

    def phases(self) -> dict[str, str]:
        return {name: job.phase for name, job in self.site.log().jobs.items()}

    def play(self) -> None:
        site, secret, places = self.site, self.site.folder / "secret", {}
        secret.mkdir(mode=0o700)
        (secret / "key").write_text("of root alone")
        for name, uid in (("a", self.ann), ("b", self.bob), ("c", self.cyd)):
            places[name] = site.folder / f"work-{name}"
            places[name].mkdir(mode=0o700)
            os.chown(places[name], uid, uid)
        site.job("a", "--samples", 200, "--gate", site.gate, text=SHOWS + OBEDIENT, workdir=str(places["a"]))
        site.job("b", secret / "key", site.gate, text=HARMS, workdir=str(places["b"]))
        site.job("c", "--samples", 200, "--gate", site.gate, text=OBEDIENT, workdir=str(places["c"]))
        run = self.service(site.schedule("fifo"))
        until(lambda: run.poll() is not None or (places["b"] / "harmed").exists())
        assert (places["b"] / "renamed").exists() == (self.backend == "slurm-jobs")
        until(lambda: run.poll() is not None or min(map(self.progress, "ac")) > 0)
        run.kill()
        run.wait()
        run = self.service()
        cancel(site.state, ["c"])
        until(lambda: run.poll() is not None or self.phases()["c"] == "cancelled")
        if self.backend == "slurm":
            assert self.phases() == {"a": "running", "b": "running", "c": "cancelled"}, "b says it has ended"
        else:
            until(lambda: run.poll() is not None or self.queue() == [self.ann])
        site.gate.touch()
        assert run.wait() == 0
        self.check(secret)

    def play_elastic(self) -> None:
        """Of two GPUs one job has both, until another account's wants one; no sample is lost."""
        site = self.site
        env = python_path()
        site.job("a", 24, 0.5, text=slow_until_the_gate(site), samples=24 * 64, high=2, env=env)
        site.job("b", 2, 0.02, text=ELASTIC, samples=2 * 64, env=env)
        late = site.job("c", 2, 0.02, text=ELASTIC, samples=2 * 64, env=env)
        del site.jobs[-1]
        run = self.service(site.schedule("fair-share"), stand_in=False)
        until(lambda: run.poll() is not None or (site.state / "events.jsonl").exists())
        self.held(run, "start a 1; grow a 2")
        until(lambda: run.poll() is not None or site.log().jobs["a"].attempt.change is None)
        submit(site.state, [late], "jobs", folder=site.folder, now_s=0.0)
        self.held(run, "grow a 2; shrink a 1")
        site.gate.touch()
        assert run.wait() == 0
        log = site.log()
        assert self.phases() == dict.fromkeys("abc", "finished")
        assert log.jobs["a"].samples_done == 24 * 64
        assert [line for line in site.of("a") if line.split()[0] in ("resume", "preempt", "requeue")] == []
        for name, uid in (("a", self.ann), ("b", self.bob), ("c", self.cyd)):
            assert {path.lstat().st_uid for path in self.dirs.job(name).path.rglob("*")} == {uid}

    def held(self, run: subprocess.Popen[str], wanted: str) -> None:
        until(lambda: run.poll() is not None or in_order(wanted.split("; "), self.site.of("a")))
        assert run.poll() is None, {name: job.reason for name, job in self.site.log().jobs.items()}

    def progress(self, job: str) -> float:
        found = self.site.log().jobs.get(job)
        return 0.0 if found is None else found.samples_done

    def queue(self) -> list[int]:
        return [int(uid) for uid in self.slurm.command("squeue", "-h", "-t", "R", "-o", "%U").split()]

    def check(self, secret: Path) -> None:
        phases = self.phases()
        assert (phases["a"], phases["c"]) == ("finished", "cancelled"), phases
        assert phases["b"] == ("failed" if self.backend == "slurm" else "finished"), phases
        for name, uid in (("a", self.ann), ("b", self.bob), ("c", self.cyd)):
            folder = self.dirs.job(name).path
            assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (uid, 0o700)
            assert {path.lstat().st_uid for path in folder.rglob("*")} == {uid}
            assert not (folder / "attempts/2").exists()
        until(lambda: not any(map(of_user, (self.ann, self.bob, self.cyd))))
        assert [(path.name, path.read_text()) for path in secret.iterdir()] == [("key", "of root alone")]
        assert b"of root alone" not in self.dirs.events.read_bytes()
        kept = [path for path in self.dirs.kept.rglob("*") if path.is_file()]
        assert not [path for path in kept if b"of b alone" in path.read_bytes()]
        self.check_facts()

    def check_facts(self) -> None:
        said = self.dirs.job("a").attempt(1).launcher_log(0).read_text()
        found: dict[str, Any] = json.loads(said.splitlines()[0])
        ids = [self.ann] * 6
        assert (found["ids"], found["groups"]) == (ids, [self.ann, self.cyd + 1]), found
        assert (found["umask"], found["core"]) == (0o077, [0, 0])
        assert 0 < found["children"] < PROCESSES, found
        env = found["env"]
        assert (env["HOME"], env["USER"]) == ("/nowhere", "pliant-ann")
        assert "SECRET_OF_THE_SERVICE" not in env
        login = {
            "HOME",
            "LANG",
            "LOGNAME",
            "PATH",
            "SHELL",
            "USER",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "_",
            "LC_CTYPE",
        }
        slurms = {"SLURM_CONF", "HOSTNAME", "ENVIRONMENT", "TMPDIR"}
        own = {"PYTHONHASHSEED", "TORCHINDUCTOR_CACHE_DIR"}
        own |= {"TENSORBOARD_LOGGING_DIR", "WANDB_RESUME", "WANDB_RUN_ID"}
        others = {"PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", *ONE_THREAD, *own}
        left = {name for name in env if not name.startswith("PLIANT_")} - login - slurms - others
        assert left == set(), left


def main(words: Sequence[str]) -> int:
    if words[0] == "service":
        _, state, uids, schedule, *plain_words = words
        serve(Path(state), json.loads(uids), schedule or None, stand_in=bool(plain_words))
        return 0
    kind, backend, folder, *uids_of = words
    try:
        with slurm_cluster((0,)) as slurm:
            scenario = Scenario(
                backend, Path(folder), slurm, [*map(int, uids_of)], 2 if kind == "elastic" else 3
            )
            scenario.play_elastic() if kind == "elastic" else scenario.play()
    except NoSlurmError as error:
        print(error)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
