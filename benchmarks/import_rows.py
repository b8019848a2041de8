"""Rows a second that the importers read, of files with 100,000 rows written here in each format.

A rate is rows per second of CPU time, reading, checking, ordering and writing included. The peak is that of
a fresh process which imports the Philly log. ``python -m benchmarks.import_rows`` renews these rows of the
benchmark replay_speed alone.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure
from pliant.tools.replay.importers.run import import_trace

MEASURES: Final = ("tools/replay/importers",)

ROWS: Final = 100_000
VISITS: Final = 5
SINGLE_CSV: Final = ("helios", "acme", "alibaba-v2023", "alibaba-spot", "csv", "tiresias")
OVER_PYARROW: Final = 0.2
SEED: Final = 20250117
_START_S: Final = 1_500_000_000
_PEAK: Final = """
import sys
from pathlib import Path
from pliant.tools.replay.importers.run import import_trace
import_trace("philly", [sys.argv[1]], sys.argv[2])
status = Path("/proc/self/status").read_text().split()
print(int(status[status.index("VmHWM:") + 1]) / 1024)
"""


def figures(rows: int = ROWS, visits: int = VISITS) -> list[Figure]:
    """A rate per format, those of single CSV files over what pyarrow reads of the same file (columns, no
    jobs), and the peak memory of one of them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [_of_format(kind, folder / kind, rows, visits) for kind in WRITERS]
        ratios = [ratio for _, ratio in found if ratio is not None]
        return [*(rate for rate, _ in found), *ratios, _peak(folder / "philly", folder / "peak.jsonl")]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(rows=50, visits=1)


def write(kind: str, folder: Path, rows: int, seed: int = SEED) -> tuple[Path, str | None]:
    """Write an input of about ``rows`` rows; returns its path and the workload beside it, if there is one."""
    folder.mkdir(parents=True)
    return WRITERS[kind](folder, rows, random.Random(seed))  # noqa: S311


def _of_format(kind: str, folder: Path, rows: int, visits: int) -> tuple[Figure, Figure | None]:
    """The rate, and if the input is one CSV file its ratio; the least CPU time of several takes turns."""
    path, workload = write(kind, folder, rows)
    out = folder / "out" if workload else folder / "out.jsonl"
    spent_s, arrow_s, read = [], [], 0
    for _ in range(visits if kind in SINGLE_CSV else 1):
        before_s = time.process_time()
        read = import_trace(kind, [str(path)], str(out), workload=workload, mapping=MAPPINGS.get(kind)).rows
        spent_s.append(time.process_time() - before_s)
        if kind in SINGLE_CSV:
            arrow_s.append(_arrow_s(path))
    rate = Figure(f"import_rows_per_s_{_name(kind)}", round(read / max(min(spent_s), 1e-3)), "rows/s")
    if not arrow_s:
        return rate, None
    ratio = round(min(arrow_s) / min(spent_s), 3)
    return rate, Figure(
        f"{_name(kind)}_import_rows_per_s_over_pyarrow", ratio, "ratio", OVER_PYARROW, at_least=True
    )


def _name(kind: str) -> str:
    return kind.replace("-", "_")


def _arrow_s(path: Path) -> float:
    from pyarrow.csv import read_csv

    before_s = time.process_time()
    read_csv(path)
    return time.process_time() - before_s


