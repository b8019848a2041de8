"""The shape of the code base: who may import whom, and that packaging names every package."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cli", "integrations", "schemas", "tools")
ALLOWED = {
    "schemas": {"schemas"},
    "tools.profile": {"schemas", "tools.profile"},
    "tools.schedule": {"schemas", "tools.profile", "tools.schedule"},
    "tools.run": {"schemas", "tools.profile", "tools.schedule", "tools.run"},
    "tools.replay": {"schemas", "tools.profile", "tools.schedule", "tools.replay"},
    "tools.report": {"schemas", "tools.report"},
    "tools.api": {"schemas", "tools"},
    "tools.live": {"schemas", "tools"},
    "integrations": {"integrations", "tools.run"},
    "cli": {"cli", "schemas", "tools"},
}
RUN_LAYERS = ("statedir", "backends", "discovery", "service", "watch", "gateway", "doctor")
"""Of tools/run: each knows those before it."""
ELASTIC_LAYERS = ("torch_internals", "context", "state", "trackers", "report", "membership", "loop")
"""Of tools/run/elastic: likewise. What is beside them may know all."""
HEAVY = {
    "torch": (
        "tools/profile/measuring/worker",
        "tools/profile/measuring/allreduce.py",
        "tools/run/elastic/",
        "tools/profile/torchrun/run_torchrun.py",
        "integrations/",
    ),
    "transformers": ("integrations/",),
    "lightning": ("integrations/",),
    "accelerate": ("integrations/",),
    "wandb": ("tools/run/elastic/trackers.py",),
    "mlflow": ("tools/run/elastic/trackers.py",),
    "pandas": ("schemas/frames.py", "tools/api.py"),  # there for annotations alone, as matplotlib is
    "matplotlib": ("tools/report/", "tools/api.py"),
    "scipy": (
        "tools/schedule/policies/",
        "tools/schedule/forecast.py",
        "tools/profile/throughput_model.py",
        "tools/profile/predictor.py",
        "tools/report/report.py",
    ),
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def name_of(path: Path) -> str:
    """Of a module, without ``pliant``; a package's is that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path: Path, known: set[str]) -> set[str]:
    """The modules of this package that a module imports, at its top or inside of its functions."""
    return known & {name.removeprefix("pliant.") for name in imported(path)}


def layer(dotted: str) -> str:
    parts = dotted.split(".")
    return ".".join(parts[:2]) if parts[0] == "tools" else parts[0]


def imports_of(prefix: str, paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each module, and each name below ``prefix`` that it imports, without that prefix."""
    for path in paths:
        for name in sorted(imported(path)):
            if name.startswith(prefix):
                yield path, name.removeprefix(prefix)


def is_allowed(own: str, target: str) -> bool:
    allowed = ALLOWED.get(own)
    return (
        allowed is None
        or target in ("tools", "__version__")
        or bool({target, target.partition(".")[0]} & allowed)
    )


def test_imports_go_one_way() -> None:
    result = ((name_of(path), name) for path, name in imports_of("pliant.", modules()))
    assert [f"{own}: {name}" for own, name in result if not is_allowed(layer(own), layer(name))] == []
    # The layers of run know those below them.
    result = imports_of("pliant.tools.run.", sorted((ROOT / "tools/run").rglob("*.py")))
    named = ((name_of(path).removeprefix("tools.run").strip("."), name) for path, name in result)
    assert [f"{own}: {name}" for own, name in named if breaks_run_layers(own, name)] == []


def breaks_run_layers(own: str, name: str) -> bool:
    """Whether a module of tools/run imports what it may not know; both without ``tools.run``."""
    layer, target = own.partition(".")[0], name.partition(".")[0]
    of_contract = f"{name}.".startswith("statedir.contract.")
    if own.startswith("statedir.contract."):
        return not of_contract
    if layer == "elastic":  # a worker knows what it shares with its launcher, and nothing else of that
        return target != "elastic" and not of_contract
    return layer in RUN_LAYERS and target not in RUN_LAYERS[: RUN_LAYERS.index(layer) + 1]


def test_the_parts_of_run_import_no_circle_and_nothing_heavy() -> None:
    folder = ROOT / "tools/run/elastic"
    wrong = []
    for own, layer in enumerate(ELASTIC_LAYERS):
        parts = [*folder.glob(f"{layer}.py"), *folder.glob(f"{layer}/*.py")]
        assert parts, f"there is no {layer}"
        for path, name in imports_of("pliant.tools.run.elastic.", parts):
            if name.partition(".")[0] not in ELASTIC_LAYERS[: own + 1]:
                wrong.append(f"{name_of(path)}: {name}")
    assert wrong == []
    # No modules import each other in a circle.
    known = {name_of(path) for path in modules()}
    needs = {name_of(path): modules_imported(path, known) - {name_of(path)} for path in modules()}
    TopologicalSorter(needs).prepare()  # a circle is an error that names it
    # Heavy libraries stay where they belong.
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in sorted(imported(path))
        for places in [HEAVY.get(name.partition(".")[0])]
        if places is not None and not str(path.relative_to(ROOT)).startswith(places)
    ]
    assert wrong == []


def test_packages_have_an_init_and_take_the_oldest_python() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    result = {
        "pliant." + ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    scripts = {path.parent for path in (ROOT / "examples").rglob("*") if "__pycache__" not in path.parts}
    result |= {".".join(("pliant", *path.relative_to(ROOT).parts)) for path in (ROOT, *scripts)}
    assert set(listed) == result
    assert sorted(listed) == listed
    # No folder of code lacks its init.
    folders = {path.parent for path in modules()}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()] == []
    # Pinned packages take the oldest python.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pinned = [
        line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    ]
    asked = {}
    for name in pinned:
        with suppress(PackageNotFoundError):  # of an extra that is not installed
            asked[name] = metadata(name).get("Requires-Python") or ""
    assert len(asked) > 20
    assert {name: text for name, text in asked.items() if not SpecifierSet(text).contains(oldest)} == {}


def test_the_base_works_without_what_only_linux_has(tmp_path: Path) -> None:
    gpus = ["--cluster", str(ROOT / "examples" / "gpus.json")]
    recipe = 'policies = ["fifo", "las"]\n[[traces]]\nname = "t"\njobs = "t.jsonl"\n'
    recipe += f'[[clusters]]\nname = "c"\npath = {json.dumps(gpus[1])}\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    commands = [
        ["trace", "synth", "poisson", "--jobs", "20", "--rate", "30", "--seed", "1", "-o", "t.jsonl"],
        ["trace", "import", "slurm", str(ROOT / "examples" / "sacct.txt"), "-o", "imported.jsonl"],
        ["validate", "t.jsonl", "imported.jsonl"],
        ["schedule", "t.jsonl", *gpus, "--policy", "shadow-price", "-o", "schedule.json"],
        ["replay", "t.jsonl", *gpus, "--policy", "fifo,shadow-price", "-o", "out"],
        ["replay", "--recipe", "recipe.toml", "-o", "swept"],
        ["report", "out", "--baseline", "fifo"],
        ["report", "out", "-f", "html", "-o", "report.html"],
    ]
    words = [sys.executable, "-m", "tests.without_linux", json.dumps(commands)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 replays are in" in done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
