"""`python -m edgeagent.agent_process --socket FD`: the agent of a script run as `python script.py`.

Its configuration comes from the environment only, because there is no command line of ours.
Standard output belongs to the script, so every line for people goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import TYPE_CHECKING

from edgeagent.config import agent_config_from_environment, replace, state_root
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.launch import check_protocols
from edgeagent.standard_streams import complain, open_closed_streams, outlive_output
from edgeagent.terminal.text import accept_all, clean
from edgeagent.variables import warn_of_unread_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeagent.config import AgentConfig


def config_from(environment: Mapping[str, str]) -> AgentConfig:
    """Return the agent's configuration for a plain script.

    Raises `UsageError` if the script would wait for devices that cannot come.
    """
    config = agent_config_from_environment(environment)
    if config.wait_for > 1 and config.token is None:
        raise UsageError(
            "EDGEAGENT_WAIT_FOR: without EDGEAGENT_TOKEN no other device can come: set it, too"
        )
    return replace(
        config,
        state_dir=config.state_dir or state_root(environment),
        quiet=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent on the socket that the trainer has passed to it; return the exit status."""
    open_closed_streams()
    accept_all(sys.stdout, sys.stderr)
    outlive_output("the agent")
    parser = argparse.ArgumentParser(prog="python -m edgeagent.agent_process", allow_abbrev=False)
    parser.add_argument("--socket", type=int, required=True, metavar="FD")
    descriptor: int = parser.parse_args(argv).socket
    try:
        check_protocols()
        config = config_from(os.environ)
        warn_of_unread_variables()
        try:
            trainer = socket.socket(fileno=descriptor)
        except OSError:
            raise EdgeAgentError(f"descriptor {descriptor} is no hand-over socket") from None
        from edgeagent.agent import run_agent

        with trainer:
            return run_agent(config, trainer, None)
    except EdgeAgentError as error:
        complain(clean(str(error)))
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
