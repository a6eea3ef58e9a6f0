"""Variables of the environment that edgeagent reads, and those that look like one but are none.

A variable that is misspelt would be ignored without a word, and the device would train with a
default instead.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from edgeagent.suggestions import closest
from edgeagent.terminal.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "EDGEAGENT_"
KNOWN = (
    "CLUSTER",
    "EVENTS",
    "HOME",
    "INTERFACE",
    "JOIN",
    "JOIN_ONLY",
    "JOIN_STALL",
    "KEEP",
    "LISTEN",
    "LOG_DIR",
    "LOG_FILE",
    "LOG_LEVEL",
    "METRICS",
    "NAME",
    "NO_MDNS",
    "ON_PARTITION",
    "PAUSE_ON_ACTIVITY",
    "PAUSE_ON_BATTERY",
    "PAUSE_ON_METERED",
    "PEERS",
    "POLICY",
    "ROTATE_EVERY",
    "RUN",  # from the agent to the trainer that it starts
    "SAVE_EVERY",
    "SOCKET",  # from a plain script to the agent that it starts
    "STANDBY",
    "SYSFS",  # for tests
    "TOKEN",
    "TREES",
    "WAIT_FOR",
)
# Kubernetes and Docker's links set these for every service, which may be called edgeagent; those
# with TEST are for the project's own tests.
_OF_SERVICES = re.compile(r"(SERVICE_(HOST|PORT.*)|PORT|PORT_\d+_.*|TEST_.*)")


def unread_variables(names: Iterable[str]) -> list[str]:
    """Return a sentence for each of `names`, those of all variables, that looks like one of
    edgeagent's and is none."""
    found: list[str] = []
    for name in sorted(names):
        word = name.removeprefix(PREFIX)
        if word == name or word in KNOWN or _OF_SERVICES.fullmatch(word):
            continue
        close = closest(word, KNOWN)
        meant = f"; did you mean {PREFIX}{close}?" if close else ""
        found.append(f"{name} is set, but edgeagent reads no variable of that name{meant}")
    return found


def warn_of_unread_variables() -> None:
    """Print a line to stderr for each such variable of this process; never what it contains, which
    may be a token."""
    for sentence in unread_variables(os.environ):
        print(f"edgeagent: warning: {clean(sentence)}", file=sys.stderr)
