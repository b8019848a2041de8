"""``make bench`` without a name lists what there is."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.__main__ import benchmarks, main


def test_without_a_name_each_benchmark_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(benchmarks())
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", benchmarks())
def test_each_has_figures(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").figures)


def test_an_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nope"]) == 2
    assert "no benchmark 'nope'; there are: ares, ares_experiments, chaos" in capsys.readouterr().err
