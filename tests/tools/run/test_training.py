"""Real training under the real command: torchrun, the elastic library, two CPU slots."""

from __future__ import annotations

import contextlib
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence

import psutil
import pytest

from pliant.schemas.errors import PliantError
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.state import read_log
from pliant.tools.run.watch.job_page import history
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, in_order, until

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


def train(site: Site, job_id: str, text: str, words: Sequence[object] = (), **more: object) -> None:
    site.job(job_id, *words, text=text, **more)


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


def trained(site: Site, job_id: str) -> float:
    """Samples; none while the log is being begun."""
    with contextlib.suppress(PliantError, KeyError):
        return read_log(site.state).jobs[job_id].samples_done
    return 0.0


def slow_until_the_gate(site: Site) -> str:
    """However late the gate is made, there is something left to train."""
    gate = f"import pathlib\ngate = pathlib.Path({str(site.gate)!r})\n"
    return gate + ELASTIC.replace("if alone()", "if not gate.exists()")


def outputs(site: Site, job_id: str) -> list[str]:
    return [path.read_text() for path in StateDir(site.state).job(job_id).path.rglob("stdout.log")]


def test_a_job_grows_when_a_rigid_one_ends_and_both_learn(site: Site) -> None:
    # slow while it is alone: however late the other job ends, there is something left to grow for
    train(site, "long", ELASTIC, (24, 0.5), samples=24 * 64, high=2)
    train(site, "short", ELASTIC, (2, 0.02), samples=2 * 64)
    with pliant_run(site, site.schedule("fair-share"), "--state", site.state) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert site.of("short") == ["submit short", "start short 1", "finish short 0"]
    assert site.of("long") == ["submit long", "start long 1", "grow long 2", "finish long 0"]
    assert trained(site, "long") == 24 * 64
    assert trained(site, "short") == 2 * 64
    losses = [event.loss for event in site.events() if event.job == "long" and event.event == "epoch"]
    assert len(losses) == 24
    assert (losses[-1] or 0.0) < (losses[0] or 0.0) / 4
    after = {
        detail["after"]: detail.get("mechanism")
        for event in site.events()
        if event.job == "long" and "after" in (detail := event.detail or {})
    }
    after.pop("start", None)  # its measure is missing where the other job ended before the first step
    assert after == {"grow": "in place"}
    assert not StateDir(site.state).job("long").attempt(2).path.exists(), "it was launched again"


