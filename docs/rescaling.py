"""The page on changes of a running job, from the records of two benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from docs.performance import RESULTS, Row
from pliant.tools.report.rendering.text import markdown_table


def rescaling_page() -> str:
    """What changes of a running job cost, from the benchmark's results."""
    measured, machine = _recorded("rescale")
    values = {name: row["value"] for name, row in measured.items()}
    checks, gpu = _recorded("gpu")
    rows = []
    changes = ("1_to_2", "2_to_3", "3_to_2", "2_to_1")
    for change in changes:
        stall, relaunch = values[f"stall_{change}_s"], values[f"relaunch_{change}_s"]
        parts = [values[f"stall_{change}_{part}_s"] for part in ("leave", "meet", "broadcast", "first_step")]
        seconds = [f"{stall:.2f}", *(f"{part:.3f}" for part in parts), f"{relaunch:.1f}"]
        rows.append((change.replace("_to_", " → "), *seconds, f"{relaunch / stall:.0f}"))
    head = ("workers", "stall, s", "leave", "meet", "broadcast", "first step, whole", "relaunch, s", "ratio")
    where = f"{machine['cores']} cores of {machine['cpu']}, torch {machine['versions']['torch']}"
    stalls = [values[f"stall_{change}_s"] for change in changes]
    relaunches = [values[f"relaunch_{change}_s"] for change in changes]
    grown, relaunched = (checks[f"large_{change}_1_to_2_s"]["value"] for change in ("stall", "relaunch"))
    return f"""# What changing a running job costs

A change in place costs a small network {min(stalls):.2f} to {max(stalls):.2f} s, a checkpoint and relaunch
{min(relaunches):.1f} to {max(relaunches):.1f} s; with 5 GB of state on one GPU {grown:.1f} and
{relaunched:.0f} s. Never measured over a network or with several GPUs.

`make bench NAME=rescale` measures it: a network of 12.6 million parameters on CPU slots (gloo),
{where}. A stall is all time in which the workers that stay train no
step, beyond a usual step, and never less than leaving, meeting and the broadcast together; medians of ten
changes. The first step is shown whole. Beside it is the same change by checkpoint and relaunch, from the
request to the first step, medians of three. How it works is in [running-failures.md](running-failures.md).

{markdown_table(head, rows, len(head))}

A worker of three that is killed costs the others {values["stall_kill_s"]:.2f} s: median of ten, at most
{values["stall_kill_max_s"]:.2f} s. At rest the library adds {100 * values["library_overhead_ratio"]:.1f} %
to a step of 10 ms of two workers. The losses of 1 → 2 → 3 → 2 → 1 differ from those of one worker by
{values["loss_relative_error"]:.1g} of them at most.

## On a GPU
Checks of `make gpu-check` on one GPU, torch {gpu["versions"]["torch"]}, each run once. The workers of the
larger job share the GPU and talk through gloo, as NCCL refuses two workers on one GPU. What a step takes
depends on the host, too.

{markdown_table(("what", "s", "on"), [*_on_gpu(checks, gpu)], 3)}

{_found_on_gpu(checks, gpu)}
"""


def _recorded(name: str) -> tuple[Mapping[str, Row], Row]:
    """The rows of a benchmark by name, and its machine."""
    rows, machine = (
        json.loads((RESULTS / f"{name}{end}").read_bytes()) for end in (".json", ".machine.json")
    )
    return {row["name"]: row for row in rows}, machine


def _found_on_gpu(checks: Mapping[str, Row], gpu: Row) -> str:
    """What else the checks say, in two paragraphs of one line each."""
    found = {name: row["value"] for name, row in checks.items()}
    where = {name: _gpu_of(row, gpu) for name, row in checks.items()}
    wrong = max(found["amp_relative_error"], found["compiled_before_relative_error"])
    first = f"""A hundred changes leave no memory behind, on the GPU ({where["changes_device_growth_bytes"]})
or in main memory; a checkpoint stalls training {found["checkpoint_stall_over_dcp_async"]:.2f} times as long
as PyTorch's asynchronous one ({where["checkpoint_stall_over_dcp_async"]}). Checkpoints hold what the kernels
before them wrote; mixed precision and `torch.compile` train as without the library (errors up to
{wrong:.1g}), two workers as one ({found["ranks_relative_error"]:.1g}). A worker that is lost ends its attempt
there. {found["scripts_jobs"]:.0f} scripts train to their end ({where["scripts_jobs"]}), most for one epoch:
the elastic examples and one each of Accelerate, Lightning and transformers."""
    second = f"""Of two processes that share a GPU ({where["shared_large_beside_large"]}), each with 420
million parameters, each keeps {found["shared_large_beside_large"]:.2f} of the speed that it has alone, less
than by taking turns. One with 4 million keeps {found["shared_small_beside_small"]:.2f} beside its like and
{found["shared_small_beside_large"]:.2f} beside a large one, but its speed alone varies by
{found["alone_small_spread"]:.2f}; the large one keeps {found["shared_large_beside_small"]:.2f}."""
    return "\n\n".join(" ".join(text.split()) for text in (first, second))


def _on_gpu(checks: Mapping[str, Row], gpu: Row) -> Iterator[tuple[str, str, str]]:
    """What takes how long on which GPU."""
    shown = (
        ("420 million parameters with AdamW, 1 → 2 in place", ".1f", "large_stall_1_to_2_s"),
        ("of it: the broadcast of 5 GB", ".1f", "large_stall_1_to_2_broadcast_s"),
        ("of it: the first step with two workers", ".1f", "large_stall_1_to_2_first_step_s"),
        ("2 → 1 in place", ".3f", "large_stall_2_to_1_s"),
        ("1 → 2 by checkpoint and relaunch", ".0f", "large_relaunch_1_to_2_s"),
        ("NCCL's group of one worker formed", ".1f", "changes_form_first_s"),
        ("the same, after a hundred changes", ".3f", "changes_form_last_s"),
        ("a step of a transformer of 23 million parameters: library", ".4f", "step_transformer_library_s"),
        ("the same, PyTorch's loader", ".4f", "step_transformer_plain_s"),
        ("a step of a small network on 1,024 samples: library", ".4f", "step_mlp_library_s"),
        ("the same, PyTorch's loader", ".4f", "step_mlp_plain_s"),
        ("the same, all samples on the GPU, no loader", ".4f", "step_mlp_least_s"),
    )
    for what, digits, name in shown:
        row = checks[name]
        yield what, format(row["value"], digits), _gpu_of(row, gpu)


def _gpu_of(row: Row, gpu: Row) -> str:
    """The GPU that a row was measured on: if it names none, that of most rows."""
    name: str = row.get("machine", gpu["gpu"])
    return name.partition(", driver")[0]
