import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Job
from pliant.tools.run.backends import record_code
from pliant.tools.run.service import code_copy
from pliant.tools.run.service.code_copy import UnusedCopies, from_copies
from pliant.tools.run.service.submit import order_jobs
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import cancel_event, submit_event
from pliant.tools.run.statedir.state import State
from tests.builders import job
from tests.tools.run.backends.repositories import committed, git, write
from tests.tools.run.site import until

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
FILES = {"train.py": "1", "lib/model.py": "2", "run.sh": "", ".gitignore": "data/\n*.so\nstate/\n"}


class Work:
    """A repository of someone, a folder outside of it, and a state directory in it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "work", folder / "work" / "state"
        self.commit = committed(self.root, FILES)
        write(self.root, {"data/big.bin": "x", "lib/fast.so": "", "lib/__pycache__/model.pyc": ""})
        write(folder, {"outside.py": ""})

    def copied(self, *jobs: Job, folder: str = "") -> list[Job]:
        with from_copies(self.state, jobs, self.root / folder) as found:
            return [*found]

    def copies(self) -> list[str]:
        return sorted(path.name for path in StateDir(self.state).code.glob("*"))


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path.resolve())


def started(*command: str, name: str = "a", **more: object) -> Job:
    return job(name, command=command, **more)


def tree(folder: Path) -> dict[str, str]:
    """What is in a folder: what files hold, and where links lead."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in paths
    }


def test_a_copy_has_what_git_does_not_ignore_as_it_is_now(work: Work) -> None:
    write(work.root, {"train.py": "edited", "new.txt": "new"})
    (work.root / "run.sh").chmod(0o755)
    (work.root / "lib/model.py").unlink()
    for name, target in (("in", "train.py"), ("out", "../outside.py"), ("far", str(work.root / "new.txt"))):
        (work.root / name).symlink_to(target)
    first, second = work.copied(started("train.py"), started("train.py", name="b"))
    folder = Path(first.workdir or "")
    assert second.workdir == first.workdir
    assert tree(folder) == {
        ".gitignore": FILES[".gitignore"],
        "data": f"-> {work.root}/data",
        "far": "-> new.txt",
        "in": "-> train.py",
        "lib/fast.so": f"-> {work.root}/lib/fast.so",
        "new.txt": "new",
        "out": f"-> {work.root.parent}/outside.py",
        "run.sh": "",
        "train.py": "edited",
    }
    modes = {
        name: stat.S_IMODE((folder / name).lstat().st_mode) for name in (".", "lib", "train.py", "run.sh")
    }
    assert modes == {".": 0o500, "lib": 0o500, "train.py": 0o400, "run.sh": 0o500}
    # What it runs is recorded as of now.
    write(work.root, {"train.py": "later"})
    found = record_code.snapshot_record(str(folder / "lib"))
    assert found is not None
    given = (found["commit"], found["snapshot"], [*found["files"]])
    assert given == (work.commit, True, ["lib/model.py", "run.sh", "train.py"])


def test_paths_into_the_repository_lead_into_the_copy(work: Work) -> None:
    root, output = str(work.root), "logs/%j"
    command = (
        f"{root}/lib/model.py",
        f"--c={root}/run.sh",
        f"{root}/data/big.bin",
        f"{root}/lib",
        "/etc/hosts",
    )
    env = {"PYTHONPATH": f"{root}/lib:/opt", "DATA": f"{root}/lib"}
    (found,) = work.copied(started(*command, env=env, output=output, workdir=f"{root}/lib"))
    copy = str(Path(found.workdir or "").parent)
    assert found.command == (f"{copy}/lib/model.py", f"--c={copy}/run.sh", *command[2:])
    assert found.env == {"PYTHONPATH": f"{copy}/lib:/opt", "DATA": f"{root}/lib"}
    assert (found.workdir, found.output) == (f"{copy}/lib", f"{root}/lib/{output}")


def test_a_folder_without_git_is_copied_whole_but_for_environments(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "plain"
    write(folder, {"train.py": "1", "data.csv": "2", "env/pyvenv.cfg": "", ".git-not/x": ""})
    with from_copies(folder / "state", [started("train.py")], folder) as (found,):
        assert tree(Path(found.workdir or "")) == {"train.py": "1", "data.csv": "2"}


def test_submodules_are_copied_too(work: Work) -> None:
    committed(work.root.parent / "library", {"a.py": "1", ".gitignore": "own\n"})
    git(work.root, "submodule", "add", "-q", str(work.root.parent / "library"), "third")
    write(work.root, {"third/b.py": "2", "third/own/x": "3"})
    (found,) = work.copied(started("third/a.py"))
    copied = tree(Path(found.workdir or ""))
    given = (copied["third/a.py"], copied["third/b.py"], copied["third/own"])
    assert given == ("1", "2", f"-> {work.root}/third/own")


@pytest.mark.parametrize(
    ("command", "folder", "text"),
    [
        (("../outside.py",), "", "is not in {root}, and that is all that --snapshot copies"),
        (("x.sh",), "data", "git ignores it or nothing is in it, so --snapshot copies nothing of it"),
        (("train.py",), "", '{root}: more than 0 MiB or 20,000 files to copy: "lib/model.py (0.0 MiB)"'),
    ],
)
def test_what_cannot_be_copied_is_refused_and_nothing_stays(
    work: Work, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], folder: str, text: str
) -> None:
    if not folder and command == ("train.py",):
        write(work.root, {"lib/model.py": "the largest of all these files"})
        monkeypatch.setattr(code_copy, "MOST_BYTES", 40)
    with pytest.raises(UsageError) as caught:
        work.copied(
            started("train.py", name="b") if folder else started("run.sh"), started(*command), folder=folder
        )
    assert text.format(root=work.root) in str(caught.value)
    assert work.copies() == []


def test_a_copy_goes_once_the_last_of_its_jobs_has_ended(work: Work) -> None:
    jobs = [*work.copied(started("run.sh"), started("run.sh", name="b")), started("run.sh", name="d")]
    (copy,) = work.copies()
    with State(work.state) as state:
        state.record(submit_event(each, 0.5) for each in jobs)
        state.add_sink(UnusedCopies(state), past=False)
        state.record([cancel_event("a", 1.0), cancel_event("d", 1.0)])
        time.sleep(0.05)
        assert work.copies() == [copy]
        state.record([cancel_event("b", 2.0)])
        until(lambda: work.copies() == [])
        # What a submission has left that was cut short goes at the next start, an hour later.
        for name, age_s in (("new", 60), ("old", 7200)):
            (StateDir(work.state).code / name).mkdir()
            os.utime(StateDir(work.state).code / name, (time.time() - age_s,) * 2)
        UnusedCopies(state)
        until(lambda: work.copies() == ["new"])
    with pytest.raises(UsageError, match="job a ran from a snapshot of its code, which went"):
        order_jobs(work.state, "requeue", ["a"])
