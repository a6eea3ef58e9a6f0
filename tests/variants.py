"""Which variants of a test belong to every run, and which only to a long one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

T = TypeVar("T")


def variants(always: Iterable[T], long: Iterable[T]) -> list[T | ParameterSet]:
    """Return the values of a parameter, such as a seed: those of every run, and those that
    `./scripts/test --long` adds."""
    first = list(always)
    rest = [value for value in long if value not in first]
    return [*first, *(pytest.param(value, marks=pytest.mark.long) for value in rest)]
