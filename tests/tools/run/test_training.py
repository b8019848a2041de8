"""Real training: torchrun, the elastic library, and slots that are CPUs."""

import re
import signal
import stat
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from pliant.schemas.io import read_schedule
from pliant.tools.profile.predictor import ended_jobs
from pliant.tools.profile.torchrun.start import kill, strays
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_and_follow, run_once, run_until_done
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.submit import order_nodes, submit
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import read_log
from pliant.tools.run.watch.job_page import history
from pliant.tools.schedule.decide import Question
from tests.builders import cluster
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, in_order, until
from tests.tools.run.test_follow import Condition, Step, never, phase, story, trains

pytestmark = pytest.mark.torch

ELASTIC = """
import sys, time, torch
from pliant.tools.run import elastic

def alone():
    return not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1

epochs, step_s = int(sys.argv[1]), float(sys.argv[2])
job = elastic.init(batch_size=8)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), data)
for epoch in job.epochs(epochs):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
        time.sleep(step_s if alone() else 0.01)
"""


def stops_at(target: float, metric: str) -> str:
    """A script that ends itself once a metric, an expression in it, is that large."""
    begin = f"stopping = elastic.EarlyStopping(target={target})\njob.register(stopping=stopping)\nfor epoch"
    end = f"    job.log(metric={metric})\n    if stopping.reached({metric}):\n        break\n"
    return ELASTIC.replace("for epoch", begin) + end


PLAIN = """
import os, sys, torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("of", int(total), "with", os.environ["OMP_NUM_THREADS"], "thread")
dist.destroy_process_group()
sys.exit(int(total) - 1)
"""


DISTRIBUTED_OR_NOT = """
import os, sys

ddp = int(os.environ.get("RANK", -1)) != -1  # as scripts tell a torchrun run from a single process
print("several" if ddp else "one", sys.argv[1:], {name for name in os.environ if "WORLD_SIZE" in name})
"""


def pliant_run(site: Site, *words: object, umask: int = -1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pliant.cli", "run", "--until-done", *map(str, words)],
        cwd=site.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        umask=umask,
    )


def run(site: Site, policy: str | None, *steps: Step | Condition, interrupted: bool = False) -> RunLog:
    """Take each step once its condition holds; run until all is done, or interrupt it after the steps."""
    view = story(*steps) if interrupted else story(*steps, never)
    return run_until_done(replace(site.options(policy), timeouts=Timeouts()), view)[0]


def slow_until_the_gate(site: Site) -> str:
    """However late the gate is made, there is something left to train."""
    gate = f"import pathlib\ngate = pathlib.Path({str(site.gate)!r})\n"
    return gate + ELASTIC.replace("if alone()", "if not gate.exists()")


def workers(site: Site, job_id: str) -> list[psutil.Process]:
    script = str(site.folder / f"{job_id}.py")
    return [one for one in left_running(site.folder) if script in one.cmdline()[1:3]]


def details(site: Site, job_id: str, *kinds: str) -> list[dict[str, object]]:
    return [
        event.detail or {}
        for event in site.events()
        if event.job == job_id and (not kinds or event.event in kinds)
    ]


def in_place(site: Site, job_id: str, count: int) -> Condition:
    return lambda _: [each.get("mechanism") for each in details(site, job_id)].count("in place") == count


