"""Which GPUs of this machine may be used: those the environment leaves, of those the driver reports."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from pliant.schemas.errors import ServiceMissingError


def visible_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them: what ``env`` has there, else the numbers of all.

    As CUDA reads that variable, a GPU of a negative number, and what stands after it, does not count.

    :raises ServiceMissingError: as :func:`count_gpus`.
    """
    there = count_gpus()
    if "CUDA_VISIBLE_DEVICES" not in env:
        return tuple(map(str, range(there)))
    names = [name.strip() for name in env["CUDA_VISIBLE_DEVICES"].split(",")]
    usable = takewhile(lambda name: name and not name.startswith("-"), names)
    return tuple(usable)[:there]


def count_gpus() -> int:
    """GPUs that the driver reports.

    :raises ServiceMissingError: the NVML bindings are not installed, or there is no driver.
    """
    try:
        import pynvml
    except ImportError:
        raise ServiceMissingError(
            "GPU slots are counted with nvidia-ml-py, which is not installed: pip install 'pliant[gpu]', "
            'or use a cluster with "slots": "cpu"'
        ) from None
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise ServiceMissingError(f"the NVIDIA driver cannot be asked for its GPUs: {error}") from error
