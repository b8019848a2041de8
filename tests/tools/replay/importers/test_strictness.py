"""Strict and lenient, ids, order, what is said about it, and files packed, cut short or nearly right."""

from __future__ import annotations

import gzip
import io as streams
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.cli.trace import trace_import
from pliant.schemas import io
from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import write_chunks
from pliant.schemas.file_io.record import IDENTIFIER
from pliant.schemas.job import Job
from pliant.tools.replay.importers.conversion import MOST_PROBLEMS, Conversion, ImportSummary
from pliant.tools.replay.importers.job_lines import blocks_of
from pliant.tools.replay.importers.run import Selection, SortedJobs, import_trace
from tests.builders import job
from tests.cli.calling import call
from tests.tools.replay.importers.importing import HELIOS, TIRESIAS, gpu_seconds, problems, run, text

GOOD = "1,2,30,606,vgg19,164,30"


def jobs(folder: Path, *rows: str) -> str:
    return text(folder, "jobs.csv", TIRESIAS, *rows)


def test_malformed_rows_are_named_or_dropped_and_counted(tmp_path: Path) -> None:
    odd = "2,x,30,606,vgg19,164,30"
    path = jobs(tmp_path, GOOD, odd, "3,1", "4,1,-5,606,vgg19,164,30", "5,1,0,6,,164,30")
    assert problems(tmp_path, "tiresias", path) == [
        "jobs.csv:3: /num_gpu: 'x' is not a number",
        "jobs.csv:4: has 2 fields, expected 7",
        "jobs.csv:5: /submit_time: '-5', expected a finite number, 0 or more",
        "jobs.csv:6: /model_name: is empty, expected some text",
    ]
    path = jobs(tmp_path, GOOD, odd, "3,1", "4,y,5,606,vgg19,164,30")
    result = run(tmp_path, "tiresias", path, lenient=True)
    assert [job.id for job in result.jobs] == ["1"]
    assert result.dropped == {"malformed (/num_gpu)": 2, "malformed (as a whole)": 1}
    assert result.summary.lines()[0] == "tiresias: 4 rows read, 1 job written, 3 rows dropped"
    assert [line.replace(f"{tmp_path}/", "") for line in result.summary.lines() if "jobs.csv" in line] == [
        "malformed: jobs.csv:3: /num_gpu: 'x' is not a number",
        "malformed: jobs.csv:4: has 2 fields, expected 7",
        "malformed: jobs.csv:5: /num_gpu: 'y' is not a number",
    ]


@pytest.mark.parametrize(("count", "more"), [(5, False), (6, True)])
def test_lenient_names_five_rows_and_says_where_more_are(tmp_path: Path, count: int, more: bool) -> None:
    result = run(tmp_path, "tiresias", jobs(tmp_path, GOOD, *["3,1"] * count), lenient=True)
    lines = result.summary.lines()
    assert sum(line.startswith("malformed: ") for line in lines) == 5
    assert ("without --lenient the import lists the others, too" in lines) is more


def test_wrong_files_and_formats_end_early(tmp_path: Path) -> None:
    path = jobs(tmp_path, *["a,b"] * (3 * MOST_PROBLEMS))
    assert problems(tmp_path, "tiresias", path)[-1] == f"… and {MOST_PROBLEMS - 20} more"
    assert problems(tmp_path, "helios", str(tmp_path / "no.csv")) == ["no.csv: no such file"]
    assert problems(tmp_path, "helios", str(tmp_path)) == [f"{tmp_path}: is a folder, expected a file"]
    with pytest.raises(UsageError, match=r'no format "borg"; expected one of philly, helios, pai'):
        import_trace("borg", [])
    path = jobs(tmp_path, "x" * 200_000)
    with pytest.raises(BadInputError, match=r"jobs.csv:2: is not CSV: field larger than field limit"):
        run(tmp_path, "tiresias", path)
    for cut in (12, 40):
        path = tmp_path / "jobs.csv"
        path.write_bytes(gzip.compress(as_bytes())[:cut])
        assert problems(tmp_path, "tiresias", str(path)) == ["jobs.csv: is gzipped, and cut short or damaged"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n", "jobs.csv:1: has no column job_id, num_gpu, submit_time, model_name"),
        (b"", "jobs.csv:1: has no column"),
        (b"\xff\xfe\x00", "jobs.csv: is not UTF-8 text"),
        (TIRESIAS.encode("utf-16-be"), "jobs.csv: is not UTF-8 text but UTF-16"),
        (f"\n\r\n{TIRESIAS}\n\n1,x,0,6,vgg,9,30\n".encode(), "jobs.csv:5: /num_gpu"),
        (f"{TIRESIAS}\n".encode(), "tiresias: no job in 0 rows"),
        (f"{TIRESIAS}\n1,0,30,6,vgg,9,30\n".encode(), "tiresias: no job in 1 rows (1 asked for no GPU)"),
    ],
)
def test_a_file_that_gives_no_job_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "jobs.csv").write_bytes(content)
    (line,) = problems(tmp_path, "tiresias", str(tmp_path / "jobs.csv"))
    assert line.startswith(message)