def test_rigid_scripts_run_as_without_pliant_beside_an_elastic_one_and_the_state_is_its_owner_s_alone(
    site: Site,
) -> None:
    mine = "import pathlib, sys\npathlib.Path(sys.argv[0] + '.mine').touch()\n"
    train(site, "elastic", mine + ELASTIC, (2, 0.02), samples=2 * 64, elastic="size")
    train(site, "several", mine + PLAIN.replace("- 1", "- 2"), gpus=2)
    train(site, "one", DISTRIBUTED_OR_NOT, ("--lr", 1))
    spec = site.job("torchrun", text=PLAIN)
    site.jobs[-1] = spec.model_copy(update={"command": ("torchrun", *(spec.command or ()))})
    words = ("--state", site.state, "--retries", 0)
    with pliant_run(site, site.schedule("fifo"), *words, umask=0o022) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert in_order(["start several 2", "finish several 0"], site.of("several"))
    printed = {name: outputs(site, name) for name in ("several", "one", "torchrun")}
    assert printed == {
        "several": ["of 2 with 1 thread\n"] * 2,
        "one": ["one ['--lr', '1'] set()\n"],
        "torchrun": ["of 1 with 1 thread\n"],
    }
    modes = {path: (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in site.state.rglob("*")}
    assert {path.name for path in modes} >= {
        "stdout.log",
        "step-000000000016.ckpt",
        "exit-0",
        "launcher-0.log",
    }
    assert {path: mode for path, mode in modes.items() if mode not in ((True, 0o700), (False, 0o600))} == {}
    own = {path.name: stat.S_IMODE(path.stat().st_mode) for path in site.folder.glob("*.mine")}
    assert own == {"elastic.py.mine": 0o644, "several.py.mine": 0o644}


def test_a_worker_that_is_killed_or_stands_still_is_replaced_while_the_other_trains_on(site: Site) -> None:
    train(site, "a", slow_until_the_gate(site), (80, 0.5), samples=80 * 64, high=2)

    def workers() -> list[psutil.Process]:
        script = str(site.folder / "a.py")
        return [found for found in left_running(site.folder) if script in found.cmdline()[1:3]]

    def recorded(word: str, value: object) -> int:
        return sum((event.detail or {}).get(word) == value for event in site.events())

    with pliant_run(site, site.schedule("fair-share"), "--state", site.state) as run:
        until(lambda: trained(site, "a") > 0)
        for number, by in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
            workers()[-1].send_signal(by)
            # one change without the worker, one with another in its place
            until(lambda number=number: recorded("mechanism", "in place") == 2 * number)
        site.gate.touch()
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert site.of("a") == ["submit a", "start a 2", "finish a 0"]
    assert (recorded("lost", True), recorded("mechanism", "in place")) == (2, 4)
    assert trained(site, "a") == 80 * 64
    assert errors.count("lost the workers on n0/") == 2
    lost = [each for each in history(StateDir(site.state), "a") if each.event == "lost"]
    assert all(re.fullmatch(r"lost the worker on n0/\d, the others train on", each.words) for each in lost)
    killed, still = (each.reason for each in lost)
    assert killed.startswith("killed by SIGKILL")
    assert still.startswith("it stood still")


def grows_and_fails(site: Site, text: str) -> list[str]:
    """The story of a job that gets another slot, where a worker of it fails and makes the gate."""
    train(site, "long", text, (60, 0.5), samples=60 * 64, high=2)
    train(site, "short", ELASTIC, (2, 0.02), samples=2 * 64)
    with pliant_run(site, site.schedule("fair-share"), "--state", site.state, "--retries", 0) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    story = site.of("long")
    assert story[:4] == ["submit long", "start long 1", "grow long 2", "shrink long 1"]
    assert story[-1] == "finish long 0"
    assert not StateDir(site.state).job("long").attempt(2).path.exists(), "it was launched again"
    assert trained(site, "long") == 60 * 64
    return story


def test_a_new_worker_that_fails_leaves_the_job_training_at_its_size(site: Site) -> None:
    """Its slot is left out for a while, by the log too, and the attempt goes on to its end."""
    broken = """
import os, sys
if os.environ["PLIANT_SLOT"] == "n0/1":
    gate.touch()
    sys.exit("no memory on this device")
"""
    gate, rest = slow_until_the_gate(site).split("\n\n", 1)
    assert grows_and_fails(site, f"{gate}{broken}{rest}")[4:] == ["slot_down long", "finish long 0"]
    (down,) = [event.detail or {} for event in site.events() if event.event == "slot_down"]
    assert (down["slot"], down["by"]) == ("n0/1", "long")
    (shrink,) = [event.detail or {} for event in site.events() if event.event == "shrink"]
    assert shrink["reason"] == (
        "the new workers on n0/1 ended before they trained; n0/1 is left out for 60 s"
    )


def test_a_newcomer_that_fails_in_its_first_step_says_why_and_is_not_tried_again_at_once(site: Site) -> None:
    """The worker that trains goes on alone, and is disturbed once."""
    first, rest = slow_until_the_gate(site).split("    for inputs, wanted in loader:")
    broken = """    for inputs, wanted in loader:
        if job.rank == 1:
            gate.touch()
            raise FileNotFoundError("no such cache: /scratch/tokens")"""
    grows_and_fails(site, f"{first}{broken}{rest}")
    shrunk, *later = [event for event in site.events() if event.event in {"grow", "shrink"}][1:]
    reason = (shrunk.detail or {})["reason"]
    assert "FileNotFoundError: no such cache: /scratch/tokens" in reason
    assert "is left out for 60 s" in reason
    assert not later or later[0].time - shrunk.time >= 60, "a slow machine gets to another try"


def test_a_keeper_that_stands_still_costs_its_job_nothing(site: Site) -> None:
    """It is stopped while its worker trains, and woken when that has ended. There is nothing between them."""
    train(site, "a", ELASTIC, (40, 0.02), samples=40 * 64, high=1)
    with pliant_run(site, site.schedule("fifo"), "--state", site.state) as run:
        until(lambda: trained(site, "a") > 0)
        keeper, worker = sorted(left_running(site.folder), key=lambda one: one.pid)
        assert keeper.children() == [worker]
        assert str(site.folder / "a.py") in worker.cmdline()
        keeper.suspend()
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]


def test_interrupted_training_goes_on_from_its_checkpoint(site: Site) -> None:
    train(site, "a", ELASTIC, (80, 0.02), samples=80 * 64, high=2)
    with pliant_run(site, site.schedule("fair-share"), "--state", site.state) as run:
        until(lambda: trained(site, "a") > 0)
        run.send_signal(signal.SIGINT)
        run.communicate()
    assert run.returncode == 130
    assert left_running(site.folder) == []
    saved = trained(site, "a")
    with pliant_run(site, "--state", site.state) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert site.of("a") == ["submit a", "start a 2", "requeue a 0", "resume a 2", "finish a 0"]
    resumed = [e.samples_done or 0 for e in site.events() if (e.detail or {}).get("after") == "resume"]
    assert 0 < saved < resumed[0]
    assert trained(site, "a") == 80 * 64


