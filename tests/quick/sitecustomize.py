"""Lets the Python processes that tests start begin in half the processor time; Python imports this at start.

Half of what a training script of a few steps takes is the import of ``torch._dynamo``, PyTorch's compiler:
its optimizers and DistributedDataParallel import it although nothing is compiled, to mark functions that it
must not look into. Here a module stands in for it that remembers them. Whatever else is asked of it imports
the compiler and marks them, so a script that compiles finds all as it is without this file.

A quarter of the import of ``torch`` is ``torch._meta_registrations``: what operations do to tensors without
data, for the compiler and for tensors that are cut over workers. It is left out until one of these or what it
registers is imported. In other scripts some operations on the device ``meta`` fail.

Garbage is collected seldom, as hardly any of what is made by imports is garbage, and not once more at exit:
to look through all that PyTorch has made takes a third of its import.
"""

import atexit
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

COMPILER = "torch._dynamo"
METAS = "torch._meta_registrations"
NEED_METAS = ("torch._decomp", "torch._prims", "torch._refs", "torch.distributed.tensor")
"""An import of one of these registers everything, in the order of PyTorch."""


class _StandIn(ModuleType):
    """Becomes the module that it stands in for as soon as it is asked for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        own = self.__name__
        if own not in sys.modules or (name.startswith("__") and name != "__path__"):
            # asked by the import system while it makes the module, and by inspect, which asks them all
            raise AttributeError(name)
        if sys.modules[own] is self:
            self.become_real()
        return getattr(sys.modules[own], name)

    def become_real(self) -> ModuleType:
        parent, _, child = self.__name__.rpartition(".")
        del sys.modules[self.__name__]
        delattr(sys.modules[parent], child)
        return importlib.import_module(self.__name__)


class _Compiler(_StandIn):
    """Answers what is asked where nothing is compiled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._marked: list[tuple[Callable[..., Any], bool]] = []
        # asked by optimizers, by DistributedDataParallel, and by a process group that ends
        self.graph_break = lambda: None
        self.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_: bool) -> Callable[..., Any]:
        self._marked.append((fn, recursive))
        return fn

    def become_real(self) -> ModuleType:
        _make_metas_real()
        real = super().become_real()
        for fn, recursive in self._marked:
            _mark(fn, real.disable(fn, recursive, wrapping=False))
        return real


def _mark(fn: Callable[..., Any], disabled: Callable[..., Any]) -> None:
    """Where PyTorch keeps what ``disable`` returns; in a class Python would change the name."""
    fn.__dynamo_disable = disabled  # type: ignore[attr-defined]


def _make_metas_real() -> None:
    metas = sys.modules.get(METAS)
    if isinstance(metas, _StandIn):
        metas.become_real()


class _Finder(MetaPathFinder):
    """Finds each stand-in the first time that its module is imported."""

    def __init__(self) -> None:
        self._made: dict[str, Callable[[str], ModuleType]] = {COMPILER: _Compiler, METAS: _StandIn}
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name in NEED_METAS:
            _make_metas_real()
            if name in sys.modules:  # imported meanwhile; its own spec would load it again
                self._specs[name], sys.modules[name].__spec__ = sys.modules[name].__spec__, None
                return ModuleSpec(name, self)  # type: ignore[arg-type]
        return ModuleSpec(name, self) if name in self._made else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name] if spec.name in self._specs else self._made.pop(spec.name)(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self._specs:
            module.__spec__ = self._specs.pop(module.__name__)
        elif module.__name__ == METAS:
            _let_generators_be_made()


def _let_generators_be_made() -> None:
    """``torch._prims``, which is left out, too, would say what kind of class a generator of numbers is."""
    import torch

    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


gc.set_threshold(250_000, 20, 20)
atexit.register(gc.freeze)
sys.meta_path.insert(0, _Finder())
