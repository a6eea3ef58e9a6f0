"""For a script that a test starts: a fake agent in a thread, as if the script had started it."""

from __future__ import annotations

import socket
import threading

from edgeagent.trainer.process import AgentConnection
from tests.unit.trainer.fake_agent import Cluster


class PlainConnection(AgentConnection):
    """Behaves as the connection of a script that started its own agent."""

    @property
    def plain(self) -> bool:
        return True


def connection(plain: bool = True) -> AgentConnection:
    """Return the trainer's end; the cluster runs until the trainer leaves."""
    ours, theirs = socket.socketpair()
    cluster = Cluster([ours], 10**9)
    threading.Thread(target=cluster.run, daemon=True).start()
    return (PlainConnection if plain else AgentConnection)(theirs, None)
