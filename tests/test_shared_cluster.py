"""The pages on shared clusters work as written: root follows the one, another account the other."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.tools.run.statedir.directory import holder_of
from tests.cli.calling import call
from tests.pasting import blocks
from tests.tools.run.gateway import people
from tests.tools.run.site import environment, until

DOCS = Path(__file__).resolve().parents[1] / "docs"
PLACE = "/srv/pliant"


def page(name: str, folder: Path) -> str:
    """A page with a folder of the test in the place of that which it names."""
    return (DOCS / name).read_text().replace(PLACE, shlex.quote(str(folder)))


@pytest.mark.services
def test_an_operator_sets_up_a_shared_cluster_by_the_page(tmp_path: Path):
    people.only_root_becomes_others()
    if shutil.which("hostname") is None:
        pytest.skip("needs the command hostname")
    with people.all_may_enter() as folder:
        commands = "".join(block.commands for block in blocks(page("shared-cluster.md", folder)))
        pliant = shlex.join([sys.executable, "-m", "pliant.cli"])
        lock = shlex.quote(str(folder / "state" / "lock"))
        script = f'lock={lock}\npliant() {{ {pliant} "$@"; }}\ntrap \'kill $(cat "$lock")\' ERR\n'
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script + commands],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        until(lambda: holder_of(folder / "state" / "lock") is None)
        assert f"runs {folder}/state" in done.stderr
        assert (folder / "state").stat().st_mode & 0o777 == 0o711


@pytest.mark.services
def test_a_user_does_by_the_page_what_it_says(monkeypatch: pytest.MonkeyPatch):
    people.only_root_becomes_others()
    people.import_commands()
    with people.all_may_enter() as folder, people.shared_run(folder) as run:
        result = blocks(page("shared-cluster-use.md", folder))
        monkeypatch.setenv("PLIANT_STATE", str(people.Shared(folder).state))
        home = run.home(people.ADA)
        for block in result:
            lines = [line for line in block.commands.splitlines() if not line.startswith("export ")]

            def body(lines: list[str] = lines) -> list[list[object]]:
                os.chdir(home)
                done = [call(*shlex.split(line)[1:]) for line in lines]
                return [[each.exit_code, each.stdout, each.stderr] for each in done]

            message = people.as_account(people.ADA, body)
            assert [code for code, *_ in message] == [0] * len(lines), message
            assert block.shown is None or block.shown == "".join(out for _, out, _ in message)
