"""The pages on elastic scripts: recipes run, changes are as small as they say, messages are those."""

from __future__ import annotations

import ast
import difflib
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from benchmarks.parts.added_lines import added
from pliant.schemas.checks import check_fits
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.io import read_cluster, read_jobs
from pliant.schemas.job import EpochWork
from pliant.tools.run import elastic
from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.service.endings import judge
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.contract.plan import WorkerOutcome
from tests.builders import job
from tests.integrations.training import recipe
from tests.tools.run import conftest as of_run
from tests.tools.run.elastic.alone import Alone
from tests.tools.run.elastic.nursery import CONTEXT, printed_by, steps_and_loss
from tests.tools.run.site import Site

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "elastic-training.md").read_text()
LIBRARY = (ROOT / "docs" / "elastic-library.md").read_text()
AFTER = ROOT / "examples" / "after" / "stripes.py"
SMALLEST = {
    "before/stripes": ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "2"),
    "after/stripes": ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "2"),
    "after/gan": ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "4"),
    "after/rnn": ("--epochs", "2", "--size", "200", "--batch", "4"),
    "own_average": ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "4"),
    "trainer_style": ("--epochs", "2", "--size", "64", "--batch", "8", "--width", "4"),
    "fabric_style": ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "4"),
}
Author = Callable[[ElasticJob], object]
nothing_left_behind = of_run.nothing_left_behind


EXAMPLES = [
    ("#dataloader-loop", "stripes", 10),
    ("#get_batch-loop", "get_batch", 25),
    ("#several-optimizers", "gan", 15),
    ("#rnn", "rnn", 15),
]


@pytest.mark.parametrize(("anchor", "name", "most"), EXAMPLES)
def test_as_few_lines_as_the_page_says_make_a_script_elastic(anchor: str, name: str, most: int) -> None:
    paths = (ROOT / "examples" / folder / f"{name}.py" for folder in ("before", "after"))
    [row] = [line for line in PAGE.splitlines() if line.startswith("|") and f"({anchor})" in line]
    assert float(row.split("|")[3]) == added(*(path.read_text() for path in paths)) <= most


def test_the_page_shows_the_change_as_it_is_and_is_short() -> None:
    texts = ((ROOT / "examples" / folder / "stripes.py").read_text() for folder in ("before", "after"))
    changed = difflib.ndiff(*map(str.splitlines, texts))
    lines = [f"{line[0]}{line[2:]}" for line in changed if line[0] in "+-" and line[2:].strip()]
    [shown] = [block for block in PAGE.split("\n```")[1::2] if block.startswith("diff\n")]
    assert [line for line in shown.splitlines() if line[0] in "+-"] == lines
    words = {recipe.splitlines()[0]: len(recipe.split()) for recipe in PAGE.split("\n## ")[3:]}
    assert len(words) == 9
    assert max(words.values()) <= 300, words


@pytest.mark.parametrize("script", SMALLEST)
def test_every_script_of_the_guide_runs_under_plain_python(script: str, tmp_path: Path) -> None:
    path, weights = ROOT / "examples" / f"{script}.py", tmp_path / "weights.pt"
    with CONTEXT.Pool(1) as python:
        printed = python.apply(printed_by, (str(path), (*SMALLEST[script], "--out", str(weights))))
    assert [line.partition(":")[0] for line in printed.splitlines()] == ["epoch 0", "epoch 1"]
    assert torch.load(weights)


def test_a_sharded_model_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    sizes = ("--every", "2", "--width", "4", "--batch", "4", "--folder", str(tmp_path))
    for steps in ("3", "5"):
        with CONTEXT.Pool(1) as python:
            words = (str(ROOT / "examples" / "fsdp2.py"), ("--steps", steps, *sizes))
            assert python.apply(printed_by, words) == f"{steps} steps\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", f"step-{steps}"]
    assert int((tmp_path / "newest").read_text()) == 5


