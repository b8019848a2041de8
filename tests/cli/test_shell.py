"""``pliant shell``: a job like others, with a terminal."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.parts.shell_sessions import PROMPT, ShellClient, figures, live_run
from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.schemas.cluster import Cluster
from pliant.tools.run.service.run import release_nodes
from pliant.tools.run.statedir.state import read_log
from tests.cli.calling import call
from tests.tools.run.site import until


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    with live_run(tmp_path) as made:
        yield made


def test_a_shell_is_a_terminal_on_the_node_and_ends_as_jobs_do(state: Path) -> None:
    with ShellClient(state.parent, "--for", "5m") as client:
        client.expect(PROMPT)
        folder = state / "jobs/shell"
        assert not (folder / "shell.socket").exists()
        client.resize(33, 121)
        client.type("stty size\n")
        client.expect("33 121")
        client.type("sleep 1000.25\n")
        until(lambda: sleeps("1000.25"))
        client.type("\x03")
        client.expect(PROMPT)
        client.type("sleep 2000.25\n")
        until(lambda: sleeps("2000.25"))
        client.type("\x1a")
        client.expect("Stopped")
        client.type("kill -9 %1; (setsid sleep 3000.25 &); echo in-$PLIANT_JOB_DIR-\n")
        client.expect(f"in-{folder.resolve()}-")
        client.type("wait; exit 7\n")
        assert client.wait() == 7
    until(lambda: read_log(state).jobs["shell"].phase == "finished")
    assert not sleeps("3000.25")

    with ShellClient(state.parent, "--gpus", "2", "--for", "8s") as client:
        client.expect(PROMPT)
        with ShellClient(state.parent, "--gpus", "2") as other:
            other.expect("job shell-3 waiting: ")
            other.type("\x03")
            assert other.wait() == 130
        client.expect("job shell-2 timed out: it has run for 8 s, its limit")
        assert client.wait() == 255
    until(lambda: not read_log(state).active)
    assert read_log(state).jobs["shell-3"].phase == "cancelled"


@pytest.mark.parametrize("backend", ["slurm", "slurm-jobs"])
def test_under_slurm_srun_leads_to_the_node(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    nodes = Cluster.model_validate(
        {"nodes": ({"name": "n1", "gpus": 2},), "slots": "cpu", "backend": backend}
    )
    with live_run(tmp_path, nodes) as state, ShellClient(tmp_path) as client:
        client.expect(PROMPT)
        assert not (state / "jobs/shell/shell.socket").exists()
        client.resize(44, 99)
        client.type("sh -c 'trap \"echo got $((1 + 1)); exit\" INT; while sleep 0.2; do stty size; done'\n")
        client.expect("44 99")
        client.type("\x03")
        client.expect("got 2")  # only then: an interrupt drops what is typed before
        client.type("exit 9\n")
        assert client.wait() == 9
        until(lambda: read_log(state).jobs["shell"].phase == "finished")
    release_nodes(state)
    slurm.end_jobs()


def sleeps(seconds: str) -> bool:
    return any(each.info["cmdline"] == ["sleep", seconds] for each in psutil.process_iter(["cmdline"]))


def test_nothing_is_left_of_a_shell_whose_client_was_killed() -> None:
    assert [figure.value for figure in figures(2)] == [0.0]


def test_without_a_terminal_it_says_what_to_use(tmp_path: Path) -> None:
    told = call("shell", "--state", tmp_path)
    assert told.exit_code == 2
    assert told.stderr == "pliant: a shell needs a terminal: give commands that need none to pliant submit\n"
