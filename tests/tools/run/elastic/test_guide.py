"""The pages on elastic scripts: recipes run, changes are as small as they say, messages are those."""

from __future__ import annotations

import ast
import difflib
import io
import json
import math
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from benchmarks.parts.added_lines import added
from pliant.schemas.checks import check_fits
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.io import read_cluster, read_jobs
from pliant.schemas.job import EpochWork, Job
from pliant.tools.run import elastic
from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.service.members import judge
from pliant.tools.run.statedir.contract.plan import WorkerOutcome
from pliant.tools.run.statedir.state import read_log
from tests.builders import job
from tests.integrations.training import recipe
from tests.tools.run.elastic.alone import Alone
from tests.tools.run.elastic.nursery import CONTEXT
from tests.tools.run.site import Site
from tests.tools.run.test_training import pliant_run

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "elastic-training.md").read_text()
LIBRARY = (ROOT / "docs" / "elastic-library.md").read_text()
BEFORE, AFTER = (ROOT / "examples" / folder / "stripes.py" for folder in ("before", "after"))
SMALLEST = {
    BEFORE: ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "2"),
    AFTER: ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "2"),
    ROOT / "examples" / "after" / "gan.py": (
        "--epochs",
        "2",
        "--size",
        "64",
        "--batch",
        "32",
        "--width",
        "4",
    ),
    ROOT / "examples" / "after" / "rnn.py": ("--epochs", "2", "--size", "200", "--batch", "4"),
    ROOT / "examples" / "trainer_style.py": ("--epochs", "2", "--size", "64", "--batch", "8", "--width", "4"),
    ROOT / "examples" / "fabric_style.py": ("--epochs", "2", "--size", "64", "--batch", "32", "--width", "4"),
}
Author = Callable[[ElasticJob], object]


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


def test_the_page_shows_the_change_as_it_is() -> None:
    before, after = (path.read_text().splitlines() for path in (BEFORE, AFTER))
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    [shown] = [block for block in PAGE.split("\n```")[1::2] if block.startswith("diff\n")]
    assert [line for line in shown.splitlines() if line[0] in "+-"] == [
        f"{line[0]}{line[2:]}" for line in changed
    ]


