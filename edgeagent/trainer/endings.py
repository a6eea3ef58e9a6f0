"""How a script ends: with which exit status, which line for the user, and what the agent is told.

An error that edgeagent raises on purpose says in one line what to do, so it is shown without a
traceback. Every other exception is shown as Python always shows it, because it is the script's own,
and it is remembered, so that the agent can be told that the script failed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING

from edgeagent.config import RUN_VARIABLE
from edgeagent.errors import AgentLost, EdgeAgentError
from edgeagent.standard_streams import complain, outlive_output

if TYPE_CHECKING:
    from types import TracebackType


class AgentRefused(EdgeAgentError):
    """Training ended with an error of the agent's.

    `shown` says that the agent tells the user of it, so that this process shall not say it again.
    """

    def __init__(self, message: str, exit_status: int, shown: bool) -> None:
        super().__init__(message)
        self.exit_status = exit_status or EdgeAgentError.exit_status
        self.shown = shown


class _Ending:
    """What is known of how the script ends; global, because Python has one `sys.excepthook`.

    `crash` is the reason why the script failed, "" if it has not. `agent_speaks` is explained in
    the function of that name. `status` is the exit status of `fail_at_exit`, 0 for Python's own.
    """

    installed = False
    crash = ""
    agent_speaks = False
    status = 0


def watch_for_crashes() -> None:
    """Install a `sys.excepthook` that remembers what ends the script; idempotent.

    Under `edgeagent run` a full disk or a closed pipe must not end the script, since it is the
    agent's output that was sent there. A plain script is left to Python.
    """
    if _Ending.installed:
        return
    _Ending.installed = True
    if RUN_VARIABLE in os.environ:
        outlive_output("the job")
    # Python calls exit handlers in reverse order, so this one runs after all that are registered
    # from now on, and they can do their work before it ends the process.
    atexit.register(_exit_at_exit)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _Ending.crash = f"the script failed with {kind.__name__}"
        if isinstance(error, EdgeAgentError):
            _Ending.crash = str(error)
            shown = isinstance(error, AgentRefused) and error.shown
            if not shown and (isinstance(error, AgentLost) or not _Ending.agent_speaks):
                say(str(error))
            raise SystemExit(error.exit_status)
        before(kind, error, trace)

    sys.excepthook = hook


def agent_speaks(speaks: bool) -> None:
    """Say whether the agent tells the user why the script ends.

    If it does, this process stays silent, because a failure shall be one line and not two.
    """
    _Ending.agent_speaks = speaks


def end_fast() -> None:
    """Make the end of the process about a second faster.

    The interpreter, at its end, looks for reference cycles among all objects, and torch has many.
    The exit handler that prevents it is registered again at each call, so that it runs early.
    """
    atexit.unregister(_freeze)
    atexit.register(_freeze)


def _freeze() -> None:
    """Exempt all objects from the last garbage collection, unless nanobind is loaded.

    nanobind, which triton loads for one, counts its objects that are still there when the
    interpreter has ended. It would list all that lie in cycles as leaked.
    """
    if not any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type)):
        gc.freeze()


def fail_at_exit(status: int) -> None:
    """Have the interpreter, which is running its exit handlers already, end with `status`."""
    _Ending.status = status


def _exit_at_exit() -> None:
    """End the process with the status of `fail_at_exit`, if there is one.

    `os._exit` is the only way: an exception in an exit handler does not change the exit status. It
    flushes nothing, so the standard streams are flushed before.
    """
    if _Ending.status:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(_Ending.status)


def say(line: str) -> None:
    """Print one line for the user on stderr."""
    complain(line)


def crash() -> str:
    """Return the exception that ended the script, in words; "" if it runs or ended normally."""
    return _Ending.crash
