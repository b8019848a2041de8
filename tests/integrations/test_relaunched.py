"""Trainings that are resized by a relaunch, by the recipes of docs/elastic-training.md."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from pliant.schemas.file_io.documents import parse_jobs
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.statedir.contract.plan import Progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.watch.job_page import history
from tests.integrations.training import OFFLINE, check, imported, recipe
from tests.tools.run.site import Site

DOCS = Path(__file__).parents[2] / "docs"


def need_installed(*libraries: str) -> None:
    """Skip without them. The trainings import them, the tests do not: that takes seconds."""
    if not all(map(importlib.util.find_spec, libraries)):
        pytest.skip("the extra integrations is not installed")


NO_METRICS = """
import sys
from unittest import mock

kinds = {"Metric": type("Metric", (), {}), "MetricCollection": type("MetricCollection", (), {})}
for name in ("torchmetrics", "torchmetrics.utilities", "torchmetrics.utilities.imports"):
    sys.modules[name] = mock.MagicMock(**kinds)
"""
"""Lightning imports what computes metrics, which takes longer than all else of it; here there are none."""
IMPORTS = {
    "accelerate": """
from accelerate import Accelerator
from pliant.integrations import accelerate as integration
""",
    "lightning": NO_METRICS
    + """
import functools
import lightning.pytorch
from lightning.pytorch import LightningModule
from pliant.integrations.lightning import PliantCallback
""",
    "transformers": """
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments
from pliant.integrations.transformers import PliantCallback
""",
}
ACCELERATE = """
report = integration.RelaunchedTraining.step


def step_and_note(self, step, **named):
    after_step(step)
    report(self, step, **named)


integration.RelaunchedTraining.step = step_and_note
steps, loss_fn = STEPS, torch.nn.functional.mse_loss
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(data, BATCH)
"""
LIGHTNING = """
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        inputs, wanted = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), wanted)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        after_step(self.trainer.global_step + 1)


x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = Net()
Trainer = functools.partial(
    lightning.pytorch.Trainer, max_steps=STEPS, max_epochs=-1, accumulate_grad_batches=2, accelerator="cpu",
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
"""
TRANSFORMERS = """
class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        after_step(state.global_step)


class Trainer(transformers.Trainer):
    def __init__(self, *given, callbacks, **named):
        super().__init__(*given, callbacks=[*callbacks, Slow()], **named)


class Data(torch.utils.data.Dataset):
    tokens = torch.randint(32, (96, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 8}
config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
args = TrainingArguments(
    "out", per_device_train_batch_size=BATCH, gradient_accumulation_steps=2, max_steps=STEPS, seed=0,
    learning_rate=0.05, optim="sgd", lr_scheduler_type="linear", use_cpu=True, report_to=[],
    save_strategy="steps", save_steps=10**6, disable_tqdm=True, logging_steps=5,
)
model, data = GPT2LMHeadModel(config), Data()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("library", "heading", "around", "model"),
    [
        ("accelerate", "Accelerate", ACCELERATE, "accelerator.unwrap_model(model)"),
        ("lightning", "Lightning", LIGHTNING, "model"),
        ("transformers", "transformers' Trainer", TRANSFORMERS, "model"),
    ],
    ids=["accelerate", "lightning", "transformers"],
)
def test_a_resized_training_ends_as_if_it_never_was(site: Site, library, heading, around, model) -> None:
    need_installed(*IMPORTS)
    text = f"{around}{recipe(heading)}\nat_end({model})\n"
    check(site, IMPORTS[library], text, forks=library != "accelerate")


FSDP2_IMPORTS = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import fsspec.core, torch._dynamo.distributed  # which the others import when they are first used
"""
FSDP2 = """
if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
data = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
shards = min(SHARDS, workers)
mesh = init_device_mesh("cpu", (workers // shards, shards), mesh_dim_names=("replicas", "shards"))
fully_shard(model, mesh=mesh if workers > shards else mesh["shards"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def save(step):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"step-{step}")
    if rank == 0:
        pathlib.Path("newest").write_text(str(step))
    dist.barrier()


def load_newest():
    if not os.path.exists("newest"):
        return 0
    step = int(pathlib.Path("newest").read_text())
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return step


def train_one_step(step):
    batch = data[torch.arange(step * 8, step * 8 + 8) % 96].chunk(workers)[rank]
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    after_step(step + 1)
    return loss


steps = STEPS
"""
WHOLE = """
whole = [each.detach().full_tensor() for each in model.parameters()]
if rank == 0:
    torch.save(whole, "weights.pt")
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("slots", "shards", "replica"), [(2, 10**6, 1), (4, 2, 2)], ids=["cut for each size", "groups of two"]
)
def test_a_sharded_model_is_resized(tmp_path: Path, slots: int, shards: int, replica: int) -> None:
    """It is cut over all workers, or each group of workers holds a whole one."""
    text = f"SHARDS = {shards}{FSDP2}{recipe('FSDP2')}{WHOLE}"
    check(Site(tmp_path, slots=slots), FSDP2_IMPORTS, text, replica=replica)


APART = """
import os, pathlib, time
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

trainer = Trainer(
    callbacks=[PliantCallback("checkpoints")], max_steps=3, accelerator="cpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
)
first, done = os.environ["RANK"] == "0", pathlib.Path("done")
while not first and not done.exists():  # the newest report is the other worker's
    time.sleep(0.01)
trainer.fit(BoringModel())
done.touch()
"""


@pytest.mark.torch
def test_two_trainings_in_a_job_of_two_slots_are_warned_of(site: Site) -> None:
    need_installed("lightning")
    text = IMPORTS["lightning"] + APART
    site.job("a", text=text, gpus=2, samples=1, env=OFFLINE, workdir=str(site.folder))
    with imported(site, IMPORTS["lightning"]):
        log, _ = run_until_done(site.options("fifo"), lambda log, now_s: None)
    assert log.jobs["a"].phase == "finished", log.jobs["a"].reason
    lines = [each.words for each in history(StateDir(site.state), "a")]
    assert any(each.startswith("several of its 2 workers train for themselves") for each in lines)


def test_a_checkpoint_that_is_not_complete_is_passed_over(tmp_path: Path) -> None:
    need_installed("transformers")
    from pliant.integrations.transformers import newest_checkpoint

    assert newest_checkpoint(tmp_path) is None
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_the_jobs_and_the_report_of_the_pages_are_valid() -> None:
    shown, report = re.findall(
        r"^```json\n(.*?)\n```$", (DOCS / "relaunch.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (job,) = parse_jobs(shown.encode(), "jobs.jsonl")
    assert (job.elastic, job.resize, job.min_gpus) == ("size", "relaunch", 1)
    progress = Progress.model_validate_json(report)
    assert progress.samples_done == json.loads(report)["step"] * progress.global_batch
    (job,) = parse_jobs(recipe("FSDP2", "json").encode(), "jobs.jsonl")
    assert (job.gpus.per_replica, job.resize, job.min_gpus, job.gpus.max) == (4, "relaunch", 4, 16)
