"""What ``make bench`` says and does, and every benchmark in its smallest form."""

import importlib
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import sharing
from benchmarks.__main__ import NOT_MEASURED, benchmarks, main
from benchmarks.parts import cpu_of_all, figure, mutants, relaunch_cost, slurm_day, training_job
from benchmarks.parts.figure import ROOT, Figure, NotMeasurableError
from benchmarks.parts.mutants import Mutant, mutated
from benchmarks.parts.reclaim import reclaimed
from benchmarks.parts.shapes import figures
from benchmarks.parts.shapes.table import shapes
from benchmarks.parts.slurm_cluster import NoSlurmError
from benchmarks.parts.slurm_order import PlannedJob, judged, live
from benchmarks.parts.training_job import running
from pliant.tools.run.service.executor import Executor


def test_without_a_name_each_benchmark_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(benchmarks())
    assert all(len(line.split()) > 3 for line in lines)


SERVICES = (
    *("ares_experiments", "dead_node", "ones", "replay_fidelity", "replay_speed", "rivals", "shadow_price"),
)
"""Benchmarks that replay published data, or need Slurm's daemons or network namespaces."""


def smallest(name: str) -> Sequence[Figure]:
    result: Sequence[Figure] = importlib.import_module(f"benchmarks.{name}").smallest()
    assert len({row.name for row in result}) == len(result)
    assert all(row.value is None or math.isfinite(row.value) for row in result)
    return result


@pytest.mark.torch
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [name for name in benchmarks() if name not in SERVICES])
def test_each_runs_in_its_smallest_form(name: str) -> None:
    assert any(row.value is not None for row in smallest(name))


@pytest.mark.services
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", SERVICES)
def test_each_that_needs_a_service_runs_small(name: str) -> None:
    try:
        result = smallest(name)
    except NotMeasurableError as error:
        pytest.skip(str(error))
    if not result:
        pytest.skip("neither published data nor Slurm")
    assert any(row.value is not None for row in result)


@pytest.mark.parametrize("name", benchmarks())
def test_what_each_measures_is_there(name: str) -> None:
    paths = importlib.import_module(f"benchmarks.{name}").MEASURES
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nope"]) == 2
    assert "no benchmark 'nope'; there are: ares, ares_experiments, chaos" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["ares_experiments", "ones", "replay_fidelity", "replay_speed", "shadow_price"]
)
def test_without_its_data_a_benchmark_keeps_the_record(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PLIANT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    (tmp_path / f"{name}.json").write_text("[]")
    assert main([name]) == NOT_MEASURED
    message = capsys.readouterr().err
    assert f"{name}: no {tmp_path}/nowhere/" in message
    assert f"results/{name}.json stays as it is" in message
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {f"{name}.json": "[]"}


def test_a_part_that_is_named_is_measured_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    parts = {name: partial(lambda name: [Figure(name, 1.0, "s")], name) for name in ("first", "second")}
    monkeypatch.setattr(sharing, "PARTS", parts)
    assert main(["sharing", "second"]) == 0
    assert [row["name"] for row in json.loads((tmp_path / "sharing.json").read_text())] == ["second"]
    assert main(["sharing"]) == 0
    assert len(json.loads((tmp_path / "sharing.json").read_text())) == 2
    assert main(["sharing", "third"]) == 2


def test_figures_are_old_once_their_code_is_committed_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(figure, "ROOT", tmp_path)
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    run = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True)
    run(("git", "init", "-q"))

    def newer_after(path: str, text: str) -> list[str]:
        """The last words of the commits that are newer than the figures, after this file is committed."""
        (tmp_path / path).write_text(text)
        run((*git, "add", "-A"))
        run((*git, "commit", "-qm", f"{path} {text}"))
        return [line.split(maxsplit=2)[2] for line in figure.newer_commits("x", ["code"])]

    assert newer_after("code", "1") == [], "never recorded"
    assert newer_after("x.json", "[1]") == newer_after("other", "1") == []
    assert newer_after("code", "2") == ["code 2"]
    (tmp_path / "x.json").write_text("[2]")
    assert figure.newer_commits("x", ["code"]) == [], "recorded again just now"
    assert newer_after("x.json", "[2]") == []