def printed_by(script: str, words: Sequence[str]) -> str:
    sys.argv = [script, *words]
    with redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("script", SMALLEST, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_script_of_the_guide_runs_under_plain_python(script: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    with CONTEXT.Pool(1) as python:
        printed = python.apply(printed_by, (str(script), (*SMALLEST[script], "--out", str(weights))))
    assert [line.partition(":")[0] for line in printed.splitlines()] == ["epoch 0", "epoch 1"]
    assert torch.load(weights)


def test_the_changed_script_trains_on_two_workers_of_pliant_run(tmp_path: Path) -> None:
    site, weights = Site(tmp_path), tmp_path / "weights.pt"
    words = (*SMALLEST[AFTER], "--out", str(weights))
    work = {"epochs": 2, "dataset_size": 64}
    batch = {"size": 32, "per_gpu_max": 8}
    site.jobs.append(job("a", command=(str(AFTER), *words), work=work, batch=batch, high=2))
    with pliant_run(site, site.schedule("fair-share"), "--state", site.state) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert site.of("a") == ["submit a", "start a 2", "finish a 0"]
    assert read_log(site.state).jobs["a"].samples_done == 2 * 64
    metrics = [event.metric for event in site.events() if event.event == "epoch"]
    assert len(metrics) == 2
    assert None not in metrics
    told = {path.read_text() for path in (site.state / "jobs").rglob("stdout.log")}
    assert len(told) == 1, "workers found different metrics: they might not stop together"
    assert torch.load(weights)


def test_a_script_of_iterations_trains_under_pliant_run(tmp_path: Path) -> None:
    site, weights = Site(tmp_path), tmp_path / "weights.pt"
    words = ("--steps", "20", "--batch", "6", "--accumulate", "2", "--evaluate-every", "10", "--last")
    command = (str(ROOT / "examples" / "after" / "get_batch.py"), *words, str(weights))
    batch = {"size": 12, "per_gpu_max": 3}
    site.jobs.append(job("a", command=command, work={"iterations": 20}, batch=batch, high=2))
    with pliant_run(site, site.schedule("fair-share"), "--state", site.state) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert site.of("a") == ["submit a", "start a 2", "finish a 0"]
    assert read_log(site.state).jobs["a"].samples_done == 20 * 12
    steps = [(e.detail or {}).get("step") for e in site.events() if e.event == "progress" and e.metric]
    assert steps == [0, 10]
    assert torch.load(weights)


def test_a_recipe_is_no_longer_than_300_words() -> None:
    recipes = PAGE.split("\n## ")[2:]
    assert len(recipes) == 9
    assert {
        recipe.splitlines()[0]: len(recipe.split()) for recipe in recipes if len(recipe.split()) > 300
    } == {}


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


def trained_by(heading: str) -> tuple[int, float]:
    """Steps of a recipe under plain Python, and its last loss."""
    found: dict[str, Any] = {"torch": torch}
    exec(textwrap.dedent(AROUND[heading]), found)  # noqa: S102 - our own code
    exec(recipe(heading, "python"), found)  # noqa: S102 - our own page
    return found["job"]._loop.training.counters.step, float(found["loss"])


@pytest.mark.parametrize(
    ("heading", "steps"), [("get_batch loop", 500), ("Several optimizers", 4), ("RNN", 8)]
)
def test_a_recipe_trains_under_plain_python(heading: str, steps: int) -> None:
    with CONTEXT.Pool(1) as python:
        done, loss = python.apply(trained_by, (heading,))
    assert (done, math.isfinite(loss)) == (steps, True)


def test_the_job_of_the_rigid_recipe_runs(tmp_path: Path) -> None:
    [shown], site = parse_jobs(recipe("Plain rigid", "json").encode(), "jobs.jsonl"), Site(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, sys\nopen(f'rank-{os.environ[\"RANK\"]}', 'w').write(' '.join(sys.argv[1:]))\n"
    )
    site.jobs.append(shown.model_copy(update={"workdir": str(tmp_path)}))
    with pliant_run(site, site.schedule("fifo"), "--state", site.state) as run:
        _, errors = run.communicate()
    assert run.returncode == 0, errors
    assert {path.name: path.read_text() for path in tmp_path.glob("rank-*")} == dict.fromkeys(
        ("rank-0", "rank-1"), "--epochs 3"
    )


def nothing() -> tuple[torch.nn.Module, torch.optim.Optimizer, TensorDataset]:
    net = torch.nn.Linear(1, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1), TensorDataset(torch.zeros(4, 1))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def prepare_twice(job: ElasticJob) -> None:
    job.prepare(*nothing())
    job.prepare(*nothing())


def iterate_outside(job: ElasticJob) -> None:
    *_, loader = job.prepare(*nothing())
    list(loader)


def register_late(job: ElasticJob) -> None:
    job.prepare(*nothing())
    for _ in job.epochs(1):
        job.register(torch.nn.Linear(1, 1))


def agree_outside(job: ElasticJob) -> None:
    job.prepare(*nothing())
    job.agree(1.0)


def epochs_without_data(job: ElasticJob) -> None:
    job.prepare(*nothing()[:2])
    job.epochs(1)


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


MISTAKES: dict[str, Author] = {
    "the loader has no second pass in an epoch: ask job.epochs for more epochs, "
    "or evaluate with a DataLoader": pass_twice,
    "call job.prepare(model, optimizer, dataset) first": lambda job: job.log(loss=1.0),
    "job.prepare was called twice: give it all models and optimizers at once": prepare_twice,
    "job.prepare got no dataset: loop over job.steps, or give it one": epochs_without_data,
    "take all of job.micro_steps(): the loop over them was left before its end": leave_micro_steps,
    "iterate the loader inside `for epoch in job.epochs(n):`": iterate_outside,
    "register objects before the first epoch or step: their state is restored there": register_late,
    "call job.agree in the loop over job.epochs or job.steps": agree_outside,
    "best: set has no state_dict and load_state_dict": lambda job: job.register(best=set()),
    "object: expected a dataset with a length, samples and []": lambda job: job.prepare(
        *nothing()[:2], object()
    ),
    "Stream gave no samples in epoch 0: each epoch iterates it again": empty_stream,
}


EXPLAINED = ("best: set", "object: expected", "Stream gave")
"""How the messages begin that do not say what to do: the page does."""


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_has_its_message(message: str) -> None:
    with pytest.raises(UsageError) as found:
        MISTAKES[message](elastic.init(batch_size=2))
    assert str(found.value) == message
    assert (message in LIBRARY) == message.startswith(EXPLAINED)


def test_a_missing_batch_size_has_its_message() -> None:
    with pytest.raises(UsageError) as found:
        elastic.init().prepare(*nothing())
    assert str(found.value) in LIBRARY


def test_a_script_that_trains_nothing_has_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Alone(tmp_path, monkeypatch).run(lambda _: None)
    assert (end.outcome, end.message in LIBRARY) == ("crashed", True)


@pytest.mark.parametrize(
    ("code", "outcomes"),
    [
        (0, {}),
        (1, {0: WorkerOutcome(outcome="crashed", message="NameError: name 'right' is not defined")}),
    ],
    ids=["it does not use the library", "it raises"],
)
def test_a_script_that_fails_has_its_message(code: int, outcomes: dict[int, WorkerOutcome]) -> None:
    exited = [UnitStatus("exited", code)]
    verdict = judge(outcomes, exited, ranks=1, elastic=True, stop_requested=False)
    assert (verdict.end, verdict.message in LIBRARY) == ("failed", True)


def test_the_job_of_the_page_states_what_its_script_does() -> None:
    [line] = [text for text in PAGE.splitlines() if text.startswith('{"id": "stripes"')]
    shown = json.loads(line)
    source = AFTER.read_text()
    for option, value in (
        ("--batch", shown["batch"]["size"]),
        ("--epochs", shown["work"]["epochs"]),
        ("--size", shown["work"]["dataset_size"]),
    ):
        assert f'"{option}", type=int, default={value}' in source


ROOT = Path(__file__).parents[4]
JOBS = read_jobs(ROOT / "examples" / "jobs.jsonl")


def options(job: Job) -> dict[str, int]:
    """Defaults of the script's options, and what the command says instead."""
    assert job.command is not None
    found: dict[str, int] = {}
    source = (ROOT / job.command[0]).read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            default = {word.arg: word.value for word in call.keywords}["default"]
            found[ast.literal_eval(call.args[0])] = ast.literal_eval(default)
    given = job.command[1:]
    return found | {name: int(value) for name, value in zip(given[::2], given[1::2], strict=True)}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
def test_a_job_states_the_work_and_batch_of_its_script(job: Job) -> None:
    script = options(job)
    assert isinstance(job.work, EpochWork)
    assert (job.work.epochs, job.work.dataset_size) == (script["--epochs"], script["--size"])
    assert job.batch.size == script["--batch"]
    assert job.command is not None
    assert Path(job.command[0]).stem == job.model


def test_the_jobs_fit_the_cluster() -> None:
    check_fits(JOBS, read_cluster(ROOT / "examples" / "cluster.json"), "examples/jobs.jsonl")