def test_a_job_grows_and_leaves_a_drained_node(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """From two workers to three and back. The other job's supervisor stands still, which costs it nothing."""
    site.cluster = cluster(2, 1, slots="cpu")
    site.job("long", 24, 0.5, text=slow_until_the_gate(site), samples=24 * 64, high=3)
    # quick at first: the noise of some gradients is known before the first measurement is due
    text = stops_at(3.0, "epoch").replace("step_s if alone() else 0.01", "step_s if epoch > 1 else 0.0")
    site.job("early", 50, 0.5, text=text, samples=50 * 64, high=1, elastic="size+batch")

    def stop_supervisor() -> None:
        (worker,) = workers(site, "early")
        supervisor = worker.parent()
        assert supervisor is not None
        assert supervisor.children() == [worker], "there is nothing between them"
        supervisor.suspend()

    def leave_n1() -> None:
        order_nodes(site.state, "drain", ["n1"], now=True, within_s=60.0)

    log = run(
        site,
        "fair-share",
        (trains("early"), stop_supervisor),
        (in_place(site, "long", 1), leave_n1),
        (in_place(site, "long", 2), site.gate.touch),
    )
    assert site.of("early") == ["submit early", "start early 1", "finish early 0"]
    assert site.of("long") == [
        *("submit long", "start long 2", "grow long 3", "shrink long 2", "finish long 0")
    ]
    assert {name: job.samples_done for name, job in log.jobs.items()} == {"long": 24 * 64, "early": 4 * 64}
    plan = read_plan(StateDir(site.state).job("long"))
    assert plan is not None
    assert (plan.attempt, plan.workers) == (1, (0, 1)), "those that were there stayed"
    assert not any("lost" in each for each in details(site, "long")), "no change was taken for a death"
    assert "lost" not in caplog.text
    epochs = {name: [e for e in site.events() if (e.event, e.job) == ("epoch", name)] for name in log.jobs}
    losses = [event.loss or 0.0 for event in epochs["long"]]
    assert len(losses) == 24
    assert losses[-1] < losses[0] / 4
    assert [event.metric for event in epochs["early"]] == [0.0, 1.0, 2.0, 3.0]
    assert all(event.loss is not None for event in epochs["early"][:-1])
    seen = [each["observed"] for each in details(site, "early", "progress") if "observed" in each]
    assert {(tuple(one["placement"]), one["local_batch"], one["accum"]) for one in seen} == {((1,), 8, 1)}  # type: ignore[index]
    assert all(one["step_seconds"] > 0 for one in seen)  # type: ignore[index]
    assert any(each.get("noise_scale", 0) > 0 for each in details(site, "early", "progress"))  # type: ignore[operator]


def test_a_lost_worker_is_replaced_as_its_job_trains(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """One is killed, one stands still; then the run is interrupted, and the job goes on where it was."""
    site.job("a", 80, 0.5, text=slow_until_the_gate(site), samples=80 * 64, high=2)
    log = run(
        site,
        "fair-share",
        (trains("a"), lambda: workers(site, "a")[0].send_signal(signal.SIGKILL)),
        # one change without it, one with another in its place
        (in_place(site, "a", 2), lambda: workers(site, "a")[0].send_signal(signal.SIGSTOP)),
        in_place(site, "a", 4),
        interrupted=True,
    )
    saved = log.jobs["a"].samples_done
    assert (log.jobs["a"].phase, left_running(site.folder)) == ("preempted", [])
    assert [each.get("lost") for each in details(site, "a")].count(True) == 2
    assert caplog.text.count("lost the workers on n0/") == 2
    killed, still = [each for each in history(StateDir(site.state), "a") if each.event == "lost"]
    for lost in (killed, still):
        assert re.fullmatch(r"lost the worker on n0/\d, the others train on", lost.words)
    assert "SIGKILL" in killed.reason
    assert still.reason.startswith("it stood still")
    site.gate.touch()
    assert run(site, None).jobs["a"].samples_done == 80 * 64
    assert site.of("a") == ["submit a", "start a 2", "requeue a 0", "resume a 2", "finish a 0"]
    (resumed,) = [e.samples_done or 0 for e in site.events() if (e.detail or {}).get("after") == "resume"]
    assert 0 < saved < resumed


OWN_GROUP = 'import torch\ntorch.distributed.init_process_group("gloo")\n'
FAILURES = {
    "import no_such_module": "exit code 1: ModuleNotFoundError: No module named 'no_such_module'",
    "import os; os.kill(os.getpid(), 9)": "killed by SIGKILL, which the system sends where memory runs out",
    "import sys; sys.exit(3)": "exit code 3: nothing on stderr",
    "def train(:\n    pass\n": "exit code 1: SyntaxError: invalid syntax (bad-3.py, line 1)",
}


def test_scripts_run_as_without_pliant_and_failures_say_why(site: Site) -> None:
    """The state is its owner's alone, whatever the umask; what scripts write has theirs."""
    mine = "import pathlib, sys\npathlib.Path(sys.argv[0] + '.mine').touch()\n"
    site.job("elastic", 2, 0.0, text=mine + ELASTIC, elastic="size", samples=2 * 64)
    site.job("several", text=mine + PLAIN.replace("- 1", "- 2"), gpus=2)
    site.job("one", "--lr", 1, text=DISTRIBUTED_OR_NOT)
    for number, text in enumerate(FAILURES):
        site.job(f"bad-{number}", text=text)
    site.job("bad-4", 2, 0.0, text=OWN_GROUP + ELASTIC, high=1)
    with pliant_run(
        site, site.schedule("fifo"), "--state", site.state, "--retries", 0, umask=0o022
    ) as process:
        _, errors = process.communicate()
    assert process.returncode == 5, errors
    log = read_log(site.state)
    failed = {name: job.reason or "" for name, job in log.jobs.items() if job.phase == "failed"}
    own_group = failed.pop("bad-4")
    assert failed == {f"bad-{number}": reason for number, reason in enumerate(FAILURES.values())}
    assert own_group.startswith("the elastic library connects the workers: leave out init_process_group")
    assert "environment variable MASTER_ADDR expected" in own_group, "torch's own words"
    assert all(f"job {name} failed: {reason}" in errors for name, reason in failed.items())
    assert in_order(["start several 2", "finish several 0"], site.of("several"))
    assert site.of("elastic")[-1] == "finish elastic 0"
    printed = {
        name: [path.read_text() for path in StateDir(site.state).job(name).path.rglob("stdout.log")]
        for name in ("several", "one")
    }
    assert printed == {"several": ["of 2 with 1 thread\n"] * 2, "one": ["one ['--lr', '1'] set()\n"]}
    modes = {path: (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in site.state.rglob("*")}
    names = {path.name for path in modes}
    assert names >= {"stdout.log", "step-000000000016.ckpt", "exit-0", "launcher-0.log"}
    assert {path: mode for path, mode in modes.items() if mode not in ((True, 0o700), (False, 0o600))} == {}
    own = {path.name: stat.S_IMODE(path.stat().st_mode) for path in site.folder.glob("*.mine")}
    assert own == {"elastic.py.mine": 0o644, "several.py.mine": 0o644}


def test_a_job_without_work_grows_by_its_epochs_and_ends_itself(site: Site) -> None:
    batch = {"size": 8, "min": 8, "max": 16, "per_gpu_max": 8}
    text = stops_at(2.0, "1 if alone() else 2")
    spec = site.job("a", 100_000, 0.03, text=text, work=None, elastic="size+batch", batch=batch, high=2)
    submit(site.state, [spec], "jobs", folder=site.folder, now_s=0.0)
    options = RunOptions(site.state, question=Question("ones"), cluster=str(site.folder / "cluster.json"))
    run_and_follow(options, story(phase("a", "finished", "failed")))
    assert site.of("a") == ["submit a", "start a 1", "grow a 2", "finish a 0"]
    changes = {each.event: each for each in site.events() if each.event in ("start", "grow")}
    assert [changes[name].global_batch for name in ("start", "grow")] == [8, 16]
    assert "in place" in [each.get("mechanism") for each in details(site, "a")]
    epochs = [each for each in site.events() if each.event == "epoch"]
    assert [each.metric for each in epochs] == [1.0] * (len(epochs) - 1) + [2.0], "it ended when it had grown"
    assert all(each.loss is not None for each in epochs[:-1])
    assert epochs[-1].samples_done == 64 * len(epochs)
    (learned,) = ended_jobs(site.events())
    assert learned.total_samples == 64 * len(epochs)
    kept = read_schedule(site.state / "schedule.json").forecast
    assert kept is not None
    assert kept.predictor.jobs == 1
    plan = read_plan(StateDir(site.state).job("a"))
    assert plan is not None
    assert (plan.attempt, plan.lr_scale) == (1, 2.0), "the learning rate follows the batch"


REMOVES = """
import os, shutil, sys
while os.path.exists(folder := os.environ["PLIANT_JOB_DIR"]):  # its supervisor may write there meanwhile
    shutil.rmtree(folder, ignore_errors=True)
sys.exit(int(sys.argv[1]))
"""
NO_OUTCOME = 'the script ended without an outcome: use the elastic library, or set "elastic" to "none"'


def test_a_job_may_remove_its_own_folder(site: Site) -> None:
    removed = "its folder was removed while it ran"
    ends = {
        "fine": (0, "none", ("finished", "")),
        "failing": (3, "none", ("failed", f"exit code 3; {removed}")),
        "silent": (0, "size", ("failed", f"{NO_OUTCOME}; {removed}")),
    }
    for name, (code, elastic, _) in ends.items():
        site.job(name, code, text=REMOVES, elastic=elastic)
    log, _ = run_until_done(site.options("fifo", retries=0), lambda _log, _now_s: None)
    for name, (*_, end) in ends.items():
        assert site.of(name)[:2] == [f"submit {name}", f"start {name} 1"]
        assert (log.jobs[name].phase, log.jobs[name].reason) == end


STAYS = """
import os, shutil, sys, time
while not os.path.exists(sys.argv[2]):  # else a start might end halfway, with its record gone
    time.sleep(0.01)
shutil.rmtree(os.environ["PLIANT_JOB_DIR"])
with open(sys.argv[1], "a") as began:
    began.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def test_a_launcher_that_finds_no_folder_ends_what_runs_first(site: Site) -> None:
    """Each call from cron is a launcher that knows of the first one by its processes alone."""
    began, may_go = site.folder / "began", site.folder / "started"
    site.job("a", began, may_go, text=STAYS, elastic="none")
    mark = ENV_JOB_DIR, str(StateDir(site.state.resolve()).job("a").path)

    def pids() -> list[int]:
        return [int(line) for line in began.read_text().split()] if began.exists() else []

    try:
        for count in (1, 2):
            may_go.unlink(missing_ok=True)
            run_once(site.options("fifo"))
            may_go.touch()
            until(lambda count=count: len(pids()) == count)
        running = {process.pid for process in strays(mark)} & {*pids()}
        assert running == {pids()[-1]}
    finally:
        kill(strays(mark))
        until(lambda: not list(strays(mark)))
