import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pliant.cli import init
from pliant.schemas.io import read_cluster, read_jobs
from tests.builders import cluster
from tests.cli.calling import call

INIT = ("init", "--backend", "local", "--slots", "cpu")
FILES = ["cluster.json", "pliant.toml", "train.py", "jobs.jsonl"]


def run_next(message: str, folder: Path) -> str:
    (line,) = [line for line in message.splitlines() if line.startswith("pliant: next: ")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = {"cwd": folder, "env": {**os.environ, "PATH": path}, "stdin": subprocess.DEVNULL}
    command = line.removeprefix("pliant: next: ")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} >&2 && pliant status -f json"],
        **shell,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    return str(job["state"])


@pytest.mark.torch
def test_the_next_command_trains_the_first_job_to_its_end(here: Path) -> None:
    done = call(*INIT)
    assert (done.exit_code, done.stdout.split()) == (0, FILES)
    assert read_jobs("jobs.jsonl")[0].elastic == "size"
    assert run_next(done.stderr, here) == "finished"


def test_without_torch_the_first_job_is_the_smallest(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "find_spec", lambda _name: None)
    done = call(*INIT, "a project")
    (smallest,) = (here / "a project" / "jobs.jsonl").read_text().splitlines()
    assert json.loads(smallest) == {"id": "first", "command": ["train.py"]}
    assert run_next(done.stderr, here) == "finished"
    again = [sys.executable, "-m", "pliant.cli", "run", "--until-done"]
    piped = subprocess.run(again, cwd="a project", input="", capture_output=True, text=True, check=True)
    assert "no schedule is read from the pipe" in piped.stderr


def test_the_cluster_is_discovered_and_files_stay_as_they_are(here: Path) -> None:
    call(*INIT)
    before = {name: (here / name).read_bytes() for name in FILES}
    (here / "train.py").write_text("print('mine')\n")
    (here / "pliant.toml").unlink()
    done = call(*INIT)
    assert done.stdout == "pliant.toml\n"
    assert "train.py is there already and stays as it is" in done.stderr
    after = {name: (here / name).read_bytes() for name in FILES}
    assert after == {**before, "train.py": b"print('mine')\n"}
    # The cluster is what discovery finds.
    call(*INIT)
    call("cluster", "discover", "--slots", "cpu", "-o", "found.json")
    assert read_cluster("cluster.json") == read_cluster("found.json")


def test_a_missing_slurm_is_an_error_and_writes_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    done = call("init", "--backend", "slurm")
    assert done.exit_code == 69
    assert "without Slurm: --backend local" in " ".join(done.stderr.replace("pliant:", "").split())
    assert list(here.iterdir()) == []
    assert call("init", "--slots", "cpu").exit_code == 0


def test_with_slurm_the_cluster_is_its_default_partition(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Path(__file__).parents[1] / "tools/run/backends/slurm/recorded"
    scontrol = here / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nfor last; do :; done\ncat '{recorded}/22.05-'\"$last\"*.txt\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")
    done = call("init")
    assert done.exit_code == 0, done.stderr
    assert read_cluster("cluster.json").backend == "slurm"
    assert "with --backend local on this machine alone" in " ".join(
        done.stderr.replace("pliant:", "").split()
    )


def test_the_first_job_asks_for_no_more_workers_than_a_node_has() -> None:
    for gpus, most in ((1, 1), (2, 2), (64, 4)):
        _, line = init.first_job(cluster(gpus), elastic=True)
        assert json.loads(line)["gpus"]["max"] == most


