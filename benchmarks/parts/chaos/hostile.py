"""Job files that anybody could write, and fields of jobs that are wrong in some way."""

import json
from pathlib import Path
from typing import Any

HUGE, TINY = 1e308, 5e-324
HOSTILE: list[dict[str, Any]] = [
    *({"env": {name: "x"}} for name in ("", "=", "A=B", "A\0B", "A\nB", "ä", "PLIANT_SLOT", "PATH")),
    *({"env": {"A": value}} for value in ("\0", "\n", "x" * 300_000, "ä", "")),
    *({"command": command} for command in ([], [""], ["\0"], ["x" * 200_000], ["a"] * 300_000, ["ä\n"])),
    *({"workdir": folder} for folder in ("", "nowhere", "\0", "x" * 5000, "/dev/null", "..")),
    *(
        {"work": {form: size}}
        for form in ("samples", "iterations", "gpu_seconds")
        for size in (HUGE, TINY, 1e18)
    ),
    *({"work": {"epochs": size, "dataset_size": 2**53}} for size in (HUGE, TINY, 1e18)),
    {"work": {"gpu_seconds": 5.0}, "batch": {"size": 1}, "gpus": {"requested": 2}},
    {"work": {"gpu_seconds": 5.0}, "batch": {"size": 2**31, "per_gpu_max": 1}},
    {"work": None},
    *({"gpus": {"requested": count}} for count in (3, 4, 10**7, 10**30)),
    {"gpus": {"requested": 1, "min": 1, "max": 10**7}, "elastic": "size+batch", "batch": {"size": 2**31}},
    *({"submit_time": time} for time in (HUGE, 1e18, TINY)),
    *({"priority": value} for value in (HUGE, -HUGE, 1e18, -1e18)),
    *({"seed": value} for value in (2**64, 2**64 - 1, 10**400)),
    *({"checkpoint_seconds": value} for value in (HUGE, TINY)),
    {"lr": HUGE},
    {"lr": TINY},
    {"utility": {"shape": "sigmoid", "value": HUGE, "decay": HUGE, "target": HUGE}},
    {"labels": {"": "\0"}},
    {"user": "\0\n"},
    {"model": "\0"},
]


def written(folder: Path, job_id: str, command: str, /, **fields: Any) -> Path:
    """A job file as anybody could write it, with one job of these fields."""
    usual = {"submit_time": 0, "model": "m", "gpus": {"requested": 1}, "work": {"samples": 10.0}}
    record = {"id": job_id, **usual, "command": command.split(), "batch": {"size": 8}, **fields}
    path = folder / f"{job_id}.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return path