OWN_GROUP = 'import os, torch\n{}torch.distributed.init_process_group("gloo")\n'
ADDRESS = 'os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}\n'
SHARDED = "import torch\nfrom torch.distributed.fsdp import fully_shard\nfully_shard(torch.nn.Linear(2, 2))\n"
CONNECTS = "the elastic library connects the workers: leave out"
RIGID_FAILURES = {
    "import no_such_module": "exit code 1: ModuleNotFoundError: No module named 'no_such_module'",
    "import os; os.kill(os.getpid(), 9)": ("killed by SIGKILL, which the system sends where memory runs out"),
    "import sys; sys.exit(3)": "exit code 3: nothing on stderr",
    "def train(:\n    pass\n": "exit code 1: SyntaxError: invalid syntax ({}.py, line 1)",
}


def test_a_job_that_fails_says_why(site: Site) -> None:
    """Workers of an elastic job come and go: no address or port holds for them all, as with torchrun."""
    for number, text in enumerate(RIGID_FAILURES):
        train(site, f"rigid-{number}", text)
    train(site, "own-group", OWN_GROUP.format("") + ELASTIC, (2, 0.0), high=1)
    train(site, "two-own", OWN_GROUP.format(ADDRESS) + ELASTIC, (2, 0.0), gpus=2, low=1, high=2)
    train(site, "sharded", SHARDED + ELASTIC, (2, 0.0), high=1)
    train(site, "gives-up", f"{ELASTIC}    sys.exit('diverged')\n", (3, 0.0), samples=3 * 64)
    train(site, "breaks", f"{ELASTIC}    break\n", (3, 0.0), samples=3 * 64)
    with pliant_run(site, site.schedule("fifo"), "--state", site.state, "--retries", 0) as run:
        _, errors = run.communicate()
    assert run.returncode == 5, errors
    log = read_log(site.state)
    ends = {job_id: site.of(job_id)[-1] for job_id in log.jobs}
    assert ends == {**{job_id: f"fail {job_id} 0" for job_id in log.jobs}, "breaks": "finish breaks 0"}
    reasons = {job_id: job.reason or "" for job_id, job in log.jobs.items()}
    for number, reason in enumerate(RIGID_FAILURES.values()):
        assert reasons[f"rigid-{number}"] == reason.format(f"rigid-{number}")
        assert f"job rigid-{number} failed: {reasons[f'rigid-{number}']}" in errors
    for job_id, torch_says in (
        ("own-group", "environment variable MASTER_ADDR expected"),
        ("two-own", "process group twice"),
    ):
        assert reasons[job_id].startswith(f"{CONNECTS} init_process_group")
        assert torch_says in reasons[job_id]
    assert reasons["sharded"].startswith(f"{CONNECTS} fully_shard; every worker")


DISTRIBUTED_OR_NOT = """
import os, sys, torch

ddp = int(os.environ.get("RANK", -1)) != -1  # as a torchrun run is told from a single process
if ddp:
    torch.distributed.init_process_group("gloo")
    torch.cuda.set_device(f"cuda:{os.environ['LOCAL_RANK']}")
print("several" if ddp else "one", sys.argv[1:], {name for name in os.environ if "WORLD_SIZE" in name})
"""


def test_a_live_run_tells_policies_what_jobs_measure_and_ends_one_that_reaches_its_target(
    site: Site,
) -> None:
    """Speed by configuration, the noise of the gradients, the loss and the metric of every epoch."""
    # quick at first: the noise of some gradients is known before the first measurement is due
    text = ELASTIC.replace("step_s if alone() else 0.01", "step_s if epoch > 1 else 0.0")
    text = text.replace("loss=loss", "loss=loss, metric=0.5")
    train(site, "a", text, (12, 0.1), samples=768, high=1, elastic="size+batch")
    text = ELASTIC.replace(
        "for epoch", "stopping = elastic.EarlyStopping(target=3.0)\njob.register(stopping)\nfor epoch"
    )
    text += "    job.log(metric=epoch)\n    if stopping.reached(epoch):\n        break\n"
    train(site, "early", text, (50, 0.0), samples=50 * 64, high=1)
    with pliant_run(site, site.schedule("fifo"), "--state", site.state) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    details = [event.detail or {} for event in site.events() if (event.event, event.job) == ("progress", "a")]
    seen = [detail["observed"] for detail in details if "observed" in detail]
    assert {(tuple(one["placement"]), one["local_batch"], one["accum"]) for one in seen} == {((1,), 8, 1)}
    assert all(one["step_seconds"] > 0 for one in seen)
    assert any(detail.get("noise_scale", 0) > 0 for detail in details)
    epochs = {
        name: [e for e in site.events() if (e.event, e.job) == ("epoch", name)] for name in ("a", "early")
    }
    assert len(epochs["a"]) == 12
    assert all(event.loss is not None and event.metric == 0.5 for event in epochs["a"])
    assert site.of("early") == ["submit early", "start early 1", "finish early 0"]
    assert [event.metric for event in epochs["early"]] == [0.0, 1.0, 2.0, 3.0]
    assert trained(site, "early") == 4 * 64