def test_the_jobs_of_the_page_train_under_pliant_run(tmp_path: Path) -> None:
    """Two elastic scripts, of epochs and of iterations, and a rigid one, on two workers each."""
    site, weights = Site(tmp_path, slots=6), [tmp_path / "a.pt", tmp_path / "b.pt"]
    by_epoch = (str(AFTER), *SMALLEST["after/stripes"], "--out", str(weights[0]))
    work = {"epochs": 2, "dataset_size": 64}
    site.jobs.append(job("a", command=by_epoch, work=work, batch={"size": 32, "per_gpu_max": 8}, high=2))
    words = ("--steps", "20", "--batch", "6", "--accumulate", "2", "--evaluate-every", "10", "--last")
    by_step = (str(ROOT / "examples" / "after" / "get_batch.py"), *words, str(weights[1]))
    batch = {"size": 12, "per_gpu_max": 3}
    site.jobs.append(job("b", command=by_step, work={"iterations": 20}, batch=batch, high=2))
    [rigid] = parse_jobs(recipe("Plain rigid", "json").encode(), "jobs.jsonl")
    site.jobs.append(rigid.model_copy(update={"id": "c", "workdir": str(tmp_path)}))
    (tmp_path / "train.py").write_text(
        "import os, sys\nopen(f'rank-{os.environ[\"RANK\"]}', 'w').write(' '.join(sys.argv[1:]))\n"
    )
    log, _ = run_until_done(replace(site.options(), timeouts=Timeouts()), lambda log, now_s: None)
    for name, samples in (("a", 2 * 64), ("b", 20 * 12)):
        assert site.of(name) == [f"submit {name}", f"start {name} 2", f"finish {name} 0"]
        assert log.jobs[name].samples_done == samples
    metrics = [event.metric for event in site.events() if (event.job, event.event) == ("a", "epoch")]
    assert len(metrics) == 2
    assert None not in metrics
    printed = {path.read_text() for path in (site.state / "jobs" / "a").rglob("stdout.log")}
    assert len(printed) == 1, "workers found different metrics: they might not stop together"
    reports = [event for event in site.events() if (event.job, event.event) == ("b", "progress")]
    assert [(event.detail or {}).get("step") for event in reports if event.metric] == [0, 10]
    assert all(map(torch.load, weights))
    given = {path.name: path.read_text() for path in tmp_path.glob("rank-*")}
    assert given == dict.fromkeys(("rank-0", "rank-1"), "--epochs 3")


AROUND = {
    "get_batch loop": """
        block, max_steps, data = 4, 500, torch.arange(64.0)
        class Loss(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 1)
            def forward(self, x, y):
                return (self.net(x) - y).square().mean()
        model = Loss()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        def get_batch(ix):
            return torch.stack([data[i : i + block] for i in ix]) / 64, data[ix + block].unsqueeze(1) / 64
        def estimate_loss():
            return {"val": float(model(*get_batch(torch.arange(8))))}
    """,
    "Several optimizers": """
        epochs = 2
        painter, critic = torch.nn.Linear(16, 2), torch.nn.Linear(2, 1)
        first, second = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (painter, critic))
        data = torch.utils.data.TensorDataset(torch.randn(128, 2))
        soft = torch.nn.functional.softplus
        critic_loss = lambda real, fake: (soft(-real) + soft(fake)).mean()
        painter_loss = lambda told: soft(-told).mean()
    """,
    "RNN": """
        epochs, layers, width = 2, 1, 4
        model, loss_fn = torch.nn.RNN(3, width, layers, batch_first=True), torch.nn.functional.mse_loss
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.randn(64, 5, 3), torch.randn(64, 5, width))
    """,
}


@pytest.mark.parametrize(
    ("heading", "steps"), [("get_batch loop", 500), ("Several optimizers", 4), ("RNN", 8)]
)
def test_a_recipe_trains_under_plain_python(heading: str, steps: int) -> None:
    source = f"import torch\n{textwrap.dedent(AROUND[heading])}\n{recipe(heading, 'python')}"
    with CONTEXT.Pool(1) as python:
        done, loss = python.apply(steps_and_loss, (source,))
    assert (done, math.isfinite(loss)) == (steps, True)


def nothing() -> tuple[torch.nn.Module, torch.optim.Optimizer, TensorDataset]:
    net = torch.nn.Linear(1, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1), TensorDataset(torch.zeros(4, 1))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def register_late(job: ElasticJob) -> None:
    job.prepare(*nothing())
    for _ in job.epochs(1):
        job.register(torch.nn.Linear(1, 1))


def empty_stream(job: ElasticJob) -> None:
    *_, loader = job.prepare(*nothing()[:2], Stream())
    for _ in job.epochs(1):
        list(loader)


def leave_micro_steps(job: ElasticJob) -> None:
    job.prepare(*nothing()[:2])
    for _ in job.steps(2):
        for _ in job.micro_steps():
            break


def pass_twice(job: ElasticJob) -> None:
    *_, loader = job.prepare(*nothing())
    for _ in job.epochs(1):
        list(loader)
        list(loader)