def test_old_figures_are_named_and_no_history_is_said(tmp_path, monkeypatch, capsys) -> None:
    commits = ["abc 2026-01-02 Do it", "def 2026-01-01 Begin"]
    monkeypatch.setattr(figure, "newer_commits", lambda name, _paths: commits if name == "rescale" else [])
    assert main([]) == 0
    old = capsys.readouterr().out.split("\n\n")[1]
    assert "rescale          2 commits since, to tools/run/elastic" in old
    assert "abc 2026-01-02 Do it" in old
    assert "shadow_price" not in old
    monkeypatch.undo()
    monkeypatch.setattr(figure, "ROOT", tmp_path / "nowhere")
    assert main([]) == 0
    assert "is not known: there is no git history here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (Figure("a", 1.0, "s"), None),
        (Figure("a", None, "s", 1.0), False),
        *((Figure("a", value, "s", 1.0), value <= 1.0) for value in (1.0, 1.1)),
        *((Figure("a", value, "", 10.0, at_least=True), value >= 10.0) for value in (12.0, 9.0)),
        *((Figure("a", value, "", 1.1, low=0.9), value == 0.9) for value in (0.8, 0.9, 1.2)),
    ],
)
def test_a_figure_says_whether_it_keeps_to_its_limit(one: Figure, holds: bool | None) -> None:
    assert one.row("make bench NAME=x")["holds"] is holds


def test_a_figure_of_another_machine_than_most_says_so(tmp_path, monkeypatch) -> None:
    one, other, third = ({"cores": 2, "cpu": name} for name in ("one", "other", "third"))
    monkeypatch.setattr(figure, "RESULTS", tmp_path)

    def renew(names: str, machine: dict[str, object]) -> tuple[dict[str, str | None], str]:
        monkeypatch.setattr(figure, "machine", lambda: machine)
        rows = json.loads(figure.renew("x", [Figure(name, 1.0, "s") for name in names]).read_text())
        recorded = json.loads((tmp_path / "x.machine.json").read_text())
        return {row["name"]: row.get("machine") for row in rows}, recorded["cpu"]

    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    assert renew("a", third) == ({"a": "2 cores of third", "b": None, "c": None}, "one")
    assert renew("b", other) == ({"a": "2 cores of third", "b": "2 cores of other", "c": None}, "one")
    assert renew("a", other) == ({"a": None, "b": None, "c": "2 cores of one"}, "other")
    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    (tmp_path / "x.machine.json").unlink()
    assert renew("a", one) == ({"a": None, "b": "unknown", "c": "unknown"}, "one")


