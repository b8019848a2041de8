"""What all experiments share: numbers as data, ours beside them, figures, pages."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.harness.page import HEADER, Results, page_text, results_bytes, table_text
from experiments.harness.plots import write_plots
from experiments.harness.published import Compared, compare, read_numbers
from experiments.harness.replays import Outcome, carry_out
from experiments.harness.spec import Experiment, Plot, Study, find, load, names
from experiments.harness.study import page_of, read_findings
from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.io import write_cluster
from tests.builders import cluster

NUMBERS = """
[[numbers]]
name = "t1_jct"
table = "Table 1"
what = "average JCT, fifo"
value = 2.0
unit = "min"
metric = "mean_jct_s"
scale = 0.016666666666666666
run = "small*-fifo"

[[numbers]]
name = "t1_ratio"
table = "Table 1"
what = "average JCT: srtf / fifo"
value = 0.5
metric = "mean_jct_s"
run = "small*-srtf"
over = "small*-fifo"
"""


def outcome(name: str, **metrics: float) -> Outcome:
    return Outcome(name, 0, "hash", metrics, (0.0, 60.0), (120.0, 180.0))


def outcomes(**jcts: float) -> dict[str, Outcome]:
    """``small_t0_fifo=120`` is replay ``small-t0-fifo`` with that mean JCT."""
    pairs = ((name.replace("_", "-"), jct) for name, jct in jcts.items())
    return {name: outcome(name, mean_jct_s=jct) for name, jct in pairs}


def numbers(folder: Path, text: str = NUMBERS) -> Path:
    path = folder / "published.toml"
    path.write_text(text)
    return path


def test_ours_is_the_mean_over_the_seeds_and_a_ratio_pairs_them(tmp_path: Path) -> None:
    actual = outcomes(small_t0_fifo=100, small_t1_fifo=200, small_t0_srtf=50, small_t1_srtf=50)
    jct, ratio = compare(read_numbers(numbers(tmp_path)), actual)
    assert jct.ours == pytest.approx(150 / 60)
    assert (jct.low, jct.high, jct.seeds) == (pytest.approx(100 / 60), pytest.approx(200 / 60), 2)
    assert ratio.ours == pytest.approx((50 / 100 + 50 / 200) / 2)
    assert (jct.is_ratio, ratio.is_ratio) == (False, True)
    assert ratio.deviation == pytest.approx(0.375 / 0.5 - 1)


@pytest.mark.parametrize(
    ("published", "ours", "reproduces"),
    [
        *((2.0, ours, holds) for ours, holds in ((1.4, True), (1.3, False), (3.1, False))),
        *((1.2, 0.9, False), (1.4, 1.0, False), (0.8, 0.9, True), (1.0, 1.2, True)),
    ],
)
def test_which_ratios_reproduce(published: float, ours: float, reproduces: bool) -> None:
    actual = Compared("n", "t", "w", "", published, ours, ours, ours, 1, is_ratio=True)
    assert actual.reproduces is reproduces


def test_numbers_that_name_no_replay_or_no_figure_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r'no replay of this experiment is called "small\*-fifo"'):
        compare(read_numbers(numbers(tmp_path)), outcomes(other=1))
    unpaired = outcomes(small_t0_fifo=1, small_t1_fifo=1, small_t0_srtf=1)
    with pytest.raises(BadInputError, match="t1_ratio: 1 replays over 2"):
        compare(read_numbers(numbers(tmp_path)), unpaired)
    with pytest.raises(BadInputError, match=r'/numbers/0/metric: "jct" is not a figure'):
        read_numbers(numbers(tmp_path, NUMBERS.replace('"mean_jct_s"', '"jct"', 1)))


SWEEP = """
policies = ["fifo", "srtf"]
[[traces]]
name = "small"
synth = "small.json"
seeds = [0, 1]
[[clusters]]
name = "c2"
path = "cluster.json"
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:

    def prepare(folder: Path, smoke: bool) -> None:
        write_cluster(cluster(2), folder / "cluster.json")
        (folder / "small.json").write_text(f'{{"jobs": {3 if smoke else 6}, "rate_per_hour": 60}}')

    monkeypatch.setattr("experiments.harness.spec.ROOT", tmp_path)
    monkeypatch.setattr("experiments.harness.spec.PAGES", tmp_path / "docs")
    plot = Plot("figure1", "Figure 1", {"first come": "small*-fifo"})
    made = Experiment("toy-one", "Toy", "A paper", ("sweep.toml",), (plot,), prepare)
    made.folder.mkdir()
    numbers(made.folder)
    (made.folder / "sweep.toml").write_text(SWEEP)
    (made.folder / "page.md.j2").write_text(
        '# {{ experiment.title }}\n{{ table("Table 1") }}\n{{ figure("figure1") }}\n'
    )
    return made


