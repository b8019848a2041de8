"""``Trainer`` of transformers: three lines make a job that is resized by a relaunch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.training import check, need_installed, recipe
from tests.tools.run.site import Site

need_installed("transformers", "accelerate")

AROUND = """
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments


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
def test_a_resized_trainer_trains_the_same(site: Site) -> None:
    check(site, AROUND + recipe("transformers' Trainer") + "\nat_end(model)\n")


def test_a_checkpoint_that_is_not_complete_is_passed_over(tmp_path: Path) -> None:
    from pliant.integrations.transformers import newest_checkpoint

    assert newest_checkpoint(tmp_path) is None
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
