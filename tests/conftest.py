"""What holds for the whole test run.

Law: the exit status is pytest's own. A `Trainer` that a test left open would otherwise end the
interpreter with its script's status, as it must in a script.
"""

from __future__ import annotations

import os

import pytest


def pytest_unconfigure() -> None:
    """From here on no exit handler replaces the exit status."""
    pytest.MonkeyPatch().setattr(os, "_exit", lambda status: None)