def test_an_experiment_goes_from_recipes_to_a_page(experiment: Experiment, tmp_path: Path) -> None:
    experiment = replace(experiment, fold=lambda run, events: {"jobs_in_it": len(run.jobs)})
    actual = carry_out(experiment, tmp_path / "out")
    assert sorted(actual) == ["small-t0-fifo", "small-t0-srtf", "small-t1-fifo", "small-t1-srtf"]
    assert len(actual["small-t0-fifo"].arrivals_s) == 6
    compared = compare(read_numbers(experiment.numbers), actual)
    experiment.results.write_bytes(results_bytes(experiment, compared, actual))
    results = Results.read(experiment.results)
    assert results.compared == tuple(compared)
    replayed = results.replays["small-t1-srtf"]
    assert (replayed["jobs_submitted"], replayed["jobs_in_it"]) == (6, 6)
    page = page_text(experiment, results)
    assert page.startswith(HEADER.format("toy-one") + "# Toy\n| ")
    assert table_text(compared) in page
    assert "![figure1](toy-one/figure1.svg)" in page
    write_plots(experiment, actual, tmp_path / "figures")
    assert (tmp_path / "figures" / "figure1.svg").read_text().startswith("<?xml")


def test_a_smoke_run_is_small_and_does_nothing_twice(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    actual = carry_out(experiment, out, smoke=True)
    assert sorted(actual) == ["small-fifo", "small-srtf"]
    assert len(actual["small-fifo"].arrivals_s) == 3
    assert compare(read_numbers(experiment.numbers), actual)
    events = out / "sweep" / "small-fifo.parquet"
    before = events.stat().st_mtime_ns
    carry_out(experiment, out, smoke=True)
    assert events.stat().st_mtime_ns == before
    recipe = experiment.folder / "sweep.toml"
    recipe.write_text(recipe.read_text().replace("policies =", "interval = 60.0\npolicies ="))
    carry_out(experiment, out, smoke=True)
    assert events.stat().st_mtime_ns != before, "another interval makes another replay"
    events.write_bytes(b"not a result")
    assert len(carry_out(experiment, out, smoke=True)["small-fifo"].arrivals_s) == 3, "a damaged result"


def test_a_replay_that_fails_is_named(experiment: Experiment, tmp_path: Path) -> None:
    recipe = experiment.folder / "sweep.toml"
    recipe.write_text(recipe.read_text() + '\n[[traces]]\nname = "lost"\njobs = "nowhere.jsonl"\n')
    with pytest.raises((BadInputError, JobsFailedError), match="nowhere"):
        carry_out(experiment, tmp_path / "out")


def test_experiments_are_found_by_the_name_people_type() -> None:
    assert "elastic-scaling" in names()
    assert load("elastic-scaling").folder.name == "elastic_scaling"
    with pytest.raises(UsageError, match=r'no experiment "nothing"; there are: .*elastic-scaling'):
        load("nothing")


@pytest.mark.parametrize("name", names())
def test_a_page_is_made_from_the_committed_results(name: str) -> None:
    subject = find(name)
    if isinstance(subject, Study):
        actual = read_findings(subject)
        page, figures = page_of(subject, actual), set(subject.draw(actual))
    else:
        results = Results.read(subject.results)
        page, figures = page_text(subject, results), {plot.name for plot in subject.plots}
    assert subject.page.read_text() == page, f"run python -m experiments {name} --page"
    shown = set(re.findall(rf"\({name}/([\w-]+)\.svg\)", page))
    assert shown >= figures
    assert all((subject.page.parent / name / f"{each}.svg").exists() for each in shown)


@pytest.mark.parametrize("name", ["ares", "elastic-scaling", "ones"])
def test_published_numbers_are_shown_and_misses_explained(name: str) -> None:
    experiment = load(name)
    published = {number.name: number for number in read_numbers(experiment.numbers)}
    compared = Results.read(experiment.results).compared
    assert {each.name: each.published for each in compared} == {
        each.name: each.value for each in published.values()
    }
    shown = set(re.findall(r'table\("([^"]+)"\)', (experiment.folder / "page.md.j2").read_text()))
    assert shown == {number.table for number in published.values()}
    missed = [each.name for each in compared if each.is_ratio and not each.reproduces]
    assert [each for each in missed if not published[each].note] == []
