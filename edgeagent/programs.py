"""Programs of the operating system that are asked for something, and what they print."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

ASK_SECONDS = 5.0  # for an answer


def ask(command: Sequence[str]) -> str:
    """Return what `command` prints; raise `EdgeAgentError` with its reason if it cannot be run,
    fails, or takes longer than `ASK_SECONDS`."""
    try:
        asked = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise EdgeAgentError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise EdgeAgentError(f"{command[0]} did not answer within {ASK_SECONDS:.0f} s") from None
    except OSError as error:
        raise EdgeAgentError(f"{command[0]} cannot be run: {error}") from None
    if asked.returncode != 0:
        lines = (asked.stderr.strip() or f"exit status {asked.returncode}").splitlines()
        raise EdgeAgentError(f"{command[0]} says: {lines[0]}")
    return asked.stdout