def test_the_command_writes_jobs_and_says_what_it_did(tmp_path: Path, capfdbinary) -> None:
    summary = import_trace("tiresias", [jobs(tmp_path, GOOD)])
    (tmp_path / "out.jsonl").write_bytes(capfdbinary.readouterr().out)
    assert [job.id for job in io.read_jobs(tmp_path / "out.jsonl")] == ["1"]
    assert summary.files == ["-"]
    path = jobs(tmp_path, GOOD, "2,x,30,606,vgg19,164,30")
    done = call("trace", "import", "tiresias", path)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "--lenient drops and counts them" in done.stderr
    told: list[tuple[int, int | None]] = []
    path = jobs(tmp_path, *(f"{i},1,0,606,vgg19,164,30" for i in range(2500)))
    run(tmp_path, "tiresias", path, progress=lambda done, total: told.append((done, total)))
    assert told == [(1000, None), (2000, None)]


@given(st.lists(st.text(max_size=12) | st.sampled_from(["a", "a-2", "a b", "a_b"]), max_size=30))
def test_ids_are_valid_and_unique(texts: list[str]) -> None:
    conversion = Conversion(ImportSummary("test"))
    ids = [conversion.new_id(text) for text in texts]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(IDENTIFIER, job_id) for job_id in ids)


def test_a_thousand_jobs_of_one_id_are_numbered() -> None:
    conversion = Conversion(ImportSummary("test"))
    ids = [conversion.new_id("job") for _ in range(1000)]
    assert (ids[0], ids[1], ids[-1]) == ("job", "job-2", "job-1000")
    assert [conversion.new_id(text) for text in ("a-2", "a", "a")] == ["a-2", "a", "a-3"]


def written(jobs: list[Job], *, from_zero: bool) -> tuple[Job, ...]:
    with tempfile.TemporaryDirectory() as folder, SortedJobs() as spool:
        for block in blocks_of(jobs):
            spool.add(block)
        write_chunks(Path(folder) / "jobs.jsonl", spool.chunks(from_zero=from_zero))
        return io.read_jobs(Path(folder) / "jobs.jsonl")


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_jobs_come_out_by_time_else_as_they_went_in(times: list[float]) -> None:
    jobs = [job(f"j{i}", at=at, gpus=1 + i % 3) for i, at in enumerate(times)]
    ordered = sorted(jobs, key=lambda found: found.submit_time)
    assert list(written(jobs, from_zero=False)) == ordered
    shifted = [(each.id, each.submit_time - ordered[0].submit_time) for each in ordered]
    assert [(each.id, each.submit_time) for each in written(jobs, from_zero=True)] == shifted


def test_more_jobs_than_memory_allows_for_go_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.tools.replay.importers.spool.IN_MEMORY", 1000)
    monkeypatch.setattr("pliant.tools.replay.importers.run._CHUNK", 300)
    jobs = [job(f"j{i}", at=float(99 - i)) for i in range(100)]
    assert list(written(jobs, from_zero=False)) == jobs[::-1]


