import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from pliant.schemas.container import Container
from pliant.schemas.errors import UsageError
from pliant.schemas.job import Job
from pliant.tools.run.backends import record_code
from pliant.tools.run.service import code_copy
from pliant.tools.run.service.code_copy import UnusedCopies, from_copies
from pliant.tools.run.service.submit import order_jobs
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import cancel_event, submit_event
from pliant.tools.run.statedir.output_paths import output_file
from pliant.tools.run.statedir.requests import Spool
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
    files = {".gitignore": FILES[".gitignore"], "run.sh": "", "new.txt": "new", "train.py": "edited"}
    links = {"far": "new.txt", "in": "train.py", "out": f"{work.root.parent}/outside.py"}
    links |= {name: f"{work.root}/{name}" for name in ("data", "lib/fast.so")}
    assert tree(folder) == files | {name: f"-> {target}" for name, target in links.items()}
    modes = [stat.S_IMODE((folder / name).lstat().st_mode) for name in (".", "lib", "train.py", "run.sh")]
    assert modes == [0o500, 0o500, 0o400, 0o500]
    # What it runs is recorded as of now.
    write(work.root, {"train.py": "later"})
    found = record_code.snapshot_record(str(folder / "lib"))
    assert found is not None
    changed = ["lib/model.py", "run.sh", "train.py"]
    assert [found["commit"], found["snapshot"], *found["files"]] == [work.commit, True, *changed]


def test_code_is_that_of_the_copy_and_other_files_stay(work: Work) -> None:
    write(work.root, dict.fromkeys(("lib/a.yaml", "50%x/run", "last.pt", "out.json"), ""))
    git(work.root, "add", "lib/a.yaml")
    root, output = str(work.root), "logs/%j"
    inside = ("50%x/run", "lib/model.py", "lib/a.yaml")  # the script, code, settings that git tracks
    others = tuple(f"{root}/{name}" for name in ("last.pt", "out.json", "data/big.bin", "lib"))
    command = (*(f"{root}/{name}" for name in inside), f"--c={root}/run.sh", f"--o={root}/last.pt", *others)
    box = {"image": "x", "mounts": ("../lib:/lib", "../data:/data:ro", "/etc:/own", f"{root}/lib:/l")}
    more = {"env": {"PYTHONPATH": f"{root}/lib:/opt", "DATA": f"{root}/lib"}, "container": box}
    (found,) = work.copied(started(*command, **more, output=output, workdir=f"{root}/50%x"))
    copy = str(Path(found.workdir or "").parent)
    copied = [f"{copy}/{name}" for name in inside]
    assert found.command == (*copied, f"--c={copy}/run.sh", f"--o={root}/last.pt", *others)
    assert found.env == {"PYTHONPATH": f"{copy}/lib:/opt", "DATA": f"{root}/lib"}
    path = output_file(found.output or "", found, attempt=1, node="", rank=0, user="")
    assert (found.workdir, path) == (f"{copy}/50%x", f"{root}/50%x/logs/a")
    assert output_file("%z", found, attempt=1, node="", rank=0, user="") == f"{copy}/50%x/%z"
    here = f"{root}/50%x"  # where links lead to
    mounts = (here, "../lib:/lib", f"{here}/../data:/data:ro", *box["mounts"][2:])
    assert found.container == Container(image="x", mounts=mounts)


def test_a_folder_without_git_is_copied_without_environments(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "plain"
    write(folder, {"train.py": "1", "data.csv": "2", "env/pyvenv.cfg": "", ".git-not/x": ""})
    with from_copies(folder / "state", [started("train.py")], folder) as (found,):
        assert tree(Path(found.workdir or "")) == {"train.py": "1", "data.csv": "2"}


def test_submodules_are_copied_too(work: Work) -> None:
    committed(work.root.parent / "library", {"a.py": "1", ".gitignore": "own\n"})
    git(work.root, "submodule", "add", "-q", str(work.root.parent / "library"), "third")
    write(work.root, {"third/b.py": "2", "third/own/x": "3"})
    (found,) = work.copied(started("third/a.py"))
    third = {"third/a.py": "1", "third/b.py": "2", "third/own": f"-> {work.root}/third/own"}
    assert third.items() <= tree(Path(found.workdir or "")).items()


def test_what_cannot_be_copied_is_refused_and_nothing_stays(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work.root, {"lib/model.py": "the largest of all these files"})
    for name, folder, text in (
        ("../outside.py", "", "is not in {root}, and that is all that --snapshot copies"),
        ("x.sh", "data", "git ignores it or nothing is in it, so --snapshot copies nothing of it"),
        ("train.py", "", '{root}: more than 0 MiB or 20,000 files to copy: "lib/model.py (0.0 MiB)"'),
    ):
        monkeypatch.setattr(code_copy, "MOST_BYTES", 40 if name == "train.py" else 1 << 20)
        with pytest.raises(UsageError) as caught:
            work.copied(started("run.sh", name="b"), started(name), folder=folder)
        assert (text.format(root=work.root) in str(caught.value), work.copies()) == (True, [])


def test_a_copy_goes_once_its_last_job_has_ended(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    spool, code = Spool(StateDir(work.state)), StateDir(work.state).code
    asked = [started("run.sh", name=name, at=at) for name, at in (("a", 0.0), ("b", 0.0), ("c", 4e9))]
    with pytest.raises(KeyboardInterrupt), from_copies(work.state, asked, work.root) as found:  # noqa: PT012
        jobs = [*found, started("run.sh", name="d")]
        with spool.locked():
            spool.request_run(found)
        raise KeyboardInterrupt
    (copy,) = work.copies()
    with State(work.state) as state:
        state.record(submit_event(each, 0.5) for each in jobs if each.id != "c")  # which has not arrived
        state.add_sink(sink := UnusedCopies(state), past=False)
        state.record([cancel_event("a", 1.0), cancel_event("d", 1.0), cancel_event("b", 1.0)])
        time.sleep(0.05)
        assert work.copies() == [copy]
        state.record([submit_event(jobs[2], 2.0)])
        spool.settle(state.log)
        # A request that cannot be read may name it.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Spool, "_request", lambda *_: None)
            spool.request_cancel(["c"])
            state.record([cancel_event("c", 3.0)])
        time.sleep(0.05)
        assert work.copies() == [copy]
        # What a submission has left that was cut short goes at the next start, an hour later.
        for name, age_s in (("new", 60), ("old", 7200), (copy, 7200)):
            (code / name).mkdir(exist_ok=True)
            os.utime(code / name, (time.time() - age_s,) * 2)
        # Not so what somebody wrote to, by the rights of root.
        (code / copy / "files").chmod(0o700)
        write(code / copy / "files", {"last.pt": "1", "__pycache__/x.pyc": ""})
        UnusedCopies(state)
        until(lambda: work.copies() == sorted([copy, "new"]))
        until(lambda: f"{copy}/files: no job runs from it any more" in caplog.text)
        assert 'as these files are new or changed: "last.pt": move them' in caplog.text
        (code / copy / "files/last.pt").unlink()
        sink([cancel_event("c", 3.0)])
        until(lambda: work.copies() == ["new"])
    with pytest.raises(UsageError, match="job a ran from a snapshot of its code, which went"):
        order_jobs(work.state, "requeue", ["a"])
