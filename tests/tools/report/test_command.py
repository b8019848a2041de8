from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import get_args

import pytest

from pliant.cli.report import report
from pliant.schemas.errors import BadInputError, JobsFailedError, UsageError
from pliant.schemas.io import write_events, write_profile
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.report.rendering.output import ReportFormat
from tests.tools.report.runs import first_come, shared


@pytest.fixture
def runs(tmp_path):
    write_events(first_come(), tmp_path / "fifo.parquet")
    write_events(shared(), tmp_path / "ares.parquet")
    return str(tmp_path / "fifo.parquet"), str(tmp_path / "ares.parquet")


def expect(tmp_path, value):
    path = tmp_path / "expect.json"
    figure = {"policy": "fifo", "metric": "mean_jct_s", "value": value, "tolerance": 0.01}
    path.write_text(json.dumps({"figures": [figure]}))
    return str(path)


def pipe_in(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False))


def test_a_table_of_two_runs(runs, capsys):
    report(list(runs), baseline="fifo", reference="gps")
    out, err = capsys.readouterr()
    assert "FTF (linear GPS), worst" in out
    assert "fair share" not in out
    assert err == ""


def test_events_from_a_pipe(runs, capsys, monkeypatch):
    with open(runs[1], "rb") as file:
        pipe_in(monkeypatch, file.read())
    report(format="json")
    assert json.loads(capsys.readouterr().out)["runs"][0]["policy"] == "ares"
    pipe_in(monkeypatch, b"no events")
    with pytest.raises(BadInputError, match="<stdin>"):
        report(["-"])


def test_nothing_named_at_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(UsageError, match="no events"):
        report()


def test_the_report_goes_to_a_file(runs, tmp_path, capsys):
    report([runs[0]], format="html", output=str(tmp_path / "report.html"))
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out == ""


def test_the_ending_of_the_file_says_the_form(runs, tmp_path):
    for name, options, begin in (
        ("x.html", {}, "<!doctype"),
        ("x.json", {}, "{"),
        ("y.html", {"format": "json"}, "{"),
    ):
        report(list(runs), output=str(tmp_path / name), **options)
        assert (tmp_path / name).read_text().startswith(begin), name


def test_figures_that_are_missed_are_shown_first(runs, tmp_path, capsys):
    with pytest.raises(JobsFailedError, match="out of range") as caught:
        report(list(runs), expect=expect(tmp_path, 100.0))
    assert caught.value.exit_code == 5
    assert "OUT OF RANGE" in capsys.readouterr().out


def test_a_written_file_expects_what_was_found(runs, tmp_path, capsys):
    expected, junit = tmp_path / "expected.json", tmp_path / "junit.xml"
    report(list(runs), write_expected=str(expected))
    assert f"expected figures in {expected}" in capsys.readouterr().err
    report(list(runs), expect=str(expected), junit=str(junit))
    assert 'failures="0"' in junit.read_text()


def test_junit_is_written_where_figures_are_missed(runs, tmp_path):
    junit = tmp_path / "junit.xml"
    with pytest.raises(JobsFailedError):
        report(list(runs), expect=expect(tmp_path, 100.0), junit=str(junit))
    assert 'failures="1"' in junit.read_text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"junit": "j.xml"}, "--junit writes what --expect found"),
        ({"write_expected": "-"}, "stdout holds one product"),
        ({"write_expected": "none/e.json"}, "the folder none is missing"),
    ],
)
def test_files_for_ci_that_cannot_be(runs, tmp_path, monkeypatch, options, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=problem):
        report(list(runs), **options)


def test_the_product_alone_is_on_stdout(runs, tmp_path, capsys):
    report([runs[0]], format="json", expect=expect(tmp_path, 175.0), figures=str(tmp_path / "figures"))
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"]
    assert "holds" in err
    assert "10 figures in" in err


def test_one_figure_as_pdf_and_all_figures_in_one_form(runs, tmp_path, capsys):
    report(list(runs), figures=str(tmp_path / "jct-cdf.pdf"))
    report(list(runs), figures=str(tmp_path / "all"), figure_format="svg")
    assert "1 figure in" in capsys.readouterr().err
    assert (tmp_path / "jct-cdf.pdf").read_bytes().startswith(b"%PDF")
    assert {path.suffix for path in (tmp_path / "all").iterdir()} == {".svg"}
    with pytest.raises(UsageError, match="no form of figures"):
        report(list(runs), figures=str(tmp_path / "all"), figure_format="eps")