@pytest.mark.parametrize("in_memory", [0, 3000])
def test_a_full_disk_of_temporary_files_is_named(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns go to a file first, and then lines that have to be sorted."""
    monkeypatch.setattr("pliant.tools.replay.importers.spool.IN_MEMORY", in_memory)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: open("/dev/full", "w+b"))  # noqa: SIM115
    jobs = [job(f"j{i}", at=float(99 - i)) for i in range(60)]
    with pytest.raises(ServiceMissingError) as refused:
        written(jobs, from_zero=False)
    assert str(refused.value) == f"{tempfile.gettempdir()}: cannot be written: no space left on device"


def test_the_account_goes_to_stderr_and_the_jobs_to_the_file(tmp_path: Path, capsys) -> None:
    path = jobs(tmp_path, GOOD, "2,0,30,606,vgg19,164,30")
    trace_import("tiresias", [path], output=str(tmp_path / "jobs.jsonl"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "pliant: tiresias: 2 rows read, 1 job written, 1 row dropped",
        "pliant: dropped: 1 asked for no GPU",
        "pliant: assumed: work is duration times GPUs; the iterations are kept as a label",
        "pliant: assumed: times are seconds since the start that the trace has",
    ]
    assert len(io.read_jobs(tmp_path / "jobs.jsonl")) == 1


def hourly(folder: Path, jobs: int = 5) -> str:
    """A job of one GPU an hour from 2020-04-04 00:00, of two users and two virtual clusters in turn."""
    rows = (
        f"j{n},u{n % 2},v{n % 2},1,4,1,COMPLETED,2020-04-04 {n:02}:00:00,2020-04-04 {n:02}:01:00,x,60,60"
        for n in range(jobs)
    )
    return text(folder, "cluster_log.csv", HELIOS, *rows)


def kept(tmp_path: Path, **selection: object) -> list[tuple[str, float]]:
    chosen = Selection(**selection)  # type: ignore[arg-type]
    jobs = run(tmp_path, "helios", hourly(tmp_path), selection=chosen).jobs
    return [(job.id, job.submit_time) for job in jobs]


def test_spans_users_and_samples_select_jobs(tmp_path: Path) -> None:
    expected = [("j1", 0.0), ("j2", 3600.0)]
    assert kept(tmp_path, begin="1h", end="3h") == expected
    assert kept(tmp_path, begin="2020-04-04 01:00", end="2020-04-04T05:00:00+02:00") == expected
    assert [job for job, _ in kept(tmp_path, users=("u1",))] == ["j1", "j3"]
    assert [job for job, _ in kept(tmp_path, groups=("v0",))] == ["j0", "j2", "j4"]
    with pytest.raises(BadInputError, match=r"no job in 5 rows \(5 are of other users"):
        kept(tmp_path, users=("nobody",))
    first = kept(tmp_path, sample=0.4)
    assert len(first) == 2
    assert kept(tmp_path, sample=0.4) == first
    assert [time_s for _, time_s in kept(tmp_path, scale_time=0.5)] == [0.0, 1800.0, 3600.0, 5400.0, 7200.0]
    chosen = Selection(begin="1h", users=("u0",), sample=0.5)
    summary = run(tmp_path, "helios", hourly(tmp_path, 9), selection=chosen).summary
    assert summary.rows == summary.jobs + summary.dropped.total()
    lost = {"are of other users": 4, "were submitted outside of --from and --to": 1}
    assert summary.dropped == lost | {"are not in the sample": 2}
    with pytest.raises(BadInputError, match="no job in 5 rows"):
        kept(tmp_path, begin="9h")


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"sample": 0.0}, "--sample 0: expected"),
        ({"sample": 1.5}, "--sample 1.5: expected"),
        ({"scale_time": 0.0}, "--scale-time 0: expected"),
        ({"begin": "soon"}, "--from soon: expected a length of time"),
        ({"begin": "3h", "end": "1h"}, "--to 1h: expected a time after --from"),
    ],
)
def test_what_cannot_be_kept(tmp_path: Path, selection: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kept(tmp_path, **selection)


def test_a_trace_without_dates_has_lengths_of_time_alone(tmp_path: Path) -> None:
    path = text(tmp_path, "jobs.csv", TIRESIAS, "1,1,30,6,vgg,10,30", "2,1,90,6,vgg,10,30")
    (job,) = run(tmp_path, "tiresias", path, selection=Selection(begin="60s")).jobs
    assert (job.id, job.submit_time) == ("2", 0.0)
    with pytest.raises(UsageError, match="this trace has no dates"):
        run(tmp_path, "tiresias", path, selection=Selection(begin="2020-04-04"))


ROWS = (TIRESIAS, GOOD, '2,1,40,606,"vgg,19",100,30')


def as_bytes(end: str = "\n") -> bytes:
    return "".join(line + end for line in ROWS).encode()


@pytest.mark.parametrize(
    "data",
    [
        as_bytes("\r\n"),
        b"\xef\xbb\xbf" + as_bytes(),
        as_bytes().rstrip(b"\n"),
        gzip.compress(as_bytes()),
        gzip.compress(b"\xef\xbb\xbf" + as_bytes("\r\n")),
    ],
)
@pytest.mark.parametrize("piped", [False, True])
def test_packed_or_marked_it_is_the_same_trace(tmp_path: Path, monkeypatch, data: bytes, piped: bool) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=streams.BufferedReader(streams.BytesIO(data))))
    result = run(tmp_path, "tiresias", "-" if piped else str(path))
    found = [(job.id, job.model, gpu_seconds(job)) for job in result.jobs]
    assert found == [("1", "vgg19", 328.0), ("2", "vgg,19", 100.0)]


def test_impossible_columns_and_times_are_named(tmp_path: Path) -> None:
    path = text(tmp_path, "jobs.csv", f"{TIRESIAS},duration", "1,2,30,606,vgg19,164,30,7")
    assert problems(tmp_path, "tiresias", path) == ["jobs.csv:1: has more than one column duration"]
    time, spent = "2020-04-04 11:25:35", "2020-04-04 11:30:35,2020-04-04 12:30:35,60,0"
    rows = f"7,u,v,1,4,1,COMPLETED,{'9' * 400},{spent}", f"7,u,v,99999999,4,1,COMPLETED,{time},{spent}"
    found = problems(tmp_path, "helios", text(tmp_path, "cluster_log.csv", HELIOS, *rows))
    assert found[0].startswith("cluster_log.csv:2: /submit_time: ")
    assert found[1].startswith("cluster_log.csv:3: /requested: 99999999 is above")
    path = text(tmp_path, "log", f'[{{"jobid": {"9" * 5000}}}]')
    assert problems(tmp_path, "philly", path) == ["log:1: is not readable JSON: a number has too many digits"]
    names = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"
    path = text(tmp_path, "trace.csv", names, "0,vgg,cifar,100,10,32,1e-300,1e300,0.7,1")
    assert problems(tmp_path, "ones", path) == ["trace.csv:2: holds a number that is out of all bounds"]
    for field in ("1_000", "0x10", "1e999", "-1", "nan", "1,5"):
        path = text(tmp_path, "jobs.csv", TIRESIAS, f'1,2,"{field}",606,vgg19,164,30')
        (problem,) = problems(tmp_path, "tiresias", path)
        assert problem.startswith("jobs.csv:2: /submit_time: ")
    times = {"a": "2020-04-04 10:00:00", "b": "2020-04-04T12:30:00+02:00", "c": "2020-04-04T11:00:00Z"}
    row = "{},u,v,1,4,1,COMPLETED,{},2020-04-04 12:00:00,2020-04-04 13:00:00,60,0"
    rows = [row.format(*each) for each in times.items()]
    result = run(tmp_path, "helios", text(tmp_path, "cluster_log.csv", HELIOS, *rows))
    assert [(job.id, job.submit_time) for job in result.jobs] == [("a", 0.0), ("b", 1800.0), ("c", 3600.0)]


@pytest.mark.parametrize("piped", [False, True])
def test_bytes_that_are_not_utf_8_are_named_or_replaced(tmp_path: Path, monkeypatch, piped: bool) -> None:
    """Two on line 3 and one on line 4; what is UTF-8 stays, wherever blocks of the file end."""
    rows = (GOOD, "2,2,30,606,sch\xe4f\xe4,164,30", "3,2,30,606,\xfc,164,30")
    data = (
        "".join(f"{row}\n" for row in (TIRESIAS, *rows)).encode("latin-1")
        + "4,2,30,606,gr\u00fcn,1,3\n".encode()
    )
    path = tmp_path / "jobs.csv"
    path.write_bytes(data)

    def stdin() -> str:
        monkeypatch.setattr(
            sys, "stdin", SimpleNamespace(buffer=streams.BufferedReader(streams.BytesIO(data)))
        )
        return "-" if piped else str(path)

    for block in (1, 7, 1 << 18):
        monkeypatch.setattr("pliant.tools.replay.importers.reading.BLOCK", block)
        found = [line.partition(":")[2] for line in problems(tmp_path, "tiresias", stdin())]
        assert [line.split(",")[0] for line in found] == [
            *("3: holds the byte 0xe4",) * 2,
            "4: holds the byte 0xfc",
        ]
        result = run(tmp_path, "tiresias", stdin(), lenient=True)
        assert [job.model for job in result.jobs] == ["vgg19", "sch\ufffdf\ufffd", "\ufffd", "gr\u00fcn"]
        assert result.summary.assumptions["a byte that is not UTF-8 was replaced"] == 3
        (line,) = (line for line in result.summary.lines() if "UTF-8" in line)
        assert line.endswith("jobs.csv:3)" if not piped else "<stdin>:3)")
