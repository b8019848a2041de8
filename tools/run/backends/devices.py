"""The GPUs of this machine that the NVIDIA driver lists, and those of them that may be used.

A GPU in MIG mode stands for its instances, which are devices with names and memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.backends.protocol import bad_cluster

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or an instance of one in MIG mode."""

    name: str
    """Its UUID, which CUDA_VISIBLE_DEVICES takes independently of CUDA's order of devices."""
    card: str
    """UUID of the GPU that it is or is an instance of."""
    number: int
    """Of that GPU, in the driver's order."""
    model: str
    """In the driver's words: ``NVIDIA A100-SXM4-40GB``, of an instance ``… MIG 1g.5gb``."""
    memory: int
    """Bytes."""
    place: str = ""
    """Of an instance, its name by its numbers, as older drivers and schedulers have it: ``MIG-GPU-…/1/0``."""


@dataclass(frozen=True, slots=True)
class GpuListing:
    """What the driver says."""

    driver: str
    gpus: tuple[Gpu, ...]
    faults: tuple[str, ...] = ()
    """GPUs that cannot be used, with reasons."""


def visible_gpus(env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that ``env`` leaves to CUDA, in its order."""
    return visible_of(list_gpus().gpus, env.get(VISIBLE))


def visible_of(gpus: Sequence[Gpu], names: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names (None if it is not set: all of them).

    As for CUDA, the first name that is not a GPU's ends the list.
    """
    if names is None:
        return tuple(gpus)
    found: dict[Gpu, None] = {}
    for name in names.split(","):
        gpu = named(gpus, name.strip())
        if gpu is None:
            break
        found[gpu] = None
    return tuple(found)


def named(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    """The GPU with that number, UUID or unique beginning of a UUID, or the instance with these numbers.

    A number or the UUID of a GPU in MIG mode means its first instance, as for CUDA.
    """
    if name.isdecimal():
        return next((gpu for gpu in gpus if str(gpu.number) == name), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    if "/" in name and (there := next((gpu for gpu in gpus if name in (gpu.name, gpu.place)), None)):
        return there
    meant = {gpu.name if name.startswith("MIG-") else gpu.card: gpu for gpu in reversed(gpus)}
    found = [gpu for uuid, gpu in meant.items() if uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def devices_by_node(cluster: Cluster, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
    """The names of each node's GPUs: those that it states, else the next that no other node states.

    :raises BadInputError: a stated GPU does not exist or is stated twice, or there are too few.
    """
    if cluster.total_gpus > len(gpus):
        text = f"{cluster.total_gpus} GPUs on the local backend, this machine has {len(gpus)} to use"
        raise bad_cluster(text)
    nodes = cluster.expanded()
    claimed = [_claimed(node, gpus) for node in nodes]
    taken = [name for names in claimed for name in names]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise bad_cluster(f"the device {twice[0]} is named twice")
    left = iter([gpu.name for gpu in gpus if gpu.name not in taken])
    return [
        names or tuple(next(left) for _ in range(node.gpus))
        for node, names in zip(nodes, claimed, strict=True)
    ]


def _claimed(node: Node, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    found = {name: named(gpus, name) for name in node.devices}
    for name, gpu in found.items():
        if gpu is None:
            where = f"is not there, or {VISIBLE} leaves it out"
            raise bad_cluster(f"the device {name} of node {node.name} {where}: see pliant cluster discover")
    return tuple(gpu.name for gpu in found.values() if gpu is not None)


def list_gpus() -> GpuListing:
    """What the driver reports; GPUs that cannot be used are listed as faults.

    :raises ServiceMissingError: the NVML bindings are not installed, or there is no driver.
    """
    with _nvml() as nvml:
        gpus: list[Gpu] = []
        faults = []
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                found = _on_card(nvml, number)
            except nvml.NVMLError as error:
                faults.append(f"GPU {number}: {error}")
                continue
            gpus += found
            if not found:
                faults.append(f"GPU {number} is in MIG mode and has no instances")
        return GpuListing(nvml.nvmlSystemGetDriverVersion(), tuple(gpus), tuple(faults))


def processes_on(gpus: Sequence[Gpu]) -> dict[str, list[int]]:
    """Ids of the processes that compute on each card, by its UUID; empty if the driver does not say.

    :raises ServiceMissingError: the driver cannot be asked.
    """
    found: dict[str, list[int]] = {}
    with _nvml() as nvml:
        for card in dict.fromkeys(gpu.card for gpu in gpus):
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(card)
                found[card] = sorted({each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)})
            except nvml.NVMLError:
                found[card] = []
    return found


@contextmanager
def _nvml() -> Iterator[Any]:
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
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise ServiceMissingError(f"the NVIDIA driver cannot be asked for its GPUs: {error}") from error


def _on_card(nvml: Any, number: int) -> list[Gpu]:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    card = nvml.nvmlDeviceGetUUID(handle)
    sliced = _in_mig_mode(nvml, handle)
    return [
        Gpu(
            name=nvml.nvmlDeviceGetUUID(each),
            card=card,
            number=number,
            model=nvml.nvmlDeviceGetName(each),
            memory=int(nvml.nvmlDeviceGetMemoryInfo(each).total),
            place=_place(nvml, card, each) if sliced else "",
        )
        for each in (_instances(nvml, handle) if sliced else [handle])
    ]


def _place(nvml: Any, card: str, instance: Any) -> str:
    try:
        numbers = nvml.nvmlDeviceGetGpuInstanceId(instance), nvml.nvmlDeviceGetComputeInstanceId(instance)
    except nvml.NVMLError:
        return ""
    return "/".join([f"MIG-{card}", *map(str, numbers)])


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a GPU or driver without MIG
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, handle: Any) -> list[Any]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # none of that number
            continue
    return found
