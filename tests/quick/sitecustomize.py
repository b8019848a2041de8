"""Lets the Python processes that tests start begin in half the processor time; Python imports this at start.

Half of what a training script of a few steps takes is the import of ``torch._dynamo``, PyTorch's compiler:
its optimizers and DistributedDataParallel import it although nothing is compiled, to mark functions that it
must not look into. Here a module stands in for it that remembers them. Whatever else is asked of it imports
the compiler and marks them, so a script that compiles finds all as it is without this file.

Garbage is collected seldom, as hardly any of what is made by imports is garbage.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

NAME = "torch._dynamo"


class _Compiler(ModuleType):
    """Answers what is asked where nothing is compiled, and is replaced as soon as something is."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self._marked: list[tuple[Callable[..., Any], bool]] = []
        # asked by optimizers, by DistributedDataParallel, and by a process group that ends
        self.graph_break = lambda: None
        self.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_: bool) -> Callable[..., Any]:
        self._marked.append((fn, recursive))
        return fn

    def __getattr__(self, name: str) -> Any:
        if NAME not in sys.modules or (name.startswith("__") and name != "__path__"):
            # asked by the import system while it makes the module, and by inspect, which asks them all
            raise AttributeError(name)
        if sys.modules[NAME] is self:
            self._become_real()
        return getattr(sys.modules[NAME], name)

    def _become_real(self) -> None:
        del sys.modules[NAME], sys.modules["torch"]._dynamo
        real = importlib.import_module(NAME)
        for fn, recursive in self._marked:
            _mark(fn, real.disable(fn, recursive, wrapping=False))


def _mark(fn: Callable[..., Any], disabled: Callable[..., Any]) -> None:
    """Where PyTorch keeps what ``disable`` returns; in a class Python would change the name."""
    fn.__dynamo_disable = disabled  # type: ignore[attr-defined]


class _Finder(MetaPathFinder):
    """Finds the stand-in the first time that the compiler is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Compiler()

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


gc.set_threshold(50_000, 20, 20)
sys.meta_path.insert(0, _Finder())
