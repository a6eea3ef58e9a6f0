"""Which seeds of a randomised test belong to every run, and which only to a long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet


def seeds(always: Iterable[int], long: Iterable[int]) -> list[int | ParameterSet]:
    """Return the values of a `seed` parameter: those of every run, and those that
    `./scripts/test --long` adds."""
    first = list(always)
    rest = [k for k in long if k not in first]
    return [*first, *(pytest.param(k, marks=pytest.mark.long) for k in rest)]
