"""Nasty traces, the same ones for a seed, and what becomes of them.

What a lenient import writes, every command has to read: :func:`refusals` asks them.
``python -m benchmarks.parts.nasty_traces OUT [FILES]`` writes a line for each file and way to import it; run
it with two versions of the code to compare them.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import PliantError
from pliant.schemas.io import read_jobs, write_cluster
from pliant.schemas.kinds import validate_file
from pliant.tools.replay.batch import replay_all, tasks_of
from pliant.tools.replay.describe import describe
from pliant.tools.replay.importers import reading, spool
from pliant.tools.replay.importers.run import Selection, import_trace
from pliant.tools.replay.inputs import Sources
from pliant.tools.replay.options import ReplayOptions
from pliant.tools.replay.recorded import LABEL

_ODD: Final = (
    *(
        "",
        " ",
        "None",
        "nUll",
        "n/a",
        "nan",
        "-nan",
        "inf",
        "-1",
        "-0",
        "+3",
        "0",
        "7.5",
        "1e5",
        "1e999",
        "1_0",
    ),
    *(
        "0x10",
        "5.",
        ".5",
        "\u0663",
        "x",
        "\u00e9t\u00e9",
        "a b",
        "a|b",
        "a'b",
        "a\\b",
        "\x07",
        "9" * 23,
        "1e15",
        "0.1",
    ),
    *("2017-10-09T07:01:55Z", "2017-10-09", "20171009", "2017-02-30 00:00:00", "1969-12-31 23:59:59.5"),
    *("2017-10-09 07:01:55.123456", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "1500000000.25", "-5 days"),
    *("1-02:03:04", "02:03", "1:2:3:4", "gres/gpu=2", "gpu:a100:2", "99999999", "\x1c7", "\u00a07", "1e16"),
)
_START_S: Final = 1_500_000_000
_ENDED: Final = ("COMPLETED", "FAILED", "CANCELLED by 1000")
_PACKINGS: Final = (gzip.compress, bz2.compress, lzma.compress)
_COLUMNS: Final = {
    "helios": (
        "job_id=id user=word vc=word gpu_num=gpus cpu_num=gpus node_num=gpus state=word "
        "submit_time=date start_time=date2 end_time=date2 duration=seconds queue=seconds"
    ),
    "acme": (
        "job_id=id user=word node_num=gpus gpu_num=gpus cpu_num=gpus type=word state=word "
        "submit_time=zoned start_time=zoned2 end_time=zoned2 duration=seconds queue=seconds "
        "gpu_time=seconds"
    ),
    "alibaba-v2023": (
        "name=id cpu_milli=gpus memory_mib=gpus num_gpu=gpus gpu_milli=milli gpu_spec=word "
        "qos=word pod_phase=word creation_time=time deletion_time=time2 scheduled_time=time"
    ),
    "alibaba-spot": (
        "job_name=id organization=word gpu_model=word cpu_request=gpus gpu_request=gpus "
        "worker_num=gpus submit_time=time duration=seconds job_type=kind"
    ),
    "csv": (
        "JobID=id Queued=date Started=date2 Ended=date3 Cards=gpus Who=word Note=word Team=word "
        "Rank=gpus Ran=seconds Waited=seconds"
    ),
    "tiresias": (
        "job_id=id num_gpu=gpus submit_time=time iterations=gpus model_name=model "
        "duration=seconds interval=seconds"
    ),
    "philly": ("timestamp=date duration=seconds num_gpus=gpus gpu_time=seconds cluster=word"),
    "elasticflow": (
        "job_id=id submission_time=time num_iteration=gpus model_name=model deadline=time2 "
        "batch_size=gpus num_gpu=gpus duration=seconds"
    ),
    "gavel": "type=model command=word steps=gpus needs_data=gpus total=gpus arrival=time gpus=gpus",
    "slurm": (
        "JobID=slurm_id User=word State=state Submit=date_t Start=date2_t ElapsedRaw=seconds "
        "AllocTRES=tres Partition=word QOS=word Priority=gpus NNodes=gpus NodeList=word "
        "TimelimitRaw=gpus Suspended=spelled End=date3_t Elapsed=spelled ReqGRES=gres "
        "JobName=word Cluster=vc"
    ),
}
"""Columns and what is in them, by format."""
_MAPPINGS: Final = (
    "id=jobid,submit=queued,start=started,end=ended,gpus=cards,user=who",
    "id=jobid,submit=queued,start=started,duration=ran,gpus=cards,team=team,priority=rank,note=note,unit=h",
    "id=jobid,submit=queued,wait=waited,duration=ran,gpus=cards,workers=rank,model=note,zone=+08:00,unit=ms",
    "id=jobid,submit=queued,duration=ran,gpus=cards,zone=Europe/Berlin,unit=min",
)
_SELECTIONS: Final[Sequence[dict[str, Any]]] = (
    {},
    {},
    {},
    {"sample": 0.5},
    {"begin": "1h", "end": "2h"},
    {"users": ["ann"]},
    {"groups": ["ann", "bob"]},
    {"scale_time": 0.37},
)


@dataclass
class NastyTrace:
    """One file, and how it is imported."""

    kind: str
    path: Path
    options: dict[str, Any] = field(default_factory=dict)
    bytes_of_a_block: int = 1 << 21
    in_memory: int = 1 << 25

    def remove(self) -> None:
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()


KINDS: Final = (*_COLUMNS, "swf", "philly-json", "slurm-json", "pai")
FORMATS: Final = {
    **{kind: (kind,) for kind in (*_COLUMNS, "swf", "pai")},
    "philly": ("philly", "philly-json"),
    "slurm": ("slurm", "slurm", "slurm-json"),
}
"""The kinds of files of each format, in turn."""


def traces(folder: Path, seeds: Sequence[int], kinds: Sequence[str] = KINDS) -> Iterator[NastyTrace]:
    """A file for each seed, of the kinds in turn."""
    for seed in seeds:
        rng = random.Random(seed)  # noqa: S311
        kind = kinds[seed % len(kinds)]
        trace = NastyTrace(kind.removesuffix("-json"), folder / f"{seed}-{kind}.csv")
        trace.options["selection"] = Selection(**rng.choice(_SELECTIONS))
        trace.bytes_of_a_block = rng.choice((1, 70, 300, 1 << 21))
        trace.in_memory = rng.choice((100, 3000, 1 << 25))
        if kind == "csv":
            trace.options["mapping"] = rng.choice(_MAPPINGS)
        elif kind in ("slurm", "helios", "philly-json") and rng.random() < 0.2:
            trace.options["zone"] = rng.choice(("Europe/Berlin", "America/Los_Angeles", "-05:00"))
        if kind == "pai":
            trace.path.mkdir()
            for name, data in _pai(rng):
                (trace.path / name).write_bytes(data)
        else:
            writers = {"swf": _swf, "philly-json": _philly_json, "slurm-json": _slurm_json}
            data = writers.get(kind, _table)(kind, rng)
            trace.path.write_bytes(rng.choice(_PACKINGS)(data) if rng.random() < 0.05 else data)
        yield trace


def refusals(trace: NastyTrace, folder: Path) -> list[str]:
    """What commands say against the jobs that a lenient import wrote; empty: all take them."""
    out = folder / "jobs.jsonl"
    out.unlink(missing_ok=True)

    def write(path: Path) -> None:
        with _small_blocks(trace), suppress(PliantError):
            import_trace(trace.kind, [str(trace.path)], str(path), lenient=True, **trace.options)

    commands: dict[str, Callable[[Path], object]] = {
        "import": write,
        "validate": validate_file,
        "describe": _describe,
        "replay": _replay,
    }
    return [text for name, command in commands.items() if (text := _refusal(name, command, out))]


def _refusal(name: str, command: Callable[[Path], object], path: Path) -> str:
    """What a command says against a file, if it is there; a crash is a refusal, too."""
    try:
        if name == "import" or path.exists():
            command(path)
    except Exception as error:  # noqa: BLE001
        return f"{name}: {type(error).__name__}: {error}"
    return ""


def _describe(path: Path) -> None:
    describe(read_jobs(path)).lines()


def _replay(path: Path) -> None:
    """First come, first served, and where all is recorded, as it was."""
    recorded = [bool(job.labels.get(LABEL)) for job in read_jobs(path)]
    cluster = path.with_name("cluster.json")
    write_cluster(Cluster(nodes=(Node(name="n{}", gpus=8, count=64),)), cluster)
    names = ["fifo", "recorded"] if all(recorded) else ["fifo"]
    sources = Sources(str(path), None if any(recorded) else str(cluster))
    replay_all(sources, tasks_of(ReplayOptions(), names, [], str(path.with_name("replays")), timing=None))


def outcomes(trace: NastyTrace) -> list[str]:
    """What comes of it, strict and lenient: what is wrong, or the account and a hash of what was written."""
    with _small_blocks(trace), tempfile.TemporaryDirectory() as folder:
        return [_outcome(trace, Path(folder) / "out", lenient=lenient) for lenient in (False, True)]


def _outcome(trace: NastyTrace, out: Path, *, lenient: bool) -> str:
    told: list[int] = []
    try:
        summary = import_trace(
            trace.kind,
            [str(trace.path)],
            str(out),
            lenient=lenient,
            progress=lambda done, _: told.append(done),
            **trace.options,
        )
    except PliantError as error:
        found = f"{type(error).__name__}: {error}"
    else:
        digest = hashlib.sha256(out.read_bytes()).hexdigest()
        found = "\n".join((*summary.lines(), f"{told}", digest))
    return found.replace(str(trace.path.parent), "").replace(str(out), "OUT")


@contextmanager
def _small_blocks(trace: NastyTrace) -> Iterator[None]:
    settings = (
        (reading, "_CSV_BLOCK", trace.bytes_of_a_block),
        (reading, "_RECORDS", max(1, trace.bytes_of_a_block // 70)),
        (spool, "IN_MEMORY", trace.in_memory),
    )
    before = [getattr(module, name) for module, name, _ in settings]
    for module, name, value in settings:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(settings, before, strict=True):
            setattr(module, name, value)


def _table(kind: str, rng: random.Random) -> bytes:
    """Mostly good rows; some files have no odd field, some many."""
    columns = dict(pair.split("=") for pair in _COLUMNS[kind].split())
    if kind == "philly" or rng.random() < 0.7:
        names = list(columns)
    else:
        names = rng.sample(list(columns), rng.randint(max(1, len(columns) - 3), len(columns)))
    header = [name.upper() if kind in ("csv", "acme") and rng.random() < 0.2 else name for name in names]
    delimiter = {"slurm": "|", "gavel": "\t"}.get(kind, ",")
    odd = rng.choice((0, 0, 0.01, 0.05, 0.3))
    fold = rng.choice((0.0, 0.0, 0.05))
    rows = [_row(number, [columns[name] for name in names], rng, odd) for number in range(rng.randrange(120))]
    if rng.random() < 0.5:
        rng.shuffle(rows)
    if rng.random() < 0.3 and rows:
        rows += rng.choices(rows, k=5)
    lines = [] if kind == "gavel" else [delimiter.join(header)]
    for row in rows:
        change = rng.random()
        if change < fold / 3:
            row.pop()
        elif change < fold * 2 / 3:
            row.append("more")
        elif change < fold:
            row[rng.randrange(len(row))] = rng.choice(('"q,q"', '"two\nlines"', '"', '""', 'a"b'))
        lines.append(delimiter.join(row))
        if rng.random() < fold / 4:
            lines.append(rng.choice(("", " ", "\r")))
    return _encoded(lines, rng, fold)


def _encoded(lines: Sequence[str], rng: random.Random, fold: float) -> bytes:
    ends = rng.choice(("\n", "\n", "\n", "\r\n", "\r" if fold else "\n"))
    text = ends.join(lines) + (ends if rng.random() < 0.8 else "")
    data = text.encode()
    if rng.random() < 0.1:
        data = b"\xef\xbb\xbf" + data
    if fold and rng.random() < 0.1 and data:
        place = rng.randrange(len(data))
        data = data[:place] + rng.choice((b"\xff", b"\x00", b"\r", b"\n")) + data[place:]
    return data


def _row(number: int, kinds: Sequence[str], rng: random.Random, odd: float) -> list[str]:
    submit_s = _START_S + 60 * number + rng.choice((0, 0, 0.5))
    start_s = submit_s + rng.randrange(0, 3600)
    end_s = start_s + rng.randrange(0, 9999)
    makes: dict[str, Callable[[], object]] = {
        "id": lambda: rng.choice((number, number, f"job-{number}")),
        "slurm_id": lambda: rng.choice(
            (number, number, number // 4, f"{number // 3}+{number % 3}", f"{number}_1")
        ),
        "vc": lambda: rng.choice(("a", "a", "a", "b")),
        "word": lambda: rng.choice(("ann", "bob", "vc1", "", "-", "x y")),
        "model": lambda: rng.choice(("vgg19", "resnet50")),
        "kind": lambda: rng.choice(("HP", "Spot")),
        "state": lambda: rng.choice((*_ENDED, "RUNNING", "REQUEUED", "NODE_FAIL", "RESIZING")),
        "gpus": lambda: rng.choice((0, 1, 1, 2, 4, 8, "8.0", 64)),
        "milli": lambda: rng.choice((1000, 1000, 500, 0)),
        "seconds": lambda: rng.choice(
            (rng.randrange(9999), rng.randrange(9999), f"{rng.random() * 100:.3f}")
        ),
        "spelled": lambda: rng.choice(("00:00:00", "1-00:00:07", "01:02:03", 17)),
        "tres": lambda: rng.choice(
            (f"cpu=8,gres/gpu={rng.randrange(5)}", "billing=1,gres/gpu:a100=2,gres/gpu=2")
        ),
        "gres": lambda: rng.choice(("gpu:2", "gpu:a100:1", "")),
        "time": lambda: submit_s,
        "time2": lambda: end_s,
        "date": lambda: _clock(submit_s),
        "date2": lambda: _clock(start_s),
        "date3": lambda: _clock(end_s),
        "date_t": lambda: _clock(submit_s).replace(" ", "T"),
        "date2_t": lambda: rng.choice((_clock(start_s).replace(" ", "T"),) * 6 + ("Unknown", "None")),
        "date3_t": lambda: _clock(end_s).replace(" ", "T"),
        "zoned": lambda: f"{_clock(submit_s)}+08:00",
        "zoned2": lambda: f"{_clock(start_s)}+08:00",
    }
    return [rng.choice(_ODD) if rng.random() < odd else str(makes[kind]()) for kind in kinds]


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(" ").removesuffix("+00:00")


def _pai(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Both tables, some of whose jobs have no tasks, or tasks no job."""
    tables = {
        "pai_job_table": (
            "job_name=id inst_id=word user=word status=word start_time=time end_time=time2",
            40,
        ),
        "pai_task_table": (
            "job_name=id inst_num=gpus start_time=time end_time=time2 plan_gpu=milli gpu_type=word",
            80,
        ),
    }
    for name, (stated, most) in tables.items():
        columns = dict(pair.split("=") for pair in stated.split())
        odd = rng.choice((0, 0, 0.01, 0.05))
        rows = [
            _row(number % 40, list(columns.values()), rng, odd) for number in range(rng.randrange(1, most))
        ]
        yield f"{name}.header", (",".join(columns) + "\n").encode()
        yield f"{name}.csv", _encoded([",".join(row) for row in rows], rng, rng.choice((0.0, 0.05)))


