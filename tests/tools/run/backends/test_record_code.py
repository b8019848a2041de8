import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.backends import record_code
from tests.tools.run.backends.repositories import committed, git, write

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
COMMAND = ("python", "train.py", "--config=conf.yaml", "--own", "own.toml", "--out", "metrics.json", "-v")
FILES = {"train.py": "1", "conf.yaml": "lr: 1", "lib/model.py": "2", ".gitignore": "*.pt\nown.toml\n"}


def looked_at(folder: Path, *command: str) -> dict[str, Any]:
    return record_code.code_of(str(folder), command or COMMAND, str(folder / "state"))


def edit(folder: Path) -> None:
    write(folder, {"train.py": "3"})


def stage(folder: Path) -> None:
    edit(folder)
    git(folder, "add", "train.py")


def rename(folder: Path) -> None:
    git(folder, "mv", "lib/model.py", "lib/net.py")


def remove(folder: Path) -> None:
    (folder / "lib/model.py").unlink()


def link(folder: Path) -> None:
    remove(folder)
    (folder / "lib/model.py").symlink_to("../train.py")


def save_results(folder: Path) -> None:
    results = {"run/log.txt": "", "last.pt": "w", "state/jobs/a/x.py": "", "env/site-packages/a.py": ""}
    write(folder, {**results, "__pycache__/x.py": ""})


def write_new_code(folder: Path) -> None:
    write(folder, {"new.py": "", "a b\n.sh": "", "new.txt": ""})


def write_what_the_command_names(folder: Path) -> None:
    write(folder, {"own.toml": "", "metrics.json": "", "other.json": ""})


@pytest.mark.parametrize(
    ("change", "files"),
    [
        (str, []),
        (save_results, []),
        (edit, ["train.py"]),
        (stage, ["train.py"]),
        (rename, ["lib/model.py", "lib/net.py"]),
        (remove, ["lib/model.py"]),
        (link, ["lib/model.py"]),
        (write_new_code, ["a b\n.sh", "new.py"]),
        (write_what_the_command_names, ["metrics.json", "own.toml"]),
    ],
)
def test_uncommitted_code_and_files_of_the_command_count(
    tmp_path: Path, change: Callable[[Path], object], files: list[str]
) -> None:
    commit = committed(tmp_path, FILES)
    change(tmp_path)
    found = looked_at(tmp_path)
    assert (found["commit"], found["reason"], found["folder"]) == (commit, "", str(tmp_path))
    assert [*found["files"]] == files
    assert bool(found["changes"]) == bool(files)
    assert found == looked_at(tmp_path)
    write(tmp_path, {"train.py": "4"})
    assert looked_at(tmp_path)["changes"] != found["changes"]


def test_submodules_and_repositories_in_a_repository_count(tmp_path: Path) -> None:
    library, root = tmp_path / "library", tmp_path / "root"
    first = committed(library, {"a.py": "1"})
    committed(root, FILES)
    git(root, "submodule", "add", "-q", str(library), "third party")
    git(root, "commit", "-qm", "with a library")
    committed(root / "inner", {"b.py": "1"})
    clean = looked_at(root)
    assert [*clean["files"]] == ["inner"]
    write(root, {"third party/a.py": "2", "third party/c.py": "", "inner/b.py": "2"})
    found = [*looked_at(root)["files"]]
    assert found == ["inner", "inner/b.py", "third party", "third party/a.py", "third party/c.py"]
    assert looked_at(root)["files"]["third party"] == first[:12]
    names = [*record_code.source_files(str(root))]
    assert {"third party/a.py", "third party/c.py", "inner/b.py", "train.py"} <= {*names}


def test_code_without_git_is_hashed_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "work"
    environment = {"env/pyvenv.cfg": "", "env/lib/a.py": "", ".cache/b.py": ""}
    write(folder, {**FILES, **environment, "state/c.py": "", "data.bin": "", "../tool.py": ""})
    found = looked_at(folder, *COMMAND, "../tool.py")
    assert (found["commit"], found["reason"]) == (None, "it is in no git repository")
    assert [*found["files"]] == [str(tmp_path / "tool.py"), "conf.yaml", "lib/model.py", "train.py"]
    # Before the first commit there is none, and everything counts.
    git(folder, "init", "-q")
    found = looked_at(folder)
    assert (found["commit"], found["reason"]) == (None, "")
    assert "train.py" in found["files"]
    # Without git it is as without a repository.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert looked_at(folder)["reason"] == "git is not installed"
    # A folder that is too large for code has only what its command names.
    monkeypatch.setattr(record_code, "MOST_FILES", 3)
    found = looked_at(folder)
    assert found["reason"] == "git is not installed, and there are more than 3 files"
    assert [*found["files"]] == ["conf.yaml", "train.py"]


def test_another_accounts_repository_and_a_slow_one_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(tmp_path, FILES)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    found = looked_at(tmp_path)
    assert found["reason"] == "the repository belongs to another account, and git does not read it"
    assert "lib/model.py" in found["files"]

    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("git", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert looked_at(tmp_path)["reason"] == "git has not answered within 60 s"


def test_the_record_of_a_unit_has_versions_and_host(tmp_path: Path) -> None:
    commit = committed(tmp_path / "work", FILES)
    path, order = tmp_path / "code-0.json", {"python": sys.executable, "command": ["train.py"]}
    argv = (sys.executable, "-I", "-S", record_code.__file__, str(path), json.dumps(order))
    subprocess.run(argv, cwd=tmp_path / "work", check=True)
    found = json.loads(path.read_text())
    assert (found["schema"], found["commit"], found["host"]) == ("pliant.code/1", commit, os.uname().nodename)
    assert found["python"] == sys.version.split()[0]
    assert found["changes"] == ""
    assert record_code.versions("no-such-python") == (None, None)
