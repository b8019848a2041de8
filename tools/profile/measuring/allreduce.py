"""Inside the workers: time all-reduces by their number of weights. torchrun starts it as a module.

Each sums one float32 a weight over the workers, as DistributedDataParallel does for gradients, by NCCL on
GPUs and gloo on CPU slots.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from pliant.tools.profile.measuring.request import (
    MeasurementRequest,
    Point,
    Rounds,
)
from pliant.tools.profile.measuring.worker import (
    Device,
    OtherLoad,
    OutcomeRecorder,
    device_of,
    own_share,
    request_from_env,
)


def main() -> None:
    request = request_from_env()
    if request is None:
        raise SystemExit("started by hand: this module is a part of `pliant profile --allreduce`")
    device = _join()
    meter = device_of(device, request.memory_limit)
    record = OutcomeRecorder(request, dist.get_rank(), 0, meter)
    record.start()
    known = {point.weights for point in request.known}
    for weights in request.weights:
        if weights not in known:
            _visit(weights, meter, request, record)
    rounds = Rounds(request)
    while due := rounds.next(record.points):
        for point in due:
            _visit(point.weights, meter, request, record)
    record.finish()
    dist.destroy_process_group()


def _join() -> torch.device:
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def _visit(weights: int, meter: Device, request: MeasurementRequest, record: OutcomeRecorder) -> None:
    point = Point(local_batch=0, weights=weights)
    record.begin(point)
    gradients = torch.zeros(weights, device=meter.torch_device)
    meter.reset_peak()
    load = OtherLoad(meter.torch_device)
    step_s = _times(partial(dist.all_reduce, gradients), meter, request, record.is_fresh)
    share = load.share()
    measured = {"step_s": step_s, "peak_memory": meter.peak(), "busy_share": share}
    record.end(point.model_copy(update={**measured, "own_share": own_share(meter, load)}))


def _times(
    action: Callable[[], object], meter: Device, request: MeasurementRequest, fresh: bool
) -> tuple[float, ...]:
    count = request.rounds(_repeat(action, meter, max(1, request.warmup))[-1])
    if fresh:
        _repeat(action, meter, count)
    return tuple(_repeat(action, meter, count))


def _repeat(action: Callable[[], object], meter: Device, count: int) -> list[float]:
    marks = []
    for _ in range(count):
        meter.align()
        begin = meter.mark()
        action()
        marks.append((begin, meter.mark()))
    return meter.seconds(marks)


if __name__ == "__main__":
    main()
