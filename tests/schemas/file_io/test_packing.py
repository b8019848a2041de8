"""Packed files are read as what is in them, and others of another kind are named in one line."""

import bz2
import gzip
import io as streams
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pliant.schemas import io
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io import limits
from pliant.schemas.kinds import validate_file
from tests.tools.replay.importers.importing import TIRESIAS, run

JOB = b'{"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 1}}\n'


def by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return bytes(sink.getvalue())

    return compress


def in_zip(*names: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        found = streams.BytesIO()
        with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(name, b"" if name.endswith("/") else data)
        return found.getvalue()

    return compress


def in_tar(data: bytes) -> bytes:
    found = streams.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        entry = tarfile.TarInfo("jobs.jsonl")
        entry.size = len(data)
        archive.addfile(entry, streams.BytesIO(data))
    return found.getvalue()


PACKINGS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": by_arrow("zstd"),
    "lz4": by_arrow("lz4"),
    "gzip in zip": lambda data: in_zip("jobs.jsonl.gz")(gzip.compress(data)),
    "zip": in_zip("export/", "export/jobs.jsonl", "__MACOSX/jobs.jsonl"),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_files_are_read_whatever_their_name(tmp_path: Path, packing: str) -> None:
    pack, path = PACKINGS[packing], tmp_path / "x"
    path.write_bytes(pack(JOB))
    assert [job.id for job in io.read_jobs(path)] == ["a"] == [job.id for job in io.read_job_table(path)]
    assert validate_file(path, "job") == f"{path}: job, 1 record"
    rows = "".join(f"{n},2,{n},6,vgg,164,30\n" for n in range(20_000))
    path.write_bytes(pack(f"{TIRESIAS}\n{rows}".encode()))
    assert len(run(tmp_path, "tiresias", str(path)).jobs) == 20_000
    path.write_bytes(pack(rows.encode())[:-200])
    with pytest.raises(BadInputError, match=r"x: is .*, and cut short or damaged"):
        run(tmp_path, "tiresias", str(path))


def test_what_expands_too_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 16)
    (tmp_path / "x").write_bytes(lzma.compress(b" " * (1 << 22)))
    with pytest.raises(BadInputError, match="x: expands too far"):
        io.read_jobs(tmp_path / "x")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (in_zip("a", "b")(JOB), "is a zip archive of 2 files, expected one: unpack it"),
        (in_zip("xl/sheet.xml", "b")(JOB), "is an Excel workbook, expected text: save its sheet as CSV"),
        (PACKINGS["gzip in zip"](gzip.compress(JOB)), "is packed more than 2 times: unpack it"),
        (in_tar(JOB), "is a tar archive: unpack it"),
        (b"7z\xbc\xaf\x27\x1c" + JOB, "is packed with 7-Zip, which is not read"),
        (b"JobID|User|Submit\n1|u|0\n", "it seems to be what sacct prints: pliant trace import slurm"),
        (b'{\n "meta": {},\n "jobs": []}', "it seems to be what sacct prints"),
        (b"job_id,user,vc,gpu_num,submit_time,duration\n", "format helios: pliant trace import helios"),
        (b'[{"status": "Pass", "vc": "a",\n"jobid": "x"}]', "a trace of the format philly"),
        (b"; Version: 2.2\n; Computer: x\n", "a trace of the format swf"),
        (b"name,time,application,num_replicas,batch_size\n", "pliant trace import pollux DATA --workload"),
        (b"id;when;gpus\n1;2;3\n", "a table with semicolons between its fields: pliant trace import csv"),
        (b"sn,cpu_milli,memory_mib,gpu,model\n", "the nodes of a trace of the format alibaba-v2023"),
        (b'"""Train."""\nimport torch\n', 'gives it to a run; in a job file it is the "command"'),
        (b'{\n "cells": [\n', "it seems to be a notebook: pliant submit papermill -- "),
        (b"#!/bin/bash\n#SBATCH -N 1\n", "it seems to be a script"),
        (b"# a sweep\n[[traces]]\nname = 1\n", "it seems to be TOML"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_gets_one_line_with_its_command(tmp_path, data, problem) -> None:
    (tmp_path / "x").write_bytes(data)
    for read in (io.read_jobs, io.read_job_table, validate_file):
        with pytest.raises(BadInputError) as caught:
            read(tmp_path / "x")
        assert problem in str(caught.value)
        assert len(caught.value.problems) == 1
