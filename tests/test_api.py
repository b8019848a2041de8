"""``import pliant``: the same results as the commands, from files, DataFrames and records."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pliant
from pliant.schemas.errors import BadInputError, InfeasibleError, JobsFailedError, PliantError, UsageError
from pliant.schemas.io import read_jobs, write_cluster, write_jobs, write_predictor
from pliant.schemas.job import Job
from pliant.schemas.predictor import Predictor
from tests.builders import cluster, job
from tests.cli.calling import call

NODES = {"nodes": [{"name": "n{}", "gpus": 2, "count": 2}]}
JOBS = (
    job("a", gpus=4, low=1, work={"samples": 400.0}),
    job("b", at=10, gpus=2, low=1, work={"samples": 100.0}, user="ben"),
    job("c", at=20, work={"epochs": 2, "dataset_size": 40}, labels={"team": "x"}),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jobs(JOBS, "jobs.jsonl")
    write_cluster(cluster(2, 2), "cluster.json")
    return tmp_path


def test_files_and_reports_are_those_of_the_commands(here: Path) -> None:
    inputs = ("jobs.jsonl", "--cluster", "cluster.json", "--policy", "fifo,las")
    done = call("replay", *inputs, "--rescale-cost", "5", "--seed", "3", "-o", "commands/")
    assert done.exit_code == 0, done.stderr
    result = pliant.replay("jobs.jsonl", Path("cluster.json"), policy=["fifo", "las"], rescale_cost=5, seed=3)
    assert result.write("api/") == ("api/fifo.parquet", "api/las.parquet")
    for name in ("fifo.parquet", "las.parquet"):
        assert (here / "api" / name).read_bytes() == (here / "commands" / name).read_bytes()
    for form, of_api in {"json": result, "md": Path("api/"), "csv": "commands"}.items():
        printed = call("report", "commands", "--baseline", "fifo", "--bound", "--format", form).stdout
        assert pliant.report(of_api, baseline="fifo", bound=True).text(form) == printed
    message = done.stderr.replace("pliant: ", "").splitlines()
    assert [line.partition(",")[0] for line in str(result).splitlines()] == [
        line.partition(",")[0] for line in message if "events in" not in line
    ]


def test_jobs_come_from_a_file_a_frame_records_or_fields(here: Path) -> None:
    frame = pliant.read("jobs.jsonl")
    fields = [json.loads(line) for line in Path("jobs.jsonl").read_text().splitlines()[1:]]
    forms = ["jobs.jsonl", frame, JOBS, pliant.read("jobs.jsonl", records=True), iter(fields)]
    hashes = {
        pliant.replay(jobs, NODES, policy="fifo", start_cost=0, rescale_cost=0).summaries[0].trace_hash
        for jobs in forms
    }
    assert len(hashes) == 1
    frame["submit_time"] = 0.0
    changed = pliant.replay(frame, NODES, policy="fifo", strict=False)
    assert changed.frame("jobs")["submit_s"].tolist() == [0.0, 0.0, 0.0]


def test_frames_say_whose_a_row_is(here: Path) -> None:
    result = pliant.replay("jobs.jsonl", NODES, policy=("fifo", "las"))
    events = result.frame()
    assert events.columns[0] == "policy"
    assert events["policy"].unique().tolist() == list(result.policies) == ["fifo", "las"]
    result.write("out")
    of_file = pliant.read("out/las.parquet")
    pd.testing.assert_frame_equal(
        events[events["policy"] == "las"].drop(columns="policy").reset_index(drop=True), of_file
    )
    assert result.frame("runs")["jobs_finished"].tolist() == [3, 3]
    assert len(result.frame("jobs")) == 6
    assert result.report().frame("jobs").equals(result.frame("jobs"))


def test_a_report_is_written_by_its_ending_and_drawn(here: Path) -> None:
    actual = pliant.replay("jobs.jsonl", "cluster.json", policy="fifo").report(completed_at_hours=[1])
    for ending in ("txt", "json", "csv", "md", "html"):
        actual.write(f"report.{ending}", jobs=ending == "json")
    assert pliant.read("report.json", "jobs")["job"].tolist() == ["a", "b", "c"]
    assert actual.metrics.runs[0].jobs_completed_at == ((3600.0, 3),)
    assert str(actual) == Path("report.txt").read_text()
    assert actual._repr_markdown_() == Path("report.md").read_text()
    assert "jct-cdf" in actual.figures("drawn")
    assert {path.name for path in Path("drawn").glob("jct*")} == {"jct-cdf.png", "jct-cdf.svg"}
    with pytest.raises(UsageError, match=r"report.pdf: expected a name that ends in \.txt, \.json"):
        actual.write("report.pdf")


def test_traces_of_a_recipe_are_replayed_by_seed_and_averaged(here: Path) -> None:
    command = ("trace", "synth", "poisson", "--jobs", "6", "--seed", "2", "-o", "made.jsonl")
    assert call(*command).exit_code == 0
    (here / "six.toml").write_text('kind = "poisson"\njobs = 6\n')
    for recipe in ("poisson", "six.toml", {"jobs": 6}):
        assert pliant.synth(recipe, jobs=6, seed=2).equals(pliant.read("made.jsonl"))
    jobs = pliant.synth("poisson", records=True, jobs=6)
    runs = [pliant.replay(jobs, NODES, policy=["fifo", "ones"], seed=seed) for seed in (0, 1)]
    report = pliant.report(runs, baseline="fifo")
    groups, single = report.frame("groups").set_index("name"), report.frame("runs")
    assert groups["runs"].to_dict() == {"fifo": 2, "ones": 2}
    mean = single[single["policy"] == "ones"]["mean_jct_s"].mean()
    assert groups.loc["ones", "mean_jct_s"] == pytest.approx(mean)
    assert groups.loc["ones", "mean_jct_s.low"] <= mean <= groups.loc["ones", "mean_jct_s.high"]
    assert groups["against"].fillna("").to_dict() == {"fifo": "", "ones": "fifo"}
    report.write("means.json")
    assert pliant.read("means.json", "groups").set_index("name").equals(groups)


def test_a_policy_is_held_to_figures_in_a_test_of_its_own(here: Path) -> None:
    actual = pliant.replay("jobs.jsonl", "cluster.json", policy="fifo").report()
    figure: dict[str, Any] = {"policy": "fifo", "metric": "jobs_finished", "min": 3}
    Path("expected.json").write_text(json.dumps({"figures": [figure]}))
    assert actual.check("expected.json")[0].holds
    Path("expected.json").write_text(json.dumps({"figures": [{**figure, "min": 4}]}))
    with pytest.raises(JobsFailedError, match="fifo jobs_finished is 3, below min 4"):
        actual.check("expected.json")


def test_a_schedule_is_that_of_the_command(here: Path) -> None:
    actual = pliant.schedule("jobs.jsonl", "cluster.json", policy="fifo", now_s=15)
    options = ("--policy", "fifo", "--now", "15", "--explain", "--no-timing", "-o", "command.json")
    done = call("schedule", "jobs.jsonl", "--cluster", "cluster.json", *options, columns=300)
    assert done.exit_code == 0, done.stderr
    actual.write("api.json")
    assert Path("api.json").read_bytes() == Path("command.json").read_bytes()
    assert actual.frame().set_index("job").loc["a", "gpus"] == 4
    assert actual.frame("waiting")["job"].tolist() == ["b", "c"]
    assert str(actual) in done.stderr
    with pytest.raises(InfeasibleError):
        pliant.schedule([job("big", gpus=64)], NODES, policy="fifo")


def test_records_are_what_the_other_functions_take(here: Path) -> None:
    jobs = pliant.read("jobs.jsonl", records=True)
    assert jobs == read_jobs("jobs.jsonl")
    assert isinstance(jobs[0], Job)
    nodes = pliant.read("cluster.json", records=True)
    assert pliant.schedule(jobs, nodes, policy="fifo").record.cluster == nodes
    write_predictor(Predictor(), "predictor.json")
    assert pliant.read("predictor.json", records=True) == Predictor()
    with pytest.raises(UsageError, match=r"predictor\.json: predictor files have no tables"):
        pliant.read("predictor.json")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"policy": "fifoo"}, 'unknown policy "fifoo"'),
        ({"policy": []}, "policy: expected a name"),
        ({"rescale_costs": 3}, 'replay has no option "rescale_costs"; did you mean "rescale_cost"?'),
        ({"interval": -1}, "interval: -1 is below 0, expected 0 or more"),
        ({"interference": 1}, "interference 1: expected a part of the speed"),
        ({"seed": -1}, "seed: -1 is below 0"),
        ({"parameters": {"alpha": 1}}, 'policy "fifo" has no parameter "alpha"'),
        ({"policy": ["fifo", "las"], "parameters": {"alpha": 1}}, 'parameters: "alpha" is not a policy'),
        ({"jobs": 5}, "jobs: expected a file, a DataFrame, or jobs, got int"),
        ({"jobs": [5]}, "jobs:1: expected a job or its fields, got int"),
        ({"jobs": [{"id": "a", "model": object()}]}, "jobs:1: is not JSON: object"),
        (
            {"cluster": pd.DataFrame()},
            "cluster: expected a file, a Cluster or its fields, got DataFrame; pli",
        ),
        ({"cluster": {"nodes": [{"name": "n"}]}}, "cluster:1: /nodes/0/gpus: is missing"),
        ({"profile": 3}, "profile: expected a file or a Profile, got int"),
    ],
)
def test_each_mistake_is_an_error_of_pliant_in_one_line(here: Path, given, problem) -> None:
    arguments = {"jobs": "jobs.jsonl", "cluster": "cluster.json", "policy": "fifo", **given}
    with pytest.raises(pliant.PliantError) as caught:
        pliant.replay(arguments.pop("jobs"), arguments.pop("cluster"), **arguments)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


def test_choices_numbers_and_rows_are_checked(here: Path) -> None:
    result = pliant.replay("jobs.jsonl", NODES, policy="fifo")
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: result.frame("job"), "table: 'job' is not one of events, runs, jobs"),  # type: ignore[arg-type]
        (lambda: result.report(reference="gp"), "reference: 'gp' is not one of fair-share, gps"),  # type: ignore[arg-type]
        (lambda: result.report(completed_at_hours=-1), "completed_at_hours: -1 is not a number of 0"),
        (lambda: result.report().text("pdf"), "format: 'pdf' is not one of table, json"),  # type: ignore[arg-type]
        (pliant.report, "report: no runs"),
        (lambda: pliant.report(7), "report: expected files, folders or replays, got int"),  # type: ignore[arg-type]
        (lambda: pliant.schedule(JOBS, NODES, policy="fifo", seed=-1), "seed: -1 is below 0"),
        (lambda: pliant.schedule(JOBS, NODES, policy="fifo", now_s=float("nan")), "now_s: nan is not a"),
    ]
    for call_it, problem in wrong:
        with pytest.raises(UsageError) as caught:
            call_it()
        assert str(caught.value).startswith(problem)
    # A row of a frame that is wrong is named.
    frame = pliant.read("jobs.jsonl")
    frame.loc[1, "gpus.max"] = 1
    frame.loc[1, "gpus.min"] = 2
    with pytest.raises(BadInputError, match=r"^jobs:2: /gpus"):
        pliant.replay(frame, NODES, policy="fifo")


def test_the_package_has_a_version_and_loads_nothing_else() -> None:
    assert pliant.PliantError is PliantError
    assert set(pliant.__all__) <= set(dir(pliant))
    with pytest.raises(AttributeError, match="'pliant' has no attribute 'raed'"):
        pliant.raed  # type: ignore[attr-defined]  # noqa: B018
    # The version is that of the package that is installed.
    assert pliant.__version__ == version("pliant")
    # Importing the package loads nothing else.
    code = "import sys, pliant; print([name for name in sys.modules if name.startswith('pliant.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