def _peak(folder: Path, out: Path) -> Figure:
    command = [sys.executable, "-c", _PEAK, str(folder / "cluster_job_log"), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Figure("import_philly_peak_mb", round(float(done.stdout), 1), "MB")


def _clock(time_s: float, separator: str = " ") -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime(f"%Y-%m-%d{separator}%H:%M:%S")


def _lines(path: Path, lines: Iterable[str]) -> Path:
    with path.open("w") as stream:
        stream.writelines(line + "\n" for line in lines)
    return path


def _life(number: int, rng: random.Random) -> tuple[int, int, int]:
    """Submission, start and end of a job, s."""
    submit_s = _START_S + 60 * number
    start_s = submit_s + rng.randrange(3600)
    return submit_s, start_s, start_s + 1 + int(rng.expovariate(1 / 3600))


def _philly(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    path = folder / "cluster_job_log"
    with path.open("w") as stream:
        for number in range(rows):
            stream.write(",\n" if number else "[\n")
            json.dump(_philly_job(number, rng), stream, indent=1)
        stream.write("\n]\n")
    return path, None


def _philly_job(number: int, rng: random.Random) -> dict[str, object]:
    submit_s, start_s, end_s = _life(number, rng)
    gpus = [f"gpu{index}" for index in range(rng.choice((1, 1, 2, 4, 8)))]
    detail = [{"ip": f"m{rng.randrange(500)}", "gpus": gpus}]
    times = {"start_time": _clock(start_s), "end_time": _clock(end_s)}
    return {
        "status": rng.choice(("Pass", "Killed", "Failed")),
        "vc": f"vc{rng.randrange(15)}",
        "jobid": f"application_{number}",
        "attempts": [{**times, "detail": detail}],
        "submitted_time": _clock(submit_s),
        "user": f"u{rng.randrange(300)}",
    }


def _helios(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        times = ",".join(map(_clock, (submit_s, start_s, end_s)))
        size = f"{rng.randrange(9)},8,1"
        return f"{number},u,vc,{size},COMPLETED,{times},{end_s - start_s},{start_s - submit_s}"

    header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
    return _lines(folder / "cluster_log.csv", [header, *map(line, range(rows))]), None


def _pai(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    """As many tasks as jobs, half of the rows each."""
    jobs, tasks = [], []
    for number in range(rows // 2):
        submit_s, start_s, end_s = _life(number, rng)
        jobs.append(f"job{number},i{number},u,Terminated,{submit_s}.0,{end_s}.0")
        share = rng.choice((25, 50, 100, 200))
        tasks.append(f"job{number},worker,1.0,Terminated,{start_s}.0,{end_s}.0,600.0,29.3,{share}.0,T4")
    _lines(folder / "pai_job_table.header", ["job_name,inst_id,user,status,start_time,end_time"])
    names = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
    _lines(folder / "pai_task_table.header", [names])
    _lines(folder / "pai_job_table.csv", jobs)
    _lines(folder / "pai_task_table.csv", tasks)
    return folder, None


def _alibaba(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        return f"pod-{number},4000,8192,{rng.randrange(3)},1000,,LS,Succeeded,{submit_s},{end_s},{start_s}"

    header = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
        "scheduled_time"
    )
    return _lines(folder / "openb_pod_list.csv", [header, *map(line, range(rows))]), None


def _slurm(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        tres = f"billing=8,cpu=8,gres/gpu:a100={number % 8 + 1},gres/gpu={number % 8 + 1},node=1"
        times = f"{_clock(submit_s, 'T')}|{_clock(start_s, 'T')}|{end_s - start_s}"
        return f"{number}|u{number % 50}|COMPLETED|{times}|{tres}"

    header = "JobID|User|State|Submit|Start|ElapsedRaw|AllocTRES"
    return _lines(folder / "sacct.txt", [header, *map(line, range(rows))]), None


def _tiresias(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
    jobs = (f"{n},{1 << n % 4},{30 * n},500,vgg16,{rng.randrange(60, 9000)},30" for n in range(rows))
    return _lines(folder / "jobs.csv", [header, *jobs]), None


def _gavel(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        steps = rng.randrange(1000, 1_000_000)
        fields = ("LM (batch size 20)", "main.py", "--steps", "1", steps, f"{6 * number}.0", 1 << number % 4)
        return "\t".join(map(str, fields))

    return _lines(folder / "jobs.trace", map(line, range(rows))), None


def _shockwave(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        steps, mode = rng.randrange(1000, 1_000_000), ("static", "accordion", "gns")[number % 3]
        fields = (
            "LM (batch size 20)",
            "main.py",
            "lm",
            "--steps",
            "1",
            steps,
            1 << number % 3,
            mode,
            "1",
            "-1",
        )
        return "\t".join(map(str, (*fields, 600, 6 * number)))

    return _lines(folder / "jobs.trace", map(line, range(rows))), None


def _ones(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    header = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"
    jobs = (f"{30 * n},resnet18,cifar,20000,10,256,0.005,0.08,0.7,{rng.randrange(1, 9)}" for n in range(rows))
    return _lines(folder / "trace.csv", [header, *jobs]), None


def _elasticflow(folder: Path, rows: int, rng: random.Random) -> tuple[Path, str]:
    inner = folder / "throughputs_A100"
    inner.mkdir()
    _lines(inner / "vgg16.csv", ["global_batch_size,1,2,4,8", "64,5.05,9.03,14.8,19.3"])

    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        steps = rng.randrange(1000, 1_000_000)
        return f"{number},{submit_s},{steps},vgg16,{end_s},64,{1 << number % 4},{end_s - start_s}"

    header = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"
    workload = _lines(folder / "cluster.csv", [header, *map(line, range(rows))])
    return folder, workload.name


def _acme(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        times = ",".join(f"{_clock(time_s)}+08:00" for time_s in (submit_s, start_s, end_s))
        return f"{number},u,1,{rng.randrange(9)},8,Evaluation,COMPLETED,{times},{end_s - start_s},9,99"

    times = "submit_time,start_time,end_time,duration,queue,gpu_time"
    header = f"job_id,user,node_num,gpu_num,cpu_num,type,state,{times}"
    return _lines(folder / "trace_seren.csv", [header, *map(line, range(rows))]), None


def _spot(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        kind = rng.choice(("HP", "Spot"))
        times = f"{60 * number},{rng.randrange(1, 9999)}"
        return f"job{number},org{number % 9},A100,8,{number % 8 + 1},2,{times},{kind}"

    header = (
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
    )
    return _lines(folder / "job_info_df.csv", [header, *map(line, range(rows))]), None


def _swf(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        times = f"{submit_s - _START_S} {start_s - submit_s} {end_s - start_s}"
        return f"{number + 1} {times} {number % 8 + 1} -1 -1 8 3600 -1 1 {number % 50} 1 -1 1 1 -1 -1"

    return _lines(folder / "log.swf", ["; Version: 2.2", *map(line, range(rows))]), None


def _csv(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    def line(number: int) -> str:
        submit_s, start_s, end_s = _life(number, rng)
        return (
            f"{number},{_clock(submit_s)},{_clock(start_s)},{_clock(end_s)},{number % 8 + 1},u{number % 50}"
        )

    return _lines(
        folder / "jobs.csv", ["JobID,Queued,Started,Ended,Cards,Who", *map(line, range(rows))]
    ), None


MAPPINGS: Final = {"csv": "id=jobid,submit=queued,start=started,end=ended,gpus=cards,user=who"}
"""By format, where one needs a mapping."""


def _faults(folder: Path, rows: int, rng: random.Random) -> tuple[Path, None]:
    """As many faults as repairs, of 400 servers in turn."""
    kinds = ("fault_start", "fault_end")
    events = (
        {
            "node_id": f"s{n // 2 % 400}",
            "event_time": n / 100 + rng.random() / 200,
            "event_type": kinds[n % 2],
        }
        for n in range(rows)
    )
    path = folder / "faults.json"
    path.write_text(json.dumps(list(events), indent=1))
    return path, None


def _measured(folder: Path, rows: int, rng: random.Random) -> tuple[Path, str]:
    """One application; nearly all rows are step times."""
    model = folder / "traces" / "cifar10"
    model.mkdir(parents=True)
    places = ("4", "24", "1234")
    steps = (f"{rng.choice(places)},{n + 1},{1 + rng.random()},{rng.random()}" for n in range(rows))
    _lines(model / "placements.csv", ["placement,local_bsz,step_time,sync_time", *steps])
    epochs = (f"{100 * n}.0,{100 * n},0.5,1.0,2.0" for n in range(1, 11))
    _lines(model / "validation-128.csv", ["progress,iteration,metric,grad_sqr,grad_var", *epochs])
    workload = folder / "workload.csv"
    _lines(workload, ["name,time,application,num_replicas,batch_size", "cifar10-0,53,cifar10,4,128"])
    return folder, workload.name


WRITERS: Final[dict[str, Callable[[Path, int, random.Random], tuple[Path, str | None]]]] = {
    "philly": _philly,
    "helios": _helios,
    "acme": _acme,
    "pai": _pai,
    "alibaba-v2023": _alibaba,
    "alibaba-spot": _spot,
    "slurm": _slurm,
    "swf": _swf,
    "csv": _csv,
    "tiresias": _tiresias,
    "gavel": _gavel,
    "shockwave": _shockwave,
    "ones": _ones,
    "elasticflow": _elasticflow,
    "faults": _faults,
    "pollux": _measured,
    "sia": _measured,
}


if __name__ == "__main__":
    measured = figures()
    figure.renew("replay_speed", measured)
    for row in measured:
        print(f"{row.name:50s} {row.value:.4g}")
