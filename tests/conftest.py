"""What holds for the whole test run.

Law: the exit status is pytest's own. A `Trainer` that a test left open would otherwise end the
interpreter with its script's status, as it must in a script.
"""

from __future__ import annotations

import os
import signal

import pytest


def pytest_configure() -> None:
    """What tests start can be interrupted, also if they run under `nohup` or in the background."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


def pytest_unconfigure() -> None:
    """From here on no exit handler replaces the exit status."""
    pytest.MonkeyPatch().setattr(os, "_exit", lambda status: None)
