"""How a script ends: edgeagent's own errors as one line and an exit status, and who crashed.

Law: only errors that edgeagent raises on purpose lose their traceback; every other exception is
shown as always, and remembered, so that the agent is told that the script failed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING

from edgeagent.errors import AgentLost, EdgeAgentError

if TYPE_CHECKING:
    from types import TracebackType


class AgentRefused(EdgeAgentError):
    """Training ended with an error; `shown` if the agent tells the user of it."""

    def __init__(self, message: str, exit_status: int, shown: bool) -> None:
        super().__init__(message)
        self.exit_status = exit_status or EdgeAgentError.exit_status
        self.shown = shown


class _Ending:
    """Process-wide: Python has one `sys.excepthook`."""

    installed = False
    crash = ""
    agent_speaks = False
    status = 0


def watch_for_crashes() -> None:
    """Install the hook; idempotent."""
    if _Ending.installed:
        return
    _Ending.installed = True
    atexit.register(_exit_at_exit)  # first in, so after all that is registered from now on
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _Ending.crash = f"the script failed with {kind.__name__}"
        if isinstance(error, EdgeAgentError):
            _Ending.crash = str(error)
            shown = isinstance(error, AgentRefused) and error.shown
            if not shown and (isinstance(error, AgentLost) or not _Ending.agent_speaks):
                print(f"edgeagent: {error}", file=sys.stderr, flush=True)
            raise SystemExit(error.exit_status)
        before(kind, error, trace)

    sys.excepthook = hook


def agent_speaks(speaks: bool) -> None:
    """Say whether the agent tells the user what ends the script: then that is its one line."""
    _Ending.agent_speaks = speaks


def end_fast() -> None:
    """Spare the interpreter, at its end, a second in which it looks for cycles in all of torch."""
    atexit.unregister(_freeze)
    atexit.register(_freeze)


def _freeze() -> None:
    """Not where nanobind is loaded (by triton, for one): it counts what is still there when the
    interpreter has ended, which is all that lies in cycles, and lists it as leaked."""
    if not any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type)):
        gc.freeze()


def fail_at_exit(status: int) -> None:
    """Have the interpreter, which is on its way out already, end with `status`."""
    _Ending.status = status


def _exit_at_exit() -> None:
    """An exception in an exit handler changes no exit status; only this does."""
    if _Ending.status:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(_Ending.status)


def say(line: str) -> None:
    """Tell the user."""
    print(f"edgeagent: {line}", file=sys.stderr, flush=True)


def crash() -> str:
    """Return what ended the script, "" if it runs or ended by itself."""
    return _Ending.crash
