"""Write down what code one unit runs: commit, what is not committed, Python, torch, driver, host.

Run with FILE and ORDER in a process of its own by the supervisor of the unit, in the job's folder, with the
rights and the environment of the job, so that no file system and no repository holds up anything else.
``source_files`` finds the files; ``pliant submit --snapshot`` does so, too.

What counts of the files that git does not know is code, and what the command names: a job writes results
beside its code, and these differ from attempt to attempt. Files are hashed here, not by git, which would run
filters of the repository. A repository of another account is not read, as git advises.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

SCHEMA = "pliant.code/1"
GIT_TIMEOUT_S = 60.0
"""Seconds to wait for git, which is slow in a huge repository."""
CODE = frozenset(
    {
        *(".py", ".pyi", ".pyx", ".pxd", ".ipynb", ".sh", ".bash", ".jl", ".lua", ".pl", ".r", ".rs", ".go"),
        *(".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".java", ".js", ".ts"),
    }
)
"""Endings of files that are code, whether git knows them or not."""
SETTINGS = frozenset({".cfg", ".conf", ".ini", ".json", ".toml", ".yaml", ".yml"})
"""Endings of files that count if the command names them."""
MOST_NAMED = 100
"""Files that a record names; all count in its hash."""
MOST_FILES = 20_000
"""Maximum files in a folder without git; a larger one does not count as code."""
_HASHED_BYTES = 16 << 20
"""Size of a file up to which its content counts; beyond it, its size and the time of its last change do."""
_OTHERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
"""Variables that a hook which submits has: they would name its repository."""
_VERSIONS = """
import sys
print(sys.version.split()[0])
try:
    from importlib.metadata import version
    print(version("torch"))
except Exception:
    print()