def test_a_figure_that_cannot_be_is_refused_before_anything_is_read_or_printed(tmp_path, capsys):
    for options, problem in (
        ({"figures": str(tmp_path / "jct-cfd.pdf")}, 'did you mean "jct-cdf"'),
        ({"figures": str(tmp_path / "jct-cdf.pdf"), "figure_format": "png"}, "states its form"),
        ({"figure_format": "png"}, "name their folder with --figures"),
    ):
        with pytest.raises(UsageError, match=problem):
            report([str(tmp_path / "no such run")], **options)
    assert capsys.readouterr().out == ""


def test_expected_figures_of_another_trace_are_said_to_be_so(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # lines are cut where a path is longer than they are
    report([runs[0]], write_expected="e.json")
    report([runs[0]], expect="e.json")
    assert "of trace" not in "".join(capsys.readouterr())
    write_events(first_come(trace_hash="cd" * 32), "other.parquet")
    report(["other.parquet"], expect="e.json")
    said = " ".join(capsys.readouterr().out.split())
    assert "e.json expects figures of trace abababababab; these are of trace cdcdcdcdcdcd" in said


def test_a_run_without_jobs_is_one_sentence(tmp_path, capsys):
    write_events(first_come()[:1], tmp_path / "none.parquet")
    report([str(tmp_path / "none.parquet")])
    told = capsys.readouterr().out
    assert told.splitlines()[0] == "fifo: no job was submitted, so there is nothing to report."
    for form in ("table", "md"):
        report([str(tmp_path / "none.parquet")], jobs=True, format=form)
        assert "Jobs of" not in capsys.readouterr().out


def test_a_profile_beside_the_runs_shows_its_residuals(runs, tmp_path, capsys):
    rows = [
        ProfileRow("train", "linear", "gpu", 1, gpus, str(gpus), 8, step_seconds=seconds)
        for gpus, seconds in ((1, 1.0), (2, 1.2), (4, 1.4))
    ]
    write_profile(Profile(tuple(rows)), tmp_path / "profile.parquet")
    report([runs[0]], profile=str(tmp_path / "profile.parquet"), format="html")
    out = capsys.readouterr().out
    assert "Measured and predicted steps" in out
    # without it, two GPUs are a third of the way from one to four: 1 + 0.4 / 3
    assert "1.133" in out
    assert "-5.6" in out


def test_warnings_reach_a_reader_of_documents(runs, tmp_path, capsys):
    write_events(first_come(trace_hash="cd" * 32, policy="las"), tmp_path / "las.parquet")
    report([runs[0], str(tmp_path / "las.parquet")], format="csv")
    assert "different traces" in capsys.readouterr().err


def test_a_sweep_over_traces_is_not_warned_of_where_each_run_has_a_baseline_of_its_trace(tmp_path, capsys):
    for policy in ("fifo", "las"):
        for trace in ("ab", "cd"):
            write_events(
                first_come(trace_hash=trace * 32, policy=policy), tmp_path / f"{policy}{trace}.parquet"
            )
    report([str(tmp_path)], format="json", baseline="fifo")
    told = capsys.readouterr()
    assert json.loads(told.out)["warnings"] == []
    assert told.err == ""
    (tmp_path / "fifocd.parquet").unlink()
    write_events(first_come(trace_hash="ef" * 32), tmp_path / "fifoef.parquet")
    report([str(tmp_path)], format="json", baseline="fifo")
    assert "different traces" in capsys.readouterr().err


def test_a_simulated_run_goes_with_one_measured_run(runs):
    with pytest.raises(UsageError, match="one measured run"):
        report(list(runs), simulated=runs[0])


def test_simulated_beside_measured(runs, capsys):
    report([runs[1]], simulated=runs[0], plot=True)
    out = capsys.readouterr().out
    assert "Simulated beside measured" in out
    assert "share of finished jobs by JCT" in out


def test_bounds_and_completed_jobs_in_every_form(runs, capsys):
    for form in get_args(ReportFormat):
        report(list(runs), format=form, bound=True, completed_at="0.05,1")
        out = capsys.readouterr().out
        if form in ("json", "csv", "csv-long"):
            assert "bound_jct_s" in out
            said = {"json": "[180.0, 1]", "csv": "180=1 3600=2", "csv-long": ",jobs_finished,2"}
            assert said[form] in out
        else:
            assert "lower bound of the mean JCT" in out
            assert "jobs finished by 3 min" in out


def test_ftf_against_isolated_jobs(runs, capsys):
    report(list(runs), reference="isolated")
    out = capsys.readouterr().out
    assert "FTF (isolated), worst" in out
    assert "GPS)," not in out


@pytest.mark.parametrize("hours", ["", "soon", "-1", "1,,2", "inf", "nan"])
def test_hours_that_are_none(runs, hours):
    with pytest.raises(UsageError, match="--completed-at"):
        report([runs[0]], completed_at=hours)
