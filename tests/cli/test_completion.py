from pathlib import Path

import pytest
from typer.testing import CliRunner

from pliant.cli.main import app
from pliant.schemas.io import write_cluster, write_jobs
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.schedule.registry import policy_names
from tests.builders import cluster, job
from tests.cli.calling import call


def completed(line: str) -> list[str]:
    """What bash is offered for the last word of the line."""
    at = str(len(line.split(" ")) - 1)
    asked = {"_PLIANT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": at}
    return CliRunner(env=asked).invoke(app, [], prog_name="pliant").stdout.split()


def test_policies_and_their_parameters_complete(here: Path) -> None:
    assert completed("pliant schedule --policy fi") == ["fifo", "fifo-demands"]
    assert completed("pliant replay --policy srtf,fifo") == ["srtf,fifo", "srtf,fifo-demands"]
    assert sorted(completed("pliant policies ")) == sorted(policy_names())
    assert completed("pliant schedule --policy fifo --param b") == ["backfill="]
    assert completed("pliant replay --policy fifo,shadow-price --param fi") == ["fifo.backfill="]
    assert completed("pliant schedule --policy nope --param b") == []
    assert completed("pliant replay --interf") == ["--interference"]
    assert completed("pliant replay --progress g") == ["goodput"]
    # A policy in a file completes its parameters.
    call("new", "policy", "mine", ".")
    assert completed("pliant replay --policy ./pliant_mine.py --param ") == ["floor="]


@pytest.mark.parametrize("order", ["drain", "resume"])
def test_nodes_of_the_state_directory_complete(order: str, here: Path) -> None:
    Path("live").mkdir()
    write_cluster(cluster(2, 2), StateDir(Path("live")).cluster)
    names = [node.name for node in cluster(2, 2).expanded()]
    assert completed(f"pliant {order} --state live ") == names
    assert completed(f"pliant {order} --state live {names[0]} ") == names[1:]
    assert completed(f"pliant {order} --state gone ") == []


def test_job_ids_complete_where_an_order_makes_sense(here: Path) -> None:
    write_cluster(cluster(2), "cluster.json")
    write_jobs([job("done", gpu_seconds=9, command=("a.py",))], "jobs.jsonl")
    Path("a.py").touch()
    Path("live").mkdir(0o700)
    files = ("jobs.jsonl", "--cluster", "cluster.json")
    call("replay", *files, "--policy", "fifo", "-o", str(StateDir(Path("live")).events))
    write_jobs([job(each, command=("a.py",)) for each in ("new", "newer")], "jobs.jsonl")
    assert call("submit", "jobs.jsonl", "--state", "live").stdout.split() == ["new", "newer"]
    assert completed("pliant status --state live ") == ["done", "new", "newer"]
    assert completed("pliant hold --state live ") == ["new", "newer"]
    assert completed("pliant hold --state live new ne") == ["newer"]