ROOT = Path(__file__).resolve().parents[2]
WITHOUT_EXTRAS = """
import sys
HIDDEN = {"torch", "matplotlib", "pandas"}
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, *rest)
sys.meta_path[:] = map(Without, sys.meta_path)
from pathlib import Path
from typer.testing import CliRunner
from pliant.cli.main import app

def call(line, code=0):
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, line.split())
    assert done.exit_code == code, (line, done.output)
    return done.output.splitlines()[-1] if done.output else ""

Path("a.py").write_text("print('trained')")
Path("jobs.jsonl").write_text('''\\
{"schema": "pliant.job/1"}
{"id": "a", "submit_time": 0, "model": "m", "command": ["a.py"], "gpus": {"requested": 1}, \
"batch": {"size": 8}, "work": {"gpu_seconds": 9}}
''')
gang = Path("jobs.jsonl").read_text().replace('"requested": 1', '"requested": 2')
Path("gang.jsonl").write_text(gang.replace('"command": [', '"command": ["torchrun", '))
call("examples .")
call("validate examples/jobs.jsonl examples/cluster.json")
files = "--cluster examples/cluster.json --policy shadow-price"
call(f"schedule jobs.jsonl {files} -o schedule.json")
call(f"schedule gang.jsonl {files} -o gang.json")
call("trace synth poisson --jobs 9 -o trace.jsonl")
call("replay trace.jsonl --cluster examples/gpus.json --policy fifo,shadow-price -o out")
call("report out --baseline fifo")
call("run schedule.json --until-done --state state")
call("report state/events.jsonl --jobs")
print(call("profile examples/jobs.jsonl -o p.parquet", 69))
print(call("run gang.json --until-done --state gang", 69))
print(call("report out --figures figures", 69))
for module in ("tools.run.elastic", "schemas.frames"):
    try:
        __import__(f"pliant.{module}")
    except ImportError as error:
        print(error)
assert not HIDDEN & sys.modules.keys()
"""


def test_pliant_alone_shows_its_tools_and_copies_examples_once(here: Path) -> None:
    done = call()
    assert (done.exit_code, done.stderr) == (0, "")
    first = [line.split()[0] for line in done.stdout.splitlines() if line[:2] == "  " and line[2] != " "]
    assert first[:5] == ["profile", "schedule", "run", "replay", "report"]
    assert "pliant demo --replay" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    # "python -m pliant" is the command.
    done = subprocess.run(
        [sys.executable, "-m", "pliant", "nope"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "No such command 'nope'" in done.stderr) == (2, True)
    # Examples are copied once and never over other files.
    assert call("examples", "new").exit_code == 0
    copied = {path.relative_to("new/examples") for path in Path("new/examples").rglob("*") if path.is_file()}
    assert {Path("jobs.jsonl"), Path("demo.sh"), Path("before/stripes.py")} <= copied
    assert call("examples", "new").stderr.startswith("pliant: 0 files in ")
    (here / "new/examples/mlp.py").write_text("mine")
    (here / "new/examples/demo.sh").unlink()
    done = call("examples", "new")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "new/examples/mlp.py is there and differs" in done.stderr
    assert not (here / "new/examples/demo.sh").exists()


def test_the_wheel_takes_every_file_of_the_examples() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    files = [path for path in (ROOT / "examples").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    wanted = {".".join(("pliant", *path.relative_to(ROOT).parent.parts)) for path in files}
    assert wanted <= set(setuptools["packages"])
    others = {".".join(("pliant", *p.relative_to(ROOT).parent.parts)) for p in files if p.suffix != ".py"}
    assert others <= {name for name, what in setuptools["package-data"].items() if what == ["*"]}


def test_the_demo_says_what_it_needs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = call("demo")
    message = "the demo trains with torch, but torch is not installed: pip install 'pliant[run]'"
    assert done.exit_code == 2
    assert done.stderr == f"pliant: {message}; without it: pliant demo --replay\n"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("code", [0, 5])
def test_the_demo_calls_this_pliant_and_passes_on_its_exit_code(code, here: Path, monkeypatch, capfd) -> None:
    python = here / "a python"
    python.write_text(f'#!/bin/sh\necho "$PWD $*" >> "{here}/called"\nexit {code}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    done = call("demo", "--replay", "my demo")
    assert done.exit_code == code
    message = capfd.readouterr().err
    assert message.startswith("\n$ pliant trace synth poisson"), "bold on a terminal alone"
    first, *more = (here / "called").read_text().splitlines()
    assert first.startswith(f"{here}/my demo -m pliant trace synth poisson")
    assert len(more) == (0 if code else 2)


def test_the_base_works_without_its_extras(here: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    advice = "but {0} is not installed: pip install 'pliant[{1}]'".format
    assert done.stdout.splitlines() == [
        f"pliant: measuring trains with torch, {advice('torch', 'run')}",
        f'pliant: job "a" trains with torch, {advice("torch", "run")}',
        f"pliant: figures are drawn with matplotlib, {advice('matplotlib', 'figures')}",
        f"the elastic library trains with torch, {advice('torch', 'run')}",
        f"frames are pandas DataFrames, {advice('pandas', 'notebooks')}",
    ]
