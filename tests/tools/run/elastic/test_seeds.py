"""Which seed counts: the script's, unless its job states one; and what is said where they differ."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pliant.tools.run import elastic
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from tests.tools.run.elastic.alone import Alone

pytestmark = pytest.mark.torch
Begin = Callable[[], ElasticJob]


class Script:
    """Trains a small net for two epochs, and keeps the order of its samples."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)
        self.samples: list[int] = []

    def __call__(self, it: ElasticJob) -> None:
        self.net = nn.Linear(1, 1)
        data = torch.utils.data.TensorDataset(torch.arange(40.0).unsqueeze(1))
        model, optimizer, loader = it.prepare(self.net, torch.optim.SGD(self.net.parameters(), lr=1e-5), data)
        for _ in it.epochs(2):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                self.samples += x.flatten().int().tolist()

    @property
    def weights(self) -> list[float]:
        return [float(parameter.detach().sum()) for parameter in self.net.parameters()]


def seeded(seed: int) -> ElasticJob:
    torch.manual_seed(seed)
    return elastic.init(batch_size=10)


def warnings(job: Alone) -> list[str]:
    return [(event.detail or {}).get("warning", "") for event in job.events("progress") if event.detail]


@pytest.mark.parametrize(
    "begin", [lambda: elastic.init(batch_size=10, seed=4), lambda: seeded(4)], ids=["init", "manual_seed"]
)
def test_without_a_seed_a_job_trains_as_plain_python(
    job: Alone, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    job.begin, planned = begin, Script()
    assert job.run(planned).outcome == "done"
    assert not any("seed" in text for text in warnings(job))
    monkeypatch.delenv(ENV_JOB_DIR)
    alone = Script()
    alone(begin())
    assert planned.weights == alone.weights
    assert planned.samples == alone.samples


@pytest.mark.parametrize(
    ("begin", "place"),
    [(lambda: elastic.init(batch_size=10, seed=4), "elastic.init"), (lambda: seeded(4), "torch.manual_seed")],
)
def test_a_seed_of_the_job_that_replaces_another_one_is_named(job: Alone, begin: Begin, place: str) -> None:
    job.begin = begin
    assert job.run(Script(), seed=7).outcome == "done"
    text = f"the job's seed 7 replaces 4, which the script gives {place}: plain python uses that one"
    assert warnings(job).count(text) == 1


def test_the_same_seed_in_both_places_is_worth_no_word(job: Alone) -> None:
    job.begin = lambda: elastic.init(batch_size=10, seed=4)
    job.run(Script(), seed=4)
    assert not any("seed" in text for text in warnings(job))


def test_an_epoch_that_was_begun_with_one_seed_is_ended_with_it(job: Alone) -> None:
    """Another one in the script, or in the job, would give some of its samples twice and leave others out."""
    first, rest = Script(), Script()

    def stopped(it: ElasticJob) -> None:
        it._membership._stop.received = True  # type: ignore[union-attr]
        first(it)

    job.begin = lambda: elastic.init(batch_size=10, seed=4)
    assert job.run(stopped).outcome == "stopped"
    assert len(first.samples) < 40
    job.begin = lambda: elastic.init(batch_size=10, seed=6)
    assert job.run(rest).outcome == "done"
    assert sorted((first.samples + rest.samples)[:40]) == list(range(40))


def test_a_plan_without_a_seed_has_no_such_field(job: Alone) -> None:
    job.attempt = 1
    job.publish()
    assert "seed" not in json.loads(job.dir.plan.read_text())
    job.publish(seed=0)
    assert json.loads(job.dir.plan.read_text())["seed"] == 0
