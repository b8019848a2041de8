import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from pliant.cli.report import report
from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_events, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import labels
from pliant.tools.report.rendering.output import ReportFormat
from pliant.tools.report.report import make_report, read_report
from tests.builders import cluster, job, mixed_cluster
from tests.tools.profile.rows_builder import step
from tests.tools.report.runs import begin, first_come, ran, shared, story, submit


def run(source="events", **info):
    return fold([begin(**info), submit(job("a"), 4.0)], source)


def notes(*events, **info):
    return make_report([story(*events, **info)]).runs[0].caveats


def test_runs_are_labelled_by_what_differs_shares_have_a_caveat():
    assert labels([run(policy="fifo"), run(policy="ares")]) == ["fifo", "ares"]
    first = run(policy="ares", parameters={"alpha": 0.5, "pool": 2})
    second = run(policy="ares", parameters={"alpha": 0.75, "pool": 2}, seed=1)
    ares = ["ares alpha=0.5 seed=0", "ares alpha=0.75 seed=1"]
    assert labels([first, second, run(policy="fifo")]) == [*ares, "fifo"]
    assert labels([run(), run(simulated=False)]) == ["fifo simulated", "fifo measured"]
    assert labels([run("x/one.parquet"), run("x/two.parquet")]) == ["fifo [one]", "fifo [two]"]
    assert labels([run("x/a.parquet"), run("y/a.parquet")]) == ["fifo [x]", "fifo [y]"]
    assert labels([run("x/a.parquet")] * 2) == ["fifo [x] #1", "fifo [x] #2"]
    assert labels([run(nodes=cluster(4)), run(nodes=cluster(4, 4))]) == ["fifo on 4 GPUs", "fifo on 8 GPUs"]
    nodes = (cluster(4), cluster(4, gpu_type="t4"))
    assert labels([run(nodes=each) for each in nodes]) == ["fifo on 1 × 4 gpu", "fifo on 1 × 4 t4"]
    one, two = {"trace": "philly", "trace_hash": "ab" * 32}, {"trace": "helios", "trace_hash": "cd" * 32}
    assert labels([run(**one), run(**two)]) == ["fifo philly", "fifo helios"]
    assert labels([run(**one), run(policy="ares", **one)]) == ["fifo", "ares"]
    seeds = [run(**one), run(**one, seed=1), run(**two)]
    assert labels(seeds) == ["fifo philly seed=0", "fifo philly seed=1", "fifo helios"]
    one, two = {"trace_hash": "ab" * 32}, {"trace_hash": "cd" * 32}
    assert labels([run(**one), run(**two)]) == ["fifo ababab", "fifo cdcdcd"]
    assert labels([run(trace="a", **one), run(trace="a", **two)]) == ["fifo a@ababab", "fifo a@cdcdcd"]
    recorded = job("a", labels={"trace": "pai", "gpu_type": "t4"})
    assert not [text for text in notes(submit(recorded, 4.0), *ran("a", 0, 4)) if "fair shares" in text]
    nodes = mixed_cluster(t4=(4,), a100=(4,))
    (text,) = (text for text in notes(submit(recorded, 4.0), *ran("a", 0, 4), nodes=nodes) if "fair" in text)
    assert text == "FTF: fair shares are of all GPUs, also of jobs that may run on some of them only"


def test_provenance_names_what_makes_a_run():
    one = run(policy="srtf", oracle=True, seed=7, parameters={"alpha": 0.8})
    oracle = "simulated · oracle (knows what no scheduler can know) · 4 GPUs · trace abababababab"
    assert make_report([one]).runs[0].provenance == f"{oracle} · seed 7 · alpha=0.8 · pliant 0.1.0"
    told = make_report([run(demand="predicted", nodes=cluster(4, slots="cpu"))]).runs[0]
    assert told.provenance.startswith("simulated · predicted demand · 4 CPU slots")
    assert told.metrics.demand == "predicted"
    assert "the work of jobs was predicted where they state none" in told.caveats
    oracle = run(demand="oracle", oracle=True)
    (told,) = make_report([oracle]).runs
    assert "oracle demand (knows when jobs end, as no scheduler can)" in told.provenance
    assert labels([run(), oracle]) == ["fifo stated demand", "fifo oracle demand"]


