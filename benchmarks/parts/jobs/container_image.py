"""An image for runs in containers, made of files of this machine: no network is asked for one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

IMAGE: Final = "localhost/pliant-test:latest"
"""A shell, a few programs, and the libraries that Python and PyTorch need; its entrypoint must not run."""
PROGRAMS: Final = ("bash", "sh", "cat", "env", "id", "ls", "sleep", "true")
OPTIONS: Final = ("--runtime=runc", "--cgroup-manager=cgroupfs")
"""What podman needs on a machine without systemd, whose control groups are of two versions."""
_FOLDERS: Final = ("bin", "dev", "etc", "lib", "lib64", "proc", "root", "sys", "tmp", "usr/lib", "var")
_ENTRYPOINT: Final = 'ENTRYPOINT ["/bin/sleep", "60"]'


def prepare(folder: Path) -> str:
    """Make the image, by way of a folder. Returns why podman runs nothing here; empty if it does."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    _make_image(folder)
    words = ("podman", "run", "--rm", "--pull=never", "--entrypoint=", "--pid=host", "--network=host")
    limits = ("--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000", "--cgroups=no-conmon", *OPTIONS)
    done = subprocess.run((*words, *limits, IMAGE, "true"), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"podman runs nothing here: {done.stderr.strip()}"


def mounts() -> tuple[str, ...]:
    """What the image has not: this Python, its packages, and this package."""
    package = find_spec("pliant")
    folders = [sys.prefix, sys.base_prefix]
    for place in package.submodule_search_locations or () if package else ():
        folders += [str(Path(place).parent), str(Path(place).resolve())]
    return tuple(dict.fromkeys(folders))


def environment() -> dict[str, str]:
    """Variables by which that Python finds this package."""
    package = find_spec("pliant")
    folders = (Path(place).parent for place in (package.submodule_search_locations or () if package else ()))
    return {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}


def _make_image(folder: Path) -> None:
    """Import the image into podman's storage."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    programs = [Path(path) for name in PROGRAMS if (path := shutil.which(name))]
    for path in programs:
        _copy(path, folder / "bin" / path.name)
    torch = find_spec("torch")
    libraries = Path(torch.origin).parent.glob("lib/*.so*") if torch and torch.origin else ()
    dynamic = Path(sysconfig.get_path("stdlib")).glob("lib-dynload/*.so")
    for path in _needed([*programs, Path(sys.executable).resolve(), *dynamic, *libraries]):
        _copy(path, folder / path.relative_to("/"))
    command = ("podman", "import", "--quiet", "--change", _ENTRYPOINT, "-", IMAGE)
    with subprocess.Popen(("tar", "-C", folder, "-c", "."), stdout=subprocess.PIPE) as packed:
        subprocess.run(command, stdin=packed.stdout, check=True, capture_output=True)


def _needed(files: Iterable[Path]) -> Iterator[Path]:
    """The system's libraries that files are linked with."""
    found: dict[Path, None] = {}
    for path in files:
        listed = subprocess.run(("ldd", path), capture_output=True, text=True, check=False).stdout
        words = (word for line in listed.splitlines() for word in line.split())
        found |= {Path(word): None for word in words if word.startswith(("/lib", "/usr/lib"))}
    yield from found


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
