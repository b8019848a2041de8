"""What counts as the base install."""

from __future__ import annotations

from benchmarks.parts.base_install import sizes


def test_requirements_of_requirements_count_and_extras_do_not() -> None:
    found = sizes("pliant")
    assert {"pliant", "numpy", "pyarrow", "pydantic", "pydantic-core", "markupsafe"} <= found.keys()
    assert not {"torch", "pandas", "matplotlib", "pytest"} & found.keys()
    assert all(size > 0 for size in found.values())
