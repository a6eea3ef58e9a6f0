"""Spares each trainer of a scenario two seconds: some parts of PyTorch are loaded only if used.

- `torch._dynamo`, the compiler, is imported when the first optimizer is made, and takes as long
  as all the rest of PyTorch. All that optimizers want there is to tell the compiler which functions
  and places it must leave alone. That changes nothing in a process that compiles nothing, so a
  stand-in takes these two calls and does nothing.
- `torch.export` and `torch._meta_registrations` are imported with PyTorch and take a quarter of
  that time. The first one exports models; the second one tells operators on the meta device which
  shapes they return. No script of a scenario does either unless it compiles.

Whoever asks for anything else of one of them gets the real ones, of all three, from then on.

Python imports this file at its start, because `tests/scenarios/cluster.py` puts its folder on the
path.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
NAMES = (COMPILER, "torch.export", "torch._meta_registrations")


class StandIn(ModuleType):
    """What is imported under one of these names until somebody needs the real module."""

    def __getattr__(self, name: str) -> Any:
        """Load the real modules; `__path__` is looked up when a part of one is imported."""
        if name.startswith("__") and not (name == "__path__" and self.__name__ in sys.modules):
            raise AttributeError(name)
        load_the_real_ones()
        return getattr(importlib.import_module(self.__name__), name)


class Compiler(StandIn):
    """What is imported as `torch._dynamo`, with what optimizers want of it."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return the function as it is, without the mark that it must not be compiled."""
        return function

    @staticmethod
    def graph_break() -> None:
        """Do nothing, as the real one does outside of what is compiled."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins where Python looks for the modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a stand-in comes from; None for every other module."""
        return ModuleSpec(name, self) if name in NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        return (Compiler if spec.name == COMPILER else StandIn)(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing more."""


def load_the_real_ones() -> None:
    """Import the real modules in place of those stand-ins that were imported, once."""
    if FINDER not in sys.meta_path:
        return
    sys.meta_path.remove(FINDER)
    stood_in = [name for name in NAMES if isinstance(sys.modules.get(name), StandIn)]
    for name in stood_in:
        del sys.modules[name]
    for name in reversed(stood_in):  # PyTorch loads its compiler last
        importlib.import_module(name)


FINDER = Finder()
sys.meta_path.insert(0, FINDER)