"""


class NoGitError(Exception):
    """Git does not say what is in a folder; the text says why, as a clause."""


def main(arguments: list[str]) -> int:
    os.nice(10)
    path, order = arguments[0], json.loads(arguments[1])
    record: dict[str, Any] = {"schema": SCHEMA, "host": os.uname().nodename, "driver": driver()}
    unknown = {"reason": "its folder has not answered yet"}
    write(path, record | unknown)
    command, python = order["command"], order["python"]
    if image := order.get("image"):
        record["image"] = image
    if python is not None:
        record |= dict(zip(("python", "torch"), versions(python), strict=True))
    write(path, record | unknown)
    state = path
    for _ in ("attempt", "attempts", "job", "jobs", "state directory"):
        state = os.path.dirname(state)
    try:
        code = snapshot_record(os.getcwd()) or code_of(os.getcwd(), command, state)
    except OSError as error:
        code = {"reason": f"its folder cannot be read: {error.strerror}"}
    write(path, {**record, **code})
    return 0


def write(path: str, record: Mapping[str, Any]) -> None:
    temporary = f"{path}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.write("\n")
    os.replace(temporary, path)


def driver() -> str | None:
    """The version of the NVIDIA driver of this host."""
    try:
        with open("/sys/module/nvidia/version") as file:
            return file.read().strip()
    except OSError:
        return None


def versions(python: str) -> tuple[str | None, str | None]:
    """Versions of Python and torch; ``python`` is a path, a name on PATH, or empty for what PATH has."""
    names = [python] if python else ["python3", "python"]
    for path in filter(None, map(shutil.which, names)):
        try:  # in another folder, as modules of this one would be taken for Python's
            text = subprocess.check_output(
                [os.path.abspath(path), "-c", _VERSIONS],
                cwd="/",
                timeout=GIT_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        words = [*text.decode(errors="replace").split("\n"), "", ""]
        number, torch = words[:2]
        return number or None, torch or None
    return None, None


SNAPSHOT = "snapshot.json"
"""Name of the record beside a copy of code."""


def snapshot_record(folder: str) -> dict[str, Any] | None:
    """The record of the copy that a folder is in. Returns None if it is in none."""
    above = folder
    while above != os.path.dirname(above):
        above = os.path.dirname(above)
        try:
            with open(os.path.join(above, SNAPSHOT), encoding="utf-8") as file:
                record = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("schema") == SCHEMA:
            return record
    return None


# What a folder holds.


def git(folder: str, *words: str) -> bytes:
    """What git answers about a folder. It writes nothing there.

    :raises NoGitError: it does not answer.
    """
    env = {name: text for name, text in os.environ.items() if name not in _VARIABLES}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    argv = ["git", "-C", folder, "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", *words]
    try:
        answer = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise NoGitError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise NoGitError(f"git has not answered within {GIT_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise NoGitError(f"git cannot be started: {error.strerror}") from None
    if answer.returncode:
        text = answer.stderr.decode(errors="replace").strip()
        if "dubious ownership" in text:
            raise NoGitError("the repository belongs to another account, and git does not read it")
        if "not a git repository" in text:
            raise NoGitError("it is in no git repository")
        raise NoGitError(f"git: {text.splitlines()[-1] if text else answer.returncode}")
    return answer.stdout


def root_of(folder: str) -> str:
    """:raises NoGitError: it is in no repository that git reads."""
    return os.fsdecode(git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n"))


def commit_of(root: str) -> str:
    """The commit that is checked out; empty before the first one."""
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    except NoGitError:
        return ""


def listed(root: str, *words: str) -> list[str]:
    return [os.fsdecode(name) for name in git(root, *words).split(b"\0") if name]


def source_files(root: str) -> Iterator[str]:
    """The files of a repository that are tracked, or neither tracked nor ignored, with those of submodules.

    :raises NoGitError: git does not say.
    """
    for name in sorted(
        {*listed(root, "ls-files", "-z"), *listed(root, "ls-files", "-zo", "--exclude-standard")}
    ):
        path = os.path.join(root, name)
        if not os.path.isdir(path) or os.path.islink(path):
            yield name
        elif os.path.lexists(os.path.join(path, ".git")):  # a submodule, or a repository in this one
            yield from (os.path.join(name, below) for below in source_files(path))


def tracked_files(root: str) -> list[str]:
    """The files of a repository that git tracks, with those of submodules.

    :raises NoGitError: git does not say.
    """
    return listed(root, "ls-files", "-z", "--recurse-submodules")


def ignored_files(root: str) -> Iterator[str]:
    """The files and whole folders of a repository that git ignores, with those of submodules, caches aside.

    :raises NoGitError: git does not say.
    """
    for name in listed(root, "ls-files", "-zoi", "--exclude-standard", "--directory"):
        if os.path.basename(name.rstrip("/")) not in _OTHERS and not name.endswith(".pyc"):
            yield name.rstrip("/")
    for name in submodules(root):
        yield from (os.path.join(name, below) for below in ignored_files(os.path.join(root, name)))


def submodules(root: str) -> list[str]:
    entries = [entry.partition("\t") for entry in listed(root, "ls-files", "-zs")]
    modules = {name for about, _, name in entries if about.startswith("160000 ")}
    return sorted(name for name in modules if os.path.lexists(os.path.join(root, name, ".git")))


def changed_files(root: str) -> Iterator[tuple[str, bool]]:
    """What is not as it was committed, and whether git tracks it, with submodules.

    :raises NoGitError: git does not say.
    """
    entries = iter(listed(root, "status", "--porcelain=v2", "-z", "--untracked-files=all"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        fields = {"1": 7, "2": 8, "u": 9, "?": 0}.get(kind)
        if fields is None:
            continue
        *known, name = rest.rstrip("/").split(" ", fields)
        if kind == "2":
            yield next(entries), True  # the name that it had
        path = os.path.join(root, name)
        if not os.path.isdir(path) or os.path.islink(path):
            yield name, bool(known)
        elif os.path.lexists(os.path.join(path, ".git")):
            yield name, True
            yield from ((os.path.join(name, below), tracked) for below, tracked in changed_files(path))


def folder_files(folder: str, state: str) -> Iterator[str]:
    """The files of a folder without git, as far as they may be code: none of environments and state."""
    for above, folders, names in os.walk(folder):
        if {"pyvenv.cfg", "conda-meta"} & {*folders, *names} or os.path.realpath(above) == state:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in _OTHERS and not name.startswith("."))
        yield from (os.path.relpath(os.path.join(above, name), folder) for name in sorted(names))
        yield from (
            os.path.relpath(os.path.join(above, name), folder)
            for name in folders
            if os.path.islink(os.path.join(above, name))
        )


def code_of(folder: str, command: Sequence[str], state: str) -> dict[str, Any]:
    """The fields of a record that say which code is in a folder.

    :param command: whose words may name files.
    :param state: the state directory, which may be in it and is no code.
    """
    reason = root = commit = ""
    names: list[tuple[str, bool]] = []
    try:
        root = root_of(folder)
        commit, names = commit_of(root), [*changed_files(root)]
    except NoGitError as error:
        reason = str(error)
        root, names = os.path.realpath(folder), []
        for name in folder_files(root, os.path.realpath(state)):
            names.append((name, False))
            if len(names) > MOST_FILES:
                names, reason = [], f"{reason}, and there are more than {MOST_FILES:,} files"
                break
    inside = os.path.relpath(os.path.realpath(state), root) + os.sep
    wanted = {
        name: os.path.join(root, name)
        for name, tracked in names
        if (tracked or _is_code(name)) and not name.startswith(inside)
    }
    named = named_files(command, folder)
    clean = set() if reason else {*_tracked(root, named)} - {*wanted}
    for path in named:
        name = os.path.relpath(path, root)
        if name not in clean and (
            not name.startswith("..") or os.path.splitext(name)[1].lower() in CODE | SETTINGS
        ):
            wanted[path if name.startswith("..") else name] = path
    files = {name: fingerprint(path) for name, path in sorted(wanted.items())}
    text = "".join(f"{name}\0{digest}\n" for name, digest in files.items())
    return {
        "folder": root,
        "commit": commit or None,
        "changes": hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12] if files else "",
        "files": {_shown(name): digest for name, digest in [*files.items()][:MOST_NAMED]},
        "reason": reason,
    }


def _is_code(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in CODE and _OTHERS.isdisjoint(name.split(os.sep))


def named_files(command: Sequence[str], folder: str) -> list[str]:
    """The files that a command names and that count: its program or script, and code and settings."""
    files = []
    for place, word in enumerate(command):
        path = os.path.join(folder, word.rpartition("=")[2])
        ending = os.path.splitext(word)[1].lower()
        counts = (place == 0 and "/" in word) or ending in CODE or ending in SETTINGS
        if counts and len(word) < 4096 and os.path.isfile(path):
            files.append(os.path.realpath(path))
    return files


def _tracked(root: str, paths: Iterable[str]) -> list[str]:
    inside = [path for path in paths if path.startswith(root + os.sep)]
    try:
        return listed(root, "ls-files", "-z", "--", *inside) if inside else []
    except NoGitError:
        return []


def fingerprint(path: str) -> str:
    """What distinguishes a file from another state of it."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            data = os.fsencode(os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):  # a submodule
            return commit_of(path)[:12] or "no commit"
        elif not stat.S_ISREG(status.st_mode) or status.st_size > _HASHED_BYTES:
            data = f"{status.st_size} {status.st_mtime_ns}".encode()
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError as error:
        return "deleted" if isinstance(error, FileNotFoundError) else "unreadable"
    return hashlib.sha256(data).hexdigest()[:12]


def _shown(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
