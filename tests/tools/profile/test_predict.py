import json
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.predictions import PredictionFormat, PredictionScope, predictions_text
from pliant.cli.profile import profile
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.profile.predict import PredictionQuery, StepPrediction, base_of, holdout_errors, predict
from tests.builders import cluster, job
from tests.tools.profile.rows_builder import reduce, step, throughput

# On one GPU 8 samples take 100 ms and 16 take 180 ms, so 12 take 140 ms; an all-reduce of the model's 15 M
# weights takes (20 + 40) / 2 = 30 ms on 2 GPUs and (40 + 80) / 2 = 60 ms on 4.
ROWS = (
    step(1, 8, 0.100, parameters=15_000_000),
    step(1, 16, 0.180, parameters=15_000_000),
    step(1, 32, None, parameters=15_000_000),
    reduce(2, 10_000_000, 0.020),
    reduce(2, 20_000_000, 0.040),
    reduce(4, 10_000_000, 0.040),
    reduce(4, 20_000_000, 0.080),
)
ONE_GPU = (step(1, 8, 0.1), step(1, 16, 0.14), step(1, 32, 0.3))
QUESTION = PredictionQuery("a", "net", "gpu", samples=10_000)


def predicted(gpus: int, batch: int, question: PredictionQuery = QUESTION) -> StepPrediction:
    (found,) = predict(throughput(*ROWS), question, {gpus: (gpus,)}, [batch])
    return found


def test_steps_add_up_and_scaling_counts_from_the_largest_batch() -> None:
    found = predicted(2, 24)
    assert found.step_seconds == pytest.approx(0.140 + 0.030)
    assert found.samples_per_second == pytest.approx(24 / 0.170)
    assert found.finish_seconds == pytest.approx(10_000 * 0.170 / 24)
    assert found.source == "modelled"
    assert predicted(3, 24).step_seconds == pytest.approx(0.100 + 0.045)
    assert predicted(2, 24, PredictionQuery("a", "net", "gpu", samples=None)).finish_seconds is None
    # The largest batch of one GPU is the base of scaling.
    base = base_of(throughput(*ROWS), QUESTION)
    assert base is not None
    assert (base.local_batch, base.step_seconds, base.source) == (16, 0.180, "measured")
    assert predicted(1, 16).scaling_factor == 1.0
    assert predicted(4, 64).scaling_factor == pytest.approx((64 / 0.240) / (16 / 0.180))
    limited = PredictionQuery("a", "net", "gpu", samples=10_000, per_gpu_max=8)
    assert predicted(1, 8, limited).scaling_factor == 1.0
    assert predicted(1, 16, limited).accum_steps == 2
    small = PredictionQuery("a", "net", "gpu", samples=10_000, batch_max=8)
    assert predicted(1, 8, small).scaling_factor == 1.0
    assert predicted(2, 8, small).scaling_factor == pytest.approx(0.100 / 0.130)
    found = predicted(1, 32)
    assert (found.local_batch, found.accum_steps) == (16, 2)
    assert found.step_seconds == pytest.approx(0.360)


@pytest.mark.parametrize(
    ("gpus", "batch", "infeasible", "unknown"),
    [
        (4, 3, "3 samples are too few for 4 GPUs", None),
        (8, 64, None, "measured on 1 GPU; 8 need a row or all-reduces"),
    ],
)
def test_what_is_infeasible_or_unknown_says_why_and_has_no_time(gpus, batch, infeasible, unknown):
    found = predicted(gpus, batch)
    assert (found.infeasible, found.unknown) == (infeasible, unknown)
    assert (found.step_seconds, found.finish_seconds, found.source) == (None, None, None)
    (found,) = predict(throughput(step(1, 8, None)), QUESTION, {1: (1,)}, [8])
    assert found.infeasible == "no batch fits a GPU"


def files(folder: Path) -> tuple[str, str, str]:
    jobs, rows, nodes = (str(folder / name) for name in ("jobs.jsonl", "profile.parquet", "cluster.json"))
    batch = {"size": 32, "min": 16, "max": 64}
    write_jobs([job("a", model="net", batch=batch, elastic="size+batch", work={"samples": 10_000})], jobs)
    write_profile(Profile(ROWS), rows)
    write_cluster(cluster(2, 2), nodes)
    return jobs, rows, nodes


def test_the_command_answers_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs, rows, nodes = files(tmp_path)
    profile(jobs, predict=rows, cluster=nodes)
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines() if line.startswith((" measured", " modelled"))]
    assert [tuple(line[1:3]) for line in lines] == [(g, b) for g in "124" for b in ("16", "32", "64")]
    assert "relative to 16 samples a step on one GPU, 180 ms (measured)" in shown