TEXT = """\
def least(values, low: int = 1):
    if not values or len(values) < 2:
        raise ValueError("few")
    values.sort()
    return values[0] + low
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in mutants.PRODUCT:
        (tmp_path / folder).mkdir()
    (tmp_path / "tools" / "least.py").write_text(TEXT)
    return tmp_path


def test_a_fault_changes_one_place_of_a_drawn_line(repository: Path) -> None:
    drawn = mutants.draw(repository, count=9)
    assert drawn == mutants.draw(repository, count=9)
    assert {mutant.function for mutant in drawn} == {"", "least"}
    texts = {mutated(TEXT, mutant) for mutant in drawn}
    assert len(drawn) == len(texts - {TEXT, None}) == 5
    for text in texts:
        compile(text or "", "least.py", "exec")
    kinds = Counter(mutant.kind for _, mutant in mutants.changes_of("least.py", TEXT))
    assert kinds == {"constant": 3, "comparison": 1, "operator": 3, "statement": 3}


def test_faults_are_looked_up_by_their_statement() -> None:
    mutant = Mutant("least.py", "least", "values.sort()", "values.sort()", 0, "statement", "pass")
    assert mutated("import os\n\n" + TEXT, mutant) == "import os\n\n" + TEXT.replace("values.sort()", "pass")
    assert mutated(TEXT.replace("values.sort()", "values = sorted(values)"), mutant) is None
    # One that the function has twice is the second of them.
    twice = TEXT.replace("    return", "    values.sort()\n    return")
    text = mutated(twice, replace(mutant, nth=1, killed_before=True)) or ""
    assert text.index("values.sort()") < text.index("pass")
    # Of a statement with others in it, what is in them does not matter.
    within = "if not values or len(values) < 2:\n    pass"
    mutant = Mutant("least.py", "least", within, "2", 0, "constant", "3")
    assert mutated(TEXT.replace("few", "too few"), mutant) == TEXT.replace("few", "too few").replace("2", "3")


def test_a_function_that_moved_takes_its_faults_along(repository: Path) -> None:
    mutant = Mutant(
        "cli/old.py", "Old.least", "values.sort()", "values.sort()", 0, "statement", "pass", "c", True
    )
    assert mutants.located(repository, mutant) == replace(mutant, path="tools/least.py", function="least")
    assert mutants.located(repository, replace(mutant, function="most")) is None


def test_a_module_has_the_tests_that_import_it() -> None:
    assert mutants.tests_of(ROOT, "tools/schedule/policies/gavel.py")[0].endswith("/test_gavel.py")
    assert mutants.tests_of(ROOT, "cli/whatif.py")
    assert len(mutants.recorded()) == mutants.COUNT
    assert all(mutant.commit and mutant.killed_before is not None for mutant in mutants.recorded())


def test_processor_time_and_the_exit_code_are_written(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    assert cpu_of_all.main([str(file), sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert json.loads(file.read_text()).keys() == {"cpu_s", "wall_s"}


@pytest.mark.torch
def test_the_relaunched_script_trains_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_job, "SETTLE_S", 0.0)
    with running(Executor, relaunch_cost.SCRIPT, "", 8, resize="relaunch") as job:
        assert relaunch_cost._takes(job, 1) > 0
        job.give(0)
        job.ends()
        assert (job.folder / "saved.pt").exists()


def test_a_lent_slot_comes_back_while_the_borrower_trains_on():
    """It is seen to train on with one worker, and to grow again after the owner's job has ended."""
    assert reclaimed("shrink").seconds > 0


@pytest.mark.torch
def test_shapes_and_faults() -> None:
    names = ("classifier", "GAN, the painter first", "ignore_index, weighed", "sum")
    found = figures.of_shapes(names, ("two workers", "micro-steps"))
    rows = {one.name: one.value for one in found}
    assert rows["shapes_in_suite"] == 4
    assert rows["silent_wrong"] == 0, "the sum is documented"
    assert rows["token_loss_error"] is not None
    assert rows["token_loss_error"] < 1e-9
    assert figures.of_faults(("one gradient halved",))[0].value == 1.0


def test_the_table_of_shapes_is_whole() -> None:
    assert len(shapes()) >= figures.LEAST
    assert {one.decision for one in shapes().values()} == {"right", "refused", "warned", "documented"}
    assert max(len(one.code.splitlines()) for one in shapes().values()) <= 12
    assert set(figures.BY_TOKENS) <= shapes().keys()


@pytest.mark.services
def test_slurm_and_the_policy_start_a_plan_in_one_order():
    """The second job books all nodes for the end of the first; only the fourth ends before that."""
    planned = [
        PlannedJob(0.0, gpus=6, limit_min=2, run_s=8.0, partition="main", nice=0),
        PlannedJob(1.5, gpus=8, limit_min=1, run_s=1.0, partition="main", nice=0),
        PlannedJob(2.5, gpus=2, limit_min=5, run_s=1.0, partition="debug", nice=50),
        PlannedJob(2.5, gpus=2, limit_min=1, run_s=1.0, partition="main", nice=0),
    ]
    try:
        lived = live(planned, favor_small=False)
    except NoSlurmError as error:
        pytest.skip(str(error))
    result = judged(0, planned, lived, favor_small=False)
    assert result.slurm == result.policy == (1, 4, 2, 3)
    assert lived.priorities == {1: 1000, 2: 1250, 3: 1200, 4: 500}
    assert result.other_priority == ()


@pytest.mark.services
@pytest.mark.torch
def test_a_day_on_slurm_ends_with_all_jobs_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_day, "AWAY_S", 0.5)
    try:
        result = slurm_day.live(2, gap_s=1.0, epochs=(1, 2), profiled=False)
    except NoSlurmError as error:
        pytest.skip(str(error))
    assert (result.lost, result.wrong) == (0, 0)
    assert result.jct_s > 0
    assert result.simulated_jct_s > 0
