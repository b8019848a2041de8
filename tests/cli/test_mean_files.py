"""Files that were damaged, cut short or written by hand: each command says in one line what is wrong."""

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.schemas.io import write_cluster, write_convergence, write_jobs, write_profile
from pliant.schemas.profile import ConvergenceRow, Profile, ProfileRow
from tests.builders import cluster, job
from tests.cli.calling import call, sweep
from tests.effort import examples

TRACE = ("jobs.jsonl", "--cluster", "cluster.json", "--policy", "fifo")
SWEEP = {
    "policies": ["fifo"],
    "interval": 3,
    "noise_scale": {"linear": 5},
    "traces": [{"name": "t", "jobs": "jobs.jsonl"}],
    "clusters": [{"name": "c", "path": "cluster.json"}],
    "parameters": {"fifo": {"backfill": ["none"]}},
}
SWEEP_TOML = sweep("fifo", more="interval = 3")
SYNTH = {
    "kind": "bursty",
    "hours": 1,
    "rate_per_hour": 3,
    "low_rate_per_hour": 2,
    "phase_minutes": 3,
    "seed": 2,
    "gpus": {"1": 1},
    "elastic": "size",
    "gpu_time": {"median_s": 30, "sigma": 1},
    "models": [
        {"name": "m", "batch": 8, "lr": 0.1, "gpus_max": 4, "gpu_seconds": 50},
        {"name": "n", "epochs": [1, 3], "dataset_size": 100, "classes": ["S"]},
    ],
}
FAILURES = b'{"time": 5, "node": "n0", "event": "down"}\n{"time": 7, "node": "n0", "event": "up"}\n'
EXPECTED = {"figures": [{"policy": "fifo", "metric": "mean_jct_s", "value": 5, "tolerance": 1}]}
READERS = {
    "jobs.jsonl": ("schedule", *TRACE),
    "cluster.json": ("replay", *TRACE),
    "profile.parquet": ("schedule", *TRACE, "--profile", "profile.parquet"),
    "convergence.parquet": ("replay", *TRACE, "--convergence", "convergence.parquet"),
    "schedule.json": ("run", "schedule.json", "--dry-run"),
    "events.jsonl": ("report", "events.jsonl"),
    "metrics.json": ("validate", "metrics.json"),
    "failures.jsonl": ("replay", *TRACE, "--failures", "failures.jsonl"),
    "expected.json": ("report", "run.jsonl", "--expect", "expected.json"),
    "sweep.json": ("replay", "--recipe", "sweep.json", "-o", "out"),
    "sweep.toml": ("replay", "--recipe", "sweep.toml", "-o", "out"),
    "synth.json": ("trace", "synth", "synth.json"),
}
"""A command that reads each kind of file."""
MEAN = (
    None, True, -1, 0, 2**63, 10**30, 10**400, 1e300, 5e-324, 0.5, float("nan"), float("inf"), "", "x", "-1",
    "9" * 5000, [], {}, [1], {"x": 1}, [[["x"]]], "\ud800", "a\0b", "1979-05-27",
)  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good file of each kind."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_jobs([job("a", gpus=2, gpu_seconds=20), job("b", at=1, gpus=2, gpu_seconds=9)], "jobs.jsonl")
        write_cluster(cluster(2), "cluster.json")
        rates = {"step_seconds": 0.5, "samples_per_second": 16.0}
        rows = tuple(ProfileRow("train", "linear", "gpu", 1, n, str(n), 8 // n, **rates) for n in (1, 2))
        write_profile(Profile(rows), "profile.parquet")
        epochs = (ConvergenceRow("linear", 64, n, 10.0 * (n + 1), 5.0 * (n + 1), 0.5) for n in range(3))
        write_convergence(epochs, "convergence.parquet")
        assert call("schedule", *TRACE, "-o", "schedule.json").exit_code == 0
        assert call("replay", *TRACE, "-o", "events.jsonl").exit_code == 0
        assert call("report", "events.jsonl", "-f", "json", "-o", "metrics.json").exit_code == 0
        Path("run.jsonl").write_bytes(Path("events.jsonl").read_bytes())
        Path("failures.jsonl").write_bytes(FAILURES)
        for name, value in (("sweep", SWEEP), ("synth", SYNTH), ("expected", EXPECTED)):
            Path(f"{name}.json").write_text(json.dumps(value))
        Path("sweep.toml").write_text(SWEEP_TOML)
    return folder


@pytest.fixture
def here(good: Path, here: Path) -> Path:
    shutil.copytree(good, here, dirs_exist_ok=True)
    return here


def read(name: str, data: bytes) -> None:
    """Let a command read the file with other content: it does, or says what is wrong with it."""
    Path(name).write_bytes(data)
    done = call(*READERS[name])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 3, 4, 5), done.stderr
    lines = done.stderr.splitlines()
    if done.exit_code in (3, 4):
        assert lines
        assert all(line.startswith("pliant: ") for line in lines)
    if done.exit_code == 3 and not re.search(r"no such file|is a directory|cannot be read", done.stderr):
        assert name in done.stderr
        assert all(len(line) < 500 for line in lines)


def damaged(data: bytes) -> Iterator[bytes]:
    yield b""
    yield b" \n\n"
    yield b"\xef\xbb\xbf" + data
    yield data.replace(b"\n", b"\r\n")
    yield data.replace(b"a", b"\xe9", 3)
    yield data[: len(data) // 2]
    yield gzip.compress(data)
    yield gzip.compress(data)[:20]
    yield b"\0" * 100
    yield data.decode("latin-1").encode("utf-16")
    yield data + data
    for nested in (b"[", b'{"a":', b"a = [", b"a = {b = "):
        yield nested * 30_000
    number = re.search(rb"(?<=[:=] )\d+|(?<=[:=])\d+", data)
    if number:
        for word in (b"9" * 5000, b"NaN", b"1e400", b"-7", b"1979-05-27", b"07:32:00", b"0x" + b"f" * 6000):
            yield data[: number.start()] + word + data[number.end() :]


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_a_line(here: Path, good: Path, name: str) -> None:
    for data in damaged((good / name).read_bytes()):
        read(name, data)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from places(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = put(changed[path[0]], path[1:], new)
    return changed


@pytest.mark.parametrize("name", [name for name in READERS if name.endswith((".json", ".jsonl"))])
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=st.integers(0, 99), place=st.integers(0, 9999), value=st.sampled_from(MEAN))
def test_any_value_in_any_place_is_read_or_refused(here: Path, good: Path, name, line, place, value) -> None:
    text = (good / name).read_text()
    documents = [json.loads(text)] if name.endswith(".json") else [*map(json.loads, text.splitlines())]
    number = line % len(documents)
    paths = [*places(documents[number])]
    documents[number] = put(documents[number], paths[place % len(paths)], value)
    read(name, "".join(json.dumps(document) + "\n" for document in documents).encode())


def test_a_recipe_of_windows_is_read(here: Path) -> None:
    Path("sweep.toml").write_bytes(b"\xef\xbb\xbf" + SWEEP_TOML.replace("\n", "\r\n").encode())
    assert call("replay", "--recipe", "sweep.toml", "-o", "out").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("profile", "jobs.jsonl", "--gpus", "9" * 5000), 2),
        (("profile", "jobs.jsonl", "--gpus", "²"), 2),
        (("trace", "synth", "poisson", "--models", f"m:{'9' * 5000}"), 2),
        (("trace", "synth", "poisson", "--jobs", "9" * 30), 3),
        (("replay", *TRACE, "--param", f"backfill={'9' * 5000}"), 2),
        (("replay", *TRACE, "--jobs-limit", "9" * 5000), 2),
    ],
)
def test_an_option_with_too_many_digits_is_refused(here: Path, arguments: tuple[str, ...], code: int) -> None:
    done = call(*arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.exit_code == code
    assert "bug" not in done.stderr


def test_long_words_show_both_ends_and_epochs_have_a_limit(here: Path) -> None:
    *events, last = Path("events.jsonl").read_text().splitlines(keepends=True)
    unknown = json.loads(last) | {"job": f"first{'9' * 5000}last"}
    Path("events.jsonl").write_text("".join([*events, json.dumps(unknown) + "\n"]))
    (line,) = call("report", "events.jsonl").stderr.splitlines()
    assert re.search('"first9+…9+last"', line)
    assert len(line) < 500
    # More epochs than a job can have are refused.
    recipe = json.loads(Path("synth.json").read_text())
    (model,) = [model for model in recipe["models"] if "epochs" in model]
    model["epochs"] = [1, 2**63]
    read("synth.json", json.dumps(recipe).encode())
    assert "/epochs/1: 9.22337e+18 is too large" in call(*READERS["synth.json"]).stderr


def test_in_a_folder_that_was_removed_absolute_paths_work(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").touch()
    one = job("a", command=("train.py",), workdir=str(tmp_path), gpu_seconds=9)
    write_jobs([one], tmp_path / "jobs.jsonl")
    write_cluster(cluster(2), tmp_path / "cluster.json")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    known = [str(tmp_path / "jobs.jsonl"), "--cluster", str(tmp_path / "cluster.json"), "--policy", "fifo"]
    for words in (["schedule", *known], ["replay", *known, "-o", str(tmp_path / "out")]):
        assert call(*words).exit_code == 0
    refused = call("status", "--state", "live")
    assert (refused.exit_code, refused.stderr[:38]) == (2, "pliant: the current folder was removed")
    for words in (["replay", *known, "-o", "out"], ["status"]):
        assert call(*words).exit_code == 2
