"""The commands of `edgeagent`, one module each, in the order in which the help shows them.

Each module has `add_parser(commands)`, which sets `execute`, a function from the parsed arguments
to the exit status. Importing it is cheap, so that the help appears at once: a command imports what
it needs when it runs.
"""

from edgeagent.commands import (
    completion,
    demo,
    doctor,
    expel,
    export,
    invite,
    join,
    leave,
    link,
    page,
    plot,
    run,
    service,
    status,
    stop_all,
    token,
    verify,
)

COMMANDS = (
    demo,
    invite,
    join,
    run,
    doctor,
    status,
    page,
    link,
    leave,
    stop_all,
    service,
    expel,
    token,
    plot,
    export,
    verify,
    completion,
)

__all__ = ["COMMANDS"]