@pytest.mark.parametrize("width", [40, 70])
def test_a_narrow_terminal_gets_blocks_of_whole_numbers(tmp_path: Path, width: int) -> None:
    jobs, _, nodes = files(tmp_path)
    found, wanted = Profile(ROWS), PredictionScope()
    whole = predictions_text(found, jobs, nodes, wanted, PredictionFormat.table)
    text = predictions_text(found, jobs, nodes, wanted, PredictionFormat.table, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert {word for word in whole.split() if "─" not in word} <= set(text.split())


def test_the_command_answers_in_json_for_sizes_and_batches_named(tmp_path, capsys) -> None:
    jobs, rows, nodes = files(tmp_path)
    profile(jobs, predict=rows, cluster=nodes, gpus="2,8", batches="24", format="json")  # type: ignore[arg-type]
    small, large = json.loads(capsys.readouterr().out)
    assert small["step_seconds"] == pytest.approx(0.170)
    assert (small["gpus"], small["infeasible"]) == (2, None)
    assert (large["gpus"], large["step_seconds"], large["infeasible"]) == (8, None, None)
    assert "need a row" in large["unknown"]
    jobs = str(tmp_path / "timed.jsonl")
    write_jobs([job("a", model="net", gpus=1, batch=16, gpu_seconds=900)], jobs)
    profile(jobs, predict=rows, cluster=nodes, gpus="1", format="json")  # type: ignore[arg-type]
    (found,) = json.loads(capsys.readouterr().out)
    assert found["finish_seconds"] == pytest.approx(900)


def test_a_modelled_time_has_the_interval_of_the_model_errors(tmp_path, capsys):
    jobs, rows, nodes = files(tmp_path)
    write_profile(Profile((*ROWS, step(2, 8, 0.150))), rows)
    profile(jobs, predict=rows, cluster=nodes, gpus="2", batches="16,24", format="json")  # type: ignore[arg-type]
    measured, modelled = json.loads(capsys.readouterr().out)
    assert (measured["source"], measured["finish_seconds_low"]) == ("measured", None)
    # Without its row 2 GPUs take 100 + 30 ms for 8 samples each, 13 % less than the 150 ms measured.
    finish_s = modelled["finish_seconds"]
    assert modelled["finish_seconds_low"] == finish_s
    assert modelled["finish_seconds_high"] == pytest.approx(finish_s * 150 / 130)
    profile(jobs, predict=rows, cluster=nodes, gpus="2", batches="24")
    shown = capsys.readouterr().out
    assert f"({finish_s:.2f}–{finish_s * 150 / 130:.2f})" in shown
    assert "in brackets: as far off as the model is on measured rows that it has not seen" in shown


def test_a_rigid_job_is_shown_what_was_measured_instead(tmp_path, capsys, monkeypatch):
    _, rows, nodes = files(tmp_path)
    write_profile(Profile((step(1, 8, 0.1),)), rows)
    jobs = str(tmp_path / "rigid.jsonl")
    write_jobs([job("a", model="net", gpus=2, batch=16, work={"samples": 10_000})], jobs)
    monkeypatch.setattr("pliant.cli.profile.width_for", lambda _stdout: 80)
    profile(jobs, predict=rows, cluster=nodes)
    shown = capsys.readouterr().out
    assert "unknown: measured on 1 GPU; 2 need a row or all-reduces" in shown
    assert "infeasible" not in shown
    assert max(map(len, shown.splitlines())) <= 80, shown
    assert " modelled " in shown


def test_a_model_that_is_not_profiled_is_named(tmp_path: Path) -> None:
    _, rows, _ = files(tmp_path)
    jobs = str(tmp_path / "others.jsonl")
    write_jobs([job("a", model="other", work={"samples": 10})], jobs)
    with pytest.raises(BadInputError, match="no job has the model net"):
        profile(jobs, predict=rows, model=["net"])


@pytest.mark.parametrize(
    "option", [{"refresh": True}, {"costs": True}, {"iterations": 5}, {"warmup": 0}, {"points": "x"}]
)
def test_a_prediction_measures_nothing(tmp_path: Path, option: dict[str, Any]) -> None:
    jobs, rows, _ = files(tmp_path)
    with pytest.raises(UsageError, match="--predict measures nothing"):
        profile(jobs, predict=rows, **option)


def test_row_held_out_is_predicted_from_others_if_there_are_any() -> None:
    rows = (*ONE_GPU, step(2, 16, 0.20), step(2, 32, 0.35))
    first, second = holdout_errors(Profile(rows))
    assert first.predicted_s == pytest.approx(0.14 + 0.05)
    assert first.error == pytest.approx(0.19 / 0.20 - 1)
    assert second.predicted_s == pytest.approx(0.3 + 0.06)
    assert holdout_errors(Profile((*ONE_GPU, step(2, 16, 0.2)))) == []
