"""Versions of packages, none of which is imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from pliant.tools.run.doctor import host as looked_at
from pliant.tools.run.doctor.host import needed_versions, versions
from tests.tools.run.doctor.looked import found, not_ok

NEEDED = ["torch>=2.11", "psutil>=6", "rich>=13.9", "nvidia-ml-py>=12; extra == 'gpu'"]


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    path = tmp_path / "constraints.txt"
    path.write_text("rich==15.0.0\ntorch==2.13.0\ntorchvision==0.28\n")
    return path


def installed(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(looked_at, "version", version)
    monkeypatch.setattr(looked_at, "requires", lambda _name: NEEDED)


def test_all_is_well_where_versions_are_those_of_the_tests(
    constraints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, pliant="0.1.0", torch="2.13.0+cpu", psutil="7.2.2", rich="13.10")
    texts = found(versions(constraints))
    assert not_ok(versions(constraints)) == []
    assert texts[0].startswith("ok: pliant 0.1.0, Python 3.")
    assert texts[1:] == ["ok: torch 2.13.0+cpu", "ok: 3 packages as new as needed"]


def test_another_torch_than_that_of_the_tests_is_a_warning(
    constraints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, pliant="0.1.0", torch="2.12.1", psutil="7.2.2", rich="15.0.0")
    (text,) = not_ok(versions(constraints))
    assert text.startswith(
        "warning: torch 2.12.1 is not the version that the tests run with, 2.13.0; pip install"
    )
    assert not_ok(versions(constraints.parent / "none.txt")) == []


def test_what_is_missing_or_too_old_is_a_problem(constraints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pliant="0.1.0", psutil="5.9.8", rich="15.0.0")
    first, second = not_ok(versions(constraints))
    assert first == "problem: torch is not installed, so no job can train; pip install torch"
    assert second.startswith(
        "problem: torch is not installed; psutil 5.9.8 is older than 6; install pliant again"
    )


def test_requirements_of_extras_are_not_needed() -> None:
    assert needed_versions(NEEDED) == {"torch": "2.11", "psutil": "6", "rich": "13.9"}
    assert needed_versions(["a", 'b>=1 ; python_version < "4"']) == {"a": "", "b": "1"}
