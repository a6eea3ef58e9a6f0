"""Spares each trainer of a scenario a second: PyTorch's compiler is loaded only if it is used.

When the first optimizer is made, PyTorch imports `torch._dynamo`, which takes as long as importing
all the rest of PyTorch. All that optimizers want there is to tell the compiler which functions and
which places it must leave alone. That changes nothing in a process that compiles nothing, so a
stand-in takes these two calls and does nothing. Whoever asks for anything else of `torch._dynamo`
gets the real one, from then on.

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

NAME = "torch._dynamo"


class StandIn(ModuleType):
    """What is imported as `torch._dynamo` until somebody needs the real one."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return the function as it is, without the mark that it must not be compiled."""
        return function

    @staticmethod
    def graph_break() -> None:
        """Do nothing, as the real one does outside of what is compiled."""

    def __getattr__(self, name: str) -> Any:
        """Load the real module; `__path__` is looked up when a part of it is imported."""
        is_imported = NAME in sys.modules
        if name.startswith("__") and not (name == "__path__" and is_imported):
            raise AttributeError(name)
        if FINDER in sys.meta_path:
            sys.meta_path.remove(FINDER)
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-in where Python looks for the module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the stand-in comes from; None for every other module."""
        return ModuleSpec(name, self) if name == NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing more."""


FINDER = Finder()
sys.meta_path.insert(0, FINDER)