def test_caveats_say_what_figures_leave_out_or_contradict():
    arrivals = submit(job("a"), 4.0), submit(job("b"), 4.0), submit(job("c"))
    told = notes(*arrivals, Event(1, "reject", "b", 0), *ran("c", 1, 5))
    assert told == [
        "1 unfinished, 1 rejected of 3 jobs: in no JCT and no FTF",
        "1 finished job has no FTF: work or speed is unknown",
    ]
    told = notes(submit(job("a")), Event(0, "start", "a", 5), Event(1, "finish", "a", 0, samples_done=1.0))
    assert told == [
        "at times jobs hold more GPUs than there are: the log contradicts itself",
        "GPUs held not known: 1.25 is impossible, expected at least 0 and at most 1",
    ]
    assert notes(Event(1, "decision", detail={"policy": "ares"})) == [
        "the policy changed during the run: fifo, ares"
    ]
    events = []
    for at, (low, high) in enumerate([(0.1, 0.3), (0.3, 0.5), (0.9, 1.0), (0.0, 1.0)], 1):
        band = {"samples_done": 2.0 * at, "mean": 0.5, "low": low, "high": high}
        events.append(Event(at, "progress", "a", detail={"progress": band}))
    finished = Event(10, "finish", "a", 0, samples_done=10.0)
    assert notes(submit(job("a"), 10.0), Event(0, "start", "a", 1), *events, finished) == [
        "75% of 4 predicted 90 % intervals of progress held what followed"
    ]


@pytest.mark.parametrize(
    ("other", "warning"),
    [
        ({"trace_hash": "cd" * 32}, "the runs are of different traces: their figures do not compare"),
        ({"nodes": cluster(2, 2)}, "the runs are on different clusters"),
        ({"simulated": False}, "some runs are simulated and some are measured"),
        ({"oracle": True}, "some policies knew what no scheduler can know (oracle), the others were not"),
        (
            {"demand": "predicted"},
            "the policies did not see the same of the work of jobs: predicted demand and stated demand",
        ),
    ],
)
def test_runs_that_do_not_compare_are_warned_about(other, warning):
    assert make_report([run(), run(**other)]).warnings == (warning,)
    assert make_report([run(), run()]).warnings == ()


def test_the_baseline_is_a_label_or_a_policy():
    runs = [run(policy="ares", seed=1), run(policy="ares", seed=2), run(policy="fifo")]
    assert make_report(runs, baseline="fifo").baseline.label == "fifo"
    assert make_report(runs, baseline="ares seed=2").baseline.run is runs[1]
    twice = [run("one.parquet", policy="ares"), run("two.parquet", policy="ares"), run(policy="fifo")]
    with pytest.raises(UsageError, match='"ares" is the policy of several runs; the runs are "ares'):
        make_report(twice, baseline="ares")
    with pytest.raises(UsageError, match='"las" is not a run'):
        make_report(runs, baseline="las")


def test_folders_stand_for_their_runs_and_other_files_are_named(tmp_path):
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir(), state.mkdir()
    write_events(first_come(), out / "fifo.parquet")
    write_events(shared(), out / "ares.parquet")
    write_events(shared(simulated=False), state / "events.jsonl")
    found = read_report([out, state])
    assert [each.label for each in found.runs] == ["ares simulated", "fifo", "ares measured"]
    with pytest.raises(UsageError, match=r"no events\.jsonl and no \.parquet"):
        read_report([tmp_path])
    write_profile(Profile((step(1, 8, 0.1),)), tmp_path / "profile.parquet")
    with pytest.raises(UsageError, match=r"no \.parquet file of events, only a 'profile' file: profile"):
        read_report([tmp_path])
    write_events(first_come(), tmp_path / "fifo.parquet")
    found = read_report([tmp_path])
    assert [each.label for each in found.runs] == ["fifo"]
    assert found.warnings == (f"{tmp_path}/profile.parquet is a 'profile' file: left out",)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInputError, match="torn"):
        read_report([tmp_path])
    with pytest.raises(UsageError, match="cannot be named twice"):
        read_report(["-", "-"])


@pytest.fixture
def runs(tmp_path):
    paths = str(tmp_path / "fifo.parquet"), str(tmp_path / "ares.parquet")
    write_events(first_come(), paths[0])
    write_events(shared(), paths[1])
    return paths


def expect(tmp_path, value):
    path = tmp_path / "expect.json"
    figure = {"policy": "fifo", "metric": "mean_jct_s", "value": value, "tolerance": 0.01}
    path.write_text(json.dumps({"figures": [figure]}))
    return str(path)


@pytest.fixture
def printed(capsys):

    def of(*paths, **options):
        report(list(paths), **options)
        return capsys.readouterr()

    return of


def test_events_come_from_a_pipe_but_not_from_a_terminal(runs, capsys, monkeypatch):
    def piped(data, is_terminal=False):
        piped_in = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: is_terminal)
        monkeypatch.setattr(sys, "stdin", piped_in)

    piped(Path(runs[1]).read_bytes())
    report(format="json")
    assert json.loads(capsys.readouterr().out)["runs"][0]["policy"] == "ares"
    piped(b"no events")
    with pytest.raises(BadInputError, match="<stdin>"):
        report(["-"])
    piped(b"", is_terminal=True)
    with pytest.raises(UsageError, match="no events"):
        report()


