from __future__ import annotations

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import write_events, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import labels
from pliant.tools.report.report import make_report, read_report
from tests.builders import cluster, job
from tests.tools.profile.rows_builder import step
from tests.tools.report.runs import begin, first_come, shared, story, submit


def run(source="events", **info):
    return fold([begin(**info), submit(job("a"), 4.0)], source)


def notes(*events, **info):
    return make_report([story(*events, **info)]).runs[0].caveats


def test_runs_are_called_by_their_policy_and_those_of_one_by_what_differs():
    assert labels([run(policy="fifo"), run(policy="ares")]) == ["fifo", "ares"]
    first = run(policy="ares", parameters={"alpha": 0.5, "pool": 2})
    second = run(policy="ares", parameters={"alpha": 0.75, "pool": 2}, seed=1)
    assert labels([first, second, run(policy="fifo")]) == [
        *("ares alpha=0.5 seed=0", "ares alpha=0.75 seed=1", "fifo")
    ]
    assert labels([run(), run(simulated=False)]) == ["fifo simulated", "fifo measured"]


def test_runs_that_differ_in_nothing_are_called_by_their_file():
    assert labels([run("x/one.parquet"), run("x/two.parquet")]) == ["fifo [one]", "fifo [two]"]
    assert labels([run("x/a.parquet"), run("y/a.parquet")]) == ["fifo [a] #1", "fifo [a] #2"]


def test_provenance_names_what_makes_a_run():
    one = run(policy="srtf", oracle=True, seed=7, parameters={"alpha": 0.8})
    assert make_report([one]).runs[0].provenance == (
        "simulated · oracle (knows what no scheduler can know) · 4 GPUs · trace abababababab · seed 7"
        " · alpha=0.8 · pliant 0.1.0"
    )


def test_predicted_demand_is_named_wherever_the_run_is():
    told = make_report([run(demand="predicted", nodes=cluster(4, slots="cpu"))]).runs[0]
    assert told.provenance.startswith("simulated · predicted demand · 4 CPU slots")
    assert told.metrics.demand == "predicted"
    assert "the work of jobs was predicted where they state none" in told.caveats


def test_how_often_predicted_intervals_held_is_said():
    bands = [(0.1, 0.3), (0.3, 0.5), (0.9, 1.0), (0.0, 1.0)]
    said = (
        {"samples_done": 2.0 * at, "mean": 0.5, "low": low, "high": high}
        for at, (low, high) in enumerate(bands, 1)
    )
    events = [Event(at, "progress", "a", detail={"progress": each}) for at, each in enumerate(said, 1)]
    finished = Event(10, "finish", "a", 0, samples_done=10.0)
    assert notes(submit(job("a"), 10.0), Event(0, "start", "a", 1), *events, finished) == [
        "75% of 4 predicted 90 % intervals of progress held what followed"
    ]


def test_what_the_figures_leave_out_is_said():
    told = notes(
        submit(job("a"), 4.0),
        submit(job("b"), 4.0),
        submit(job("c")),
        Event(1, "reject", "b", 0),
        Event(1, "start", "c", 1),
        Event(5, "finish", "c", 0),
    )
    assert told == [
        "1 unfinished, 1 rejected of 3 jobs: in no JCT and no FTF",
        "1 finished job has no FTF: work or speed is unknown",
    ]


def test_a_log_that_contradicts_itself_is_told_on():
    told = notes(submit(job("a")), Event(0, "start", "a", 5), Event(1, "finish", "a", 0, samples_done=1.0))
    assert told == [
        "at times jobs hold more GPUs than there are: the log contradicts itself",
        "GPUs held not known: 1.25 is impossible, expected at least 0 and at most 1",
    ]


def test_a_change_of_policy_is_told():
    assert notes(Event(1, "decision", detail={"policy": "ares"})) == [
        "the policy changed during the run: fifo, ares"
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


def test_folders_stand_for_their_runs(tmp_path):
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir(), state.mkdir()
    write_events(first_come(), out / "fifo.parquet")
    write_events(shared(), out / "ares.parquet")
    write_events(shared(simulated=False), state / "events.jsonl")
    found = read_report([out, state])
    assert [each.label for each in found.runs] == ["ares simulated", "fifo", "ares measured"]


def test_other_files_beside_the_runs_are_left_out_and_named(tmp_path):
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


def test_stdin_is_one_run():
    with pytest.raises(UsageError, match="cannot be named twice"):
        read_report(["-", "-"])


def test_runs_of_several_traces_are_told_apart_by_the_names_of_those():
    one, two = {"trace": "philly", "trace_hash": "ab" * 32}, {"trace": "helios", "trace_hash": "cd" * 32}
    assert labels([run(**one), run(**two)]) == ["fifo philly", "fifo helios"]
    assert labels([run(**one), run(policy="ares", **one)]) == ["fifo", "ares"]
    seeds = [run(**one), run(**one, seed=1), run(**two)]
    assert labels(seeds) == ["fifo philly seed=0", "fifo philly seed=1", "fifo helios"]


def test_traces_without_a_name_or_of_the_same_are_called_by_their_hashes():
    one, two = {"trace_hash": "ab" * 32}, {"trace_hash": "cd" * 32}
    assert labels([run(**one), run(**two)]) == ["fifo ababab", "fifo cdcdcd"]
    assert labels([run(trace="a", **one), run(trace="a", **two)]) == ["fifo a@ababab", "fifo a@cdcdcd"]
