"""What holds for the whole test run.

Law: the exit status is pytest's own. A `Trainer` that a test left open would otherwise end the
interpreter with its script's status, as it must in a script.
"""

from __future__ import annotations

import atexit
import sys


def pytest_unconfigure() -> None:
    """Take the trainer's last exit handler out of this process."""
    endings = sys.modules.get("edgeagent.trainer.endings")
    if endings is not None:
        atexit.unregister(endings._exit_at_exit)