@pytest.mark.parametrize(
    ("name", "options", "first"),
    [
        ("x.html", {}, "<!doctype html>"),
        ("x.json", {}, "{"),
        ("y.html", {"format": "json"}, "{"),
        ("report", {"format": "html"}, "<!doctype html>"),
    ],
)
def test_the_ending_of_the_file_says_the_form(runs, printed, tmp_path, name, options, first):
    assert printed(*runs, output=str(tmp_path / name), **options).out == ""
    assert (tmp_path / name).read_text().startswith(first)


def test_expected_figures_are_written_checked_and_counted(runs, tmp_path, printed, capsys):
    expected, junit = tmp_path / "expected.json", tmp_path / "junit.xml"
    assert f"expected figures in {expected}" in printed(*runs, write_expected=str(expected)).err
    printed(*runs, expect=str(expected), junit=str(junit))
    assert 'failures="0"' in junit.read_text()
    with pytest.raises(JobsFailedError, match="out of range") as caught:
        report(list(runs), expect=expect(tmp_path, 100.0), junit=str(junit))
    assert caught.value.exit_code == 5
    assert "OUT OF RANGE" in capsys.readouterr().out
    assert 'failures="1"' in junit.read_text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"junit": "j.xml"}, "--junit writes what --expect found"),
        ({"write_expected": "-"}, "stdout holds one product"),
        ({"write_expected": "none/e.json"}, "the folder none is missing"),
        ({"figures": "jct-cfd.pdf"}, 'did you mean "jct-cdf"'),
        ({"figures": "jct-cdf.pdf", "figure_format": "png"}, "states its form"),
        ({"figures": "all", "figure_format": "eps"}, "no form of figures"),
        ({"figure_format": "png"}, "name their folder with --figures"),
        *(({"completed_at": hours}, "--completed-at") for hours in ("", "soon", "-1", "1,,2", "inf", "nan")),
    ],
)
def test_impossible_options_are_refused_before_reading(tmp_path, monkeypatch, capsys, options, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=problem):
        report(["no such run"], **options)
    assert capsys.readouterr().out == ""


def test_the_product_alone_is_on_stdout(runs, tmp_path, printed):
    figures = tmp_path / "figures"
    options = {"figures": str(figures), "figure_format": "svg"}
    out, err = printed(runs[0], format="json", expect=expect(tmp_path, 175.0), **options)
    assert json.loads(out)["runs"]
    assert "holds" in err
    assert "5 figures in" in err
    assert {path.suffix for path in figures.iterdir()} == {".svg"}
    assert "1 figure in" in printed(runs[0], figures=str(tmp_path / "jct-cdf.svg")).err


def test_expected_figures_of_another_trace_are_named(runs, tmp_path, printed, monkeypatch):
    monkeypatch.chdir(tmp_path)  # lines are cut where a path is longer than they are
    printed(runs[0], write_expected="e.json")
    assert "of trace" not in "".join(printed(runs[0], expect="e.json"))
    write_events(first_come(trace_hash="cd" * 32), "other.parquet")
    text = " ".join(printed("other.parquet", expect="e.json").out.split())
    assert "e.json expects figures of trace abababababab; these are of trace cdcdcdcdcdcd" in text


def test_a_run_without_jobs_is_one_sentence(tmp_path, printed):
    path = str(tmp_path / "none.parquet")
    write_events(first_come()[:1], path)
    first = "fifo: no job was submitted, so there is nothing to report."
    assert printed(path).out.splitlines()[0] == first
    for form in ("table", "md"):
        assert "Jobs of" not in printed(path, jobs=True, format=form).out


def test_a_profile_shows_its_residuals(runs, tmp_path, printed):
    """Without the second size, two GPUs are a third of the way from one to four: 1 + 0.4 / 3."""
    times = {1: 1.0, 2: 1.2, 4: 1.4}
    rows = [step(gpus, 8, seconds, model="linear") for gpus, seconds in times.items()]
    write_profile(Profile(tuple(rows)), tmp_path / "profile.parquet")
    out = printed(runs[0], profile=str(tmp_path / "profile.parquet"), format="html").out
    assert all(shown in out for shown in ("Measured and predicted steps", "1.133", "-5.6"))


def test_a_simulated_run_is_shown_beside_one_measured_run(runs, printed):
    with pytest.raises(UsageError, match="one measured run"):
        report(list(runs), simulated=runs[0])
    out = printed(runs[1], simulated=runs[0], plot=True).out
    assert "Simulated beside measured" in out
    assert "share of finished jobs by JCT" in out


def test_bounds_and_completed_jobs_in_every_form(runs, printed):
    texts = {"json": "[180.0, 1]", "csv": "180=1 3600=2", "csv-long": ",jobs_finished,2"}
    for form in get_args(ReportFormat):
        out = printed(*runs, format=form, bound=True, completed_at="0.05,1").out
        assert ("bound_jct_s" if form in texts else "lower bound of the mean JCT") in out
        assert texts.get(form, "jobs finished by 3 min") in out