def set_batch_size(job: ElasticJob) -> None:
    *_, loader = job.prepare(*nothing())
    assert loader.batch_size == 2
    loader.batch_size = 8


def train_nothing(**how: Any) -> Author:
    def train(job: ElasticJob) -> None:
        *_, loader = job.prepare(*nothing()[:2], TensorDataset(torch.zeros(1, 1)), **how)
        for _ in job.epochs(2):
            list(loader if how else ())

    return train


def loader(**how: Any) -> Author:
    """A script that gives a DataLoader."""
    return lambda job: job.prepare(*nothing()[:2], DataLoader(nothing()[2], **how))


MISTAKES: dict[str, Author] = {
    "batches of a loader": loader(batch_size=4, shuffle=True, drop_last=True, num_workers=1),
    "a sampler of a loader": loader(batch_size=2, sampler=SubsetRandomSampler([1, 2]), collate_fn=list),
    "an order of its own": loader(batch_size=None, shuffle=True),
    "pin_memory": lambda job: job.prepare(*nothing(), pin_memory=True),
    "another batch size": set_batch_size,
    "no batch size": lambda _: elastic.init().prepare(*nothing()),
    "no samples": lambda job: job.prepare(*nothing()[:2], TensorDataset(torch.zeros(0, 1))),
    "no full batch": train_nothing(drop_last=True),
    "an empty loop": train_nothing(),
    "a second pass": pass_twice,
    "a log before all": lambda job: job.log(loss=1.0),
    "prepared twice": lambda job: [job.prepare(*nothing()) for _ in range(2)],
    "no dataset": lambda job: (job.prepare(*nothing()[:2]), job.epochs(1)),
    "micro-steps left": leave_micro_steps,
    "a loader outside": lambda job: list(job.prepare(*nothing())[-1]),
    "registered late": register_late,
    "an early agreement": lambda job: (job.prepare(*nothing()), job.agree(1.0)),
    "a set registered": lambda job: job.register(best=set()),
    "no dataset but an object": lambda job: job.prepare(*nothing()[:2], object()),
    "an empty stream": empty_stream,
}


EXPLAINED = ("best: set", "object: expected", "Stream gave")
"""How the messages begin that do not say what to do: the page does."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_message(mistake: str, golden_text: Callable[[str], None]) -> None:
    with pytest.raises(UsageError) as result:
        MISTAKES[mistake](elastic.init(batch_size=2))
    message = str(result.value)
    golden_text(message)
    assert (message in LIBRARY) == message.startswith(EXPLAINED)


def test_a_script_that_fails_has_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = Alone(tmp_path, monkeypatch).run(lambda _: None)
    assert (end.outcome, end.message in LIBRARY) == ("crashed", True)
    raised = WorkerOutcome(outcome="crashed", message="NameError: name 'right' is not defined")
    for code, outcomes in ((0, {}), (1, {0: raised})):  # it does not use the library, or it raises
        verdict = judge(outcomes, [UnitStatus("exited", code)], ranks=1, elastic=True, stop_requested=False)
        assert (verdict.end, verdict.message in LIBRARY) == ("failed", True)


def options(script: Path, words: Sequence[str] = ()) -> dict[str, int]:
    """Defaults of the script's options, and what the command says instead."""
    result: dict[str, int] = {}
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for word in node.keywords:
                if word.arg == "default":
                    result[ast.literal_eval(node.args[0])] = ast.literal_eval(word.value)
    return result | {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def test_the_job_of_the_page_states_what_its_script_does() -> None:
    [line] = [text for text in PAGE.splitlines() if text.startswith('{"id": "stripes"')]
    shown, script = json.loads(line), options(AFTER)
    assert shown["batch"]["size"] == script["--batch"]
    assert shown["work"] == {"epochs": script["--epochs"], "dataset_size": script["--size"]}


def test_jobs_state_their_scripts_work_and_fit_the_cluster() -> None:
    jobs = read_jobs(ROOT / "examples" / "jobs.jsonl")
    for each in jobs:
        assert each.command is not None
        path, *words = each.command
        script = options(ROOT / path, words)
        assert isinstance(each.work, EpochWork)
        assert (each.work.epochs, each.work.dataset_size) == (script["--epochs"], script["--size"])
        assert each.batch.size == script["--batch"]
        assert Path(path).stem == each.model
    check_fits(jobs, read_cluster(ROOT / "examples" / "cluster.json"), "examples/jobs.jsonl")
