"""docs/writing-a-policy.md works as written: a stranger's package, its commands and its conformance test."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pliant.schemas.io import read_events, read_jobs, read_schedule, write_cluster, write_jobs
from pliant.tools.schedule.registry import policy_class
from pliant.tools.schedule.testing.conformance import check_all
from tests.builders import cluster, job
from tests.cli.calling import call as cli

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLUGINS = DOCS / "writing-a-policy.md", DOCS / "plugins.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    install({Path(path).name: text for path, text in new("important").items()}, tmp_path)
    return tmp_path


def new(name: str) -> dict[str, str]:
    """Files that ``pliant new policy`` writes into the working directory, by path."""
    made = cli("new", "policy", name)
    assert made.exit_code == 0, made.stderr
    return {path: Path(path).read_text() for path in made.stdout.splitlines()}


def install(files: dict[str, str], folder: Path) -> None:
    """Install files as pip would: modules and entry points, without a network."""
    for name, text in files.items():
        (folder / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = folder / f"{project['name'].replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
        for group, rows in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )


def test_a_package_adds_an_importer_and_a_backend(here: Path) -> None:
    install(dict(FILE.findall(PLUGINS.read_text())), here)
    (here / "lab.csv").write_text("name,submitted_s,gpus,gpu_seconds\nb,5,1,90\na,0,1,60\n")
    checked = call("python -m pytest -q -p no:cacheprovider test_lab.py", here)
    assert checked.returncode == 0, checked.stdout
    assert call("pliant trace import lab lab.csv -o jobs.jsonl", here).returncode == 0
    assert [job.id for job in read_jobs("jobs.jsonl")] == ["a", "b"]
    unknown = call("pliant trace import lap lab.csv -o jobs.jsonl", here)
    assert (unknown.returncode, 'did you mean "lab"' in unknown.stderr) == (2, True), unknown.stderr
    write_jobs([job("c", gpu_seconds=9, command=("true",)).model_copy(update={"elastic": "none"})], "c.jsonl")
    write_cluster(cluster(1, slots="cpu", gpu_type="cpu"), "cluster.json")
    files = "c.jsonl --cluster cluster.json"
    assert call(f"pliant schedule {files} --policy fifo -o s.json", here).returncode == 0
    ran = call("pliant run s.json --state state --backend nice --until-done", here)
    assert ran.returncode == 0, ran.stderr


TWO = """
from pliant.tools.schedule.policy import Policy
class One(Policy):
    name = "one"
class Two(Policy):
    name = "two"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands() -> list[str]:
    [shell] = [text for language, text in BLOCK.findall(PAGE.read_text()) if language == "sh"]
    return shell.splitlines()


def call(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = line.split()
    start = {"pliant": [sys.executable, "-m", "pliant.cli"], "python": [sys.executable]}[program]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [*start, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["important", "my-2nd-policy"])
def test_pliant_new_policy_makes_a_package(name: str, here: Path) -> None:
    files = new(name)
    assert sum(len(text.splitlines()) for text in files.values()) < 60
    [source] = [path for path in files if "/pliant_" in path]
    check_all(policy_class(source))
    assert cli("policies", source).stdout.startswith(f"{name} (")
    again = cli("new", "policy", name)
    assert (again.exit_code, "is there" in again.stderr) == (2, True)


def test_a_file_is_a_policy_in_all_commands_from_any_folder(here: Path, monkeypatch) -> None:
    cli("new", "policy", "important", "mine")
    ours = [job(name, gpu_seconds=9, priority=at, command=("a.py",)) for name, at in (("a", 0.0), ("b", 2.0))]
    write_jobs([each.model_copy(update={"elastic": "none"}) for each in ours], "jobs.jsonl")
    write_cluster(cluster(1, slots="cpu", gpu_type="cpu"), "cluster.json")
    Path("a.py").touch()
    files = ("jobs.jsonl", "--cluster", "cluster.json")
    named = ("--policy", "mine/pliant_important.py", "--param", "floor=-1")
    done = cli("schedule", *files, *named, "-o", "s.json")
    assert (done.exit_code, "priorit" in done.stderr) == (0, False), done.stderr
    result = read_schedule("s.json")
    where = f"{here}/mine/pliant_important.py:important"
    assert (result.policy.name, result.policy.parameters) == (where, {"floor": -1.0})
    assert [given.job for given in result.allocations] == ["b"]

    both = "fifo,mine/pliant_important.py:Important"
    more = ("--param", "important.floor=0", "-o", "out", "--workers", "2")
    done = cli("replay", *files, "--policy", both, *more)
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in Path("out").glob("*.parquet")} == {"fifo.parquet", "important.parquet"}

    ran = call("pliant run s.json --state state --until-done", here)
    assert ran.returncode == 0, ran.stderr
    assert [event.job for event in read_events("state/events.jsonl") if event.event == "start"] == ["b", "a"]
    for path in ("out/important.parquet", "state/events.jsonl"):
        assert (read_events(path)[0].detail or {})["policy"] == "important"
    assert read_schedule("state/schedule.json").policy.name == where
    (here / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert cli("schedule", "--state", "../state", "--policy", where).exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "p.py: no such file"),
        (
            "x = 1",
            "p.py holds no policy: expected a subclass of pliant.tools.schedule.policy.Policy with a name",
        ),
        ("import math\n1 / 0", "p.py cannot be loaded: p.py:2: ZeroDivisionError: division by zero"),
        ("def f(:", "p.py cannot be loaded: p.py:1: SyntaxError: invalid syntax"),
        (TWO, "p.py holds several policies (one, two): name one, as in p.py:one"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(text: str | None, message: str, here: Path) -> None:
    if text is not None:
        Path("p.py").write_text(text)
    done = cli("policies", "p.py")
    assert (done.exit_code, done.stderr) == (2, f"pliant: {message}\n")


def test_the_page_works_as_typed(package: Path):
    write_jobs(
        [job("a", gpus=2), job("b", gpus=2, priority=2.0), job("c", priority=1.0)], package / "jobs.jsonl"
    )
    write_cluster(cluster(3), package / "cluster.json")
    described, scheduled, tested = (call(line, package) for line in commands())
    assert described.returncode == 0, described.stderr
    assert "Highest priority first" in described.stdout
    assert "floor=0.0  a number" in described.stdout
    assert "priorities of jobs: free GPUs go to waiting jobs of higher priority first" in described.stdout
    assert scheduled.returncode == 0, scheduled.stderr
    assert "priorit" not in scheduled.stderr
    result = json.loads(scheduled.stdout)
    assert {given["job"]: given["gpus"] for given in result["allocations"]} == {"b": 2, "c": 1}
    assert result["policy"] == {"name": "important", "parameters": {"floor": 1.0}}
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
