"""The command `edgeagent`, as it is started.

This module imports next to nothing, because Ctrl+C may be pressed while the others are imported.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130  # exit status: 128 + SIGINT, as shells have it for what Ctrl+C has ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); return the exit status.

    Nothing has begun while modules are imported, so Ctrl+C then ends the process without a word. A
    process whose own command line it was ends with the command's status even if Ctrl+C is pressed
    while the interpreter ends, which takes some tenths of a second.
    """
    try:
        import signal

        from edgeagent.command_line import run_command

        status = run_command(sys.argv[1:] if argv is None else argv)
        if argv is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
