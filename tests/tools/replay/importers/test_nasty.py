"""Nasty traces of all formats give the same in small blocks, through files, as at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.parts.nasty_traces import FORMATS, outcomes, refusals, traces


@pytest.mark.parametrize("seed", [*range(22, 33), 37, 38, 51, 52])
def test_small_blocks_give_what_a_whole_file_gives(seed: int, tmp_path: Path) -> None:
    for trace in traces(tmp_path, [seed]):
        small = replace(trace, bytes_of_a_block=300, in_memory=100)
        whole = replace(trace, bytes_of_a_block=1 << 21, in_memory=1 << 25)
        assert outcomes(small) == outcomes(whole)


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_what_import_writes_every_command_reads(kind: str, tmp_path: Path) -> None:
    """As `make bench NAME=people` does with 1,500 files of each format."""
    for trace in traces(tmp_path, range(4), FORMATS[kind]):
        assert refusals(trace, tmp_path) == []
