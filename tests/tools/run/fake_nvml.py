"""A stand-in for ``pynvml``: a driver with the cards that a test names."""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

GIB = 1 << 30


class NVMLError(Exception):
    """As the bindings raise it."""


@dataclass(frozen=True)
class Card:
    """A GPU; ``instances`` (UUID, profile) are those of MIG mode, None where it is not in that mode."""

    uuid: str
    model: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 * GIB
    instances: tuple[tuple[str, str], ...] | None = None
    knows_mig: bool = True
    lost: bool = False
    pids: tuple[int, ...] = ()


def install(monkeypatch: pytest.MonkeyPatch, *cards: Card, driver: str = "570.86.15") -> None:
    monkeypatch.setitem(sys.modules, "pynvml", bindings(cards, driver))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def bindings(cards: tuple[Card, ...], driver: str) -> ModuleType:
    def by_index(index: int) -> Card:
        if cards[index].lost:
            raise NVMLError("GPU is lost")
        return cards[index]

    def mig_mode(card: Card) -> list[int]:
        if not card.knows_mig:
            raise NVMLError("Not Supported")
        mode = int(card.instances is not None)
        return [mode, mode]

    def instance(card: Card, index: int) -> SimpleNamespace:
        """Each has one compute instance, 0."""
        if index >= len(card.instances or ()):
            raise NVMLError("Not Found")
        uuid, profile = (card.instances or ())[index]
        model = f"{card.model} MIG {profile}"
        return SimpleNamespace(uuid=uuid, model=model, memory=card.memory // 8, number=index + 1)

    def running(card: Card) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in card.pids]

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: driver,
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=lambda uuid: next(card for card in cards if card.uuid == uuid),
        nvmlDeviceGetUUID=lambda device: device.uuid,
        nvmlDeviceGetName=lambda device: device.model,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=device.memory),
        nvmlDeviceGetMigMode=mig_mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda card: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetComputeRunningProcesses=running,
        nvmlDeviceGetGpuInstanceId=lambda device: device.number,
        nvmlDeviceGetComputeInstanceId=lambda device: 0,
    )
    return module