def _slurm_json(_kind: str, rng: random.Random) -> bytes:
    odd = rng.choice((0, 0, 0.01, 0.05))

    def perhaps(value: Any) -> Any:
        return rng.choice((None, -1, "", [], {}, 1e300, *_ODD)) if rng.random() < odd else value

    jobs = []
    for number in range(rng.randrange(60)):
        submit_s = _START_S + 60 * number
        start_s = submit_s + rng.choice((0, 60, -30, 900))
        seconds = rng.randrange(5000)
        times = {"submission": submit_s, "start": rng.choice((start_s, start_s, 0)), "elapsed": seconds}
        gpus = [{"type": "gres", "name": rng.choice(("gpu", "gpu:a100")), "count": perhaps(rng.randrange(5))}]
        job = {
            "job_id": perhaps(number // rng.choice((1, 1, 3))),
            "cluster": perhaps(rng.choice("aab")),
            "user": perhaps("ann"),
            "state": {"current": perhaps([rng.choice((*_ENDED, "RUNNING", "REQUEUED"))])},
            "time": {name: perhaps(value) for name, value in times.items()},
            "tres": {"allocated": gpus, "requested": gpus},
        }
        if rng.random() < 0.2:
            job["het"] = {"job_id": number // 2, "job_offset": {"set": True, "number": number % 2}}
        jobs.append(job)
    return json.dumps({"meta": {}, "jobs": jobs, "errors": []}, indent=rng.choice((None, 1))).encode()


def _swf(_kind: str, rng: random.Random) -> bytes:
    odd, lines = rng.choice((0, 0, 0.01, 0.05)), ["; Version: 2.2", ";"]
    fold = rng.choice((0.0, 0.0, 0.05))
    for number in range(rng.randrange(120)):
        words: list[object] = [number + 1, 60 * number, rng.randrange(-1, 900), rng.randrange(-1, 9999)]
        words += [rng.randrange(-1, 9), -1, -1, rng.randrange(9), rng.choice((-1, 3600)), -1]
        words += [rng.randrange(-1, 6), rng.randrange(-1, 5), 1, -1, rng.choice((-1, 2)), 1, -1, -1]
        texts = [rng.choice(_ODD) if rng.random() < odd else str(word) for word in words]
        if rng.random() < fold:
            texts = texts[:-1]
        lines.append(rng.choice((" ", " ", "  ", "\t")).join(texts))
        if rng.random() < fold:
            lines.append(rng.choice(("", "  ", "; a comment", " ;x", "\x0c", "\x85", "\u2028")))
    if rng.random() < 0.4:
        rng.shuffle(lines)
    return _encoded(lines, rng, fold)


def _philly_json(_kind: str, rng: random.Random) -> bytes:
    odd = rng.choice((0, 0, 0.01, 0.05))

    def perhaps(value: Any) -> Any:
        return rng.choice((None, 3, "", [], {}, True, 1.5, *_ODD)) if rng.random() < odd else value

    def attempt(start_s: int) -> Any:
        detail = [{"ip": "m1", "gpus": perhaps([f"gpu{n}" for n in range(rng.choice((1, 1, 2, 8, 0)))])}]
        end_s = start_s + rng.randrange(-100, 5000)
        start = None if rng.random() < 0.05 else _clock(start_s)
        end = "None" if rng.random() < 0.05 else _clock(end_s)
        made = {
            "start_time": perhaps(start),
            "end_time": perhaps(end),
            "detail": perhaps(detail * rng.randrange(4)),
        }
        if rng.random() < odd:
            del made[rng.choice(list(made))]
        return perhaps(made)

    jobs = []
    for number in range(rng.randrange(60)):
        attempts = [
            attempt(_START_S + 60 * number + 900 * each) for each in range(rng.choice((0, 1, 1, 1, 3)))
        ]
        made = {
            "status": perhaps("Pass"),
            "vc": perhaps(rng.choice(("ann", "b"))),
            "jobid": perhaps(f"application_{number}"),
            "attempts": perhaps(attempts),
            "submitted_time": perhaps(_clock(_START_S + 60 * number)),
            "user": perhaps(rng.choice(("ann", "bob"))),
        }
        if rng.random() < odd:
            del made[rng.choice(list(made))]
        jobs.append(made)
    if rng.random() < 0.5:
        rng.shuffle(jobs)
    text = json.dumps(jobs, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5)
    if rng.random() < odd * 5 and text:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(("]", "{", ",", '"', "x", "\n\n")) + text[place + 1 :]
    return text.encode()


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1500
    with tempfile.TemporaryDirectory() as name, Path(sys.argv[1]).open("w") as out:
        for each in traces(Path(name), range(count)):
            for found in outcomes(each):
                out.write(f"{each.path.name}: {json.dumps(found)}\n")
            each.remove()
