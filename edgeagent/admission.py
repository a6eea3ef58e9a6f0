"""What an agent answers those who come to its join listener.

It decides nothing about tokens: the listener has checked the proof before it asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from edgeagent.transport.job import script_digests

if TYPE_CHECKING:
    from edgeagent.handover import Hello
    from edgeagent.recipe import Recipe
    from edgeagent.search import Search
    from edgeagent.shell import Shell
    from edgeagent.transport.api import Candidate, Standing
    from edgeagent.transport.tcp import TcpTransport


class AdmittingAgent(Protocol):
    """What an agent has to have for this."""

    hello: Hello | None
    search: Search | None
    shell: Shell | None
    transport: TcpTransport | None

    def standing(self) -> Standing:
        """Return what to tell a proven joiner."""

    def compare_scripts(self, name: str, theirs: bytes) -> None:
        """Warn if `name` runs a script that differs from this device's."""


class Admission:
    """The `AdmissionPolicy` of one agent."""

    def __init__(self, agent: AdmittingAgent, recipe: Recipe | None) -> None:
        self._agent = agent
        self.recipe = recipe

    def job(self) -> tuple[tuple[str, str], ...] | None:
        """Return the job's (field, value) pairs, None while they are not known."""
        return self._agent.hello.job if self._agent.hello is not None else None

    def script(self) -> bytes:
        """Return the digests of the statements of the trainer's script, b"" if it runs none."""
        hello = self._agent.hello
        return script_digests(hello.script) if hello is not None else b""

    def standing(self) -> Standing:
        """Return what to tell a proven joiner."""
        return self._agent.standing()

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        """Take the addresses of an agent that holds the token as a hint."""
        if self._agent.search is not None:
            self._agent.search.hint(addresses, spoke=True)

    def bars(self, node: bytes) -> bool:
        """Return whether a user has expelled `node`."""
        shell = self._agent.shell
        known = shell.node.context.policy if shell is not None and shell.node is not None else None
        return known is not None and node in known.view.expelled

    def admitted(self, candidate: Candidate) -> None:
        """Trust the key of `candidate`, which has proven token and job."""
        agent = self._agent
        agent.compare_scripts(candidate.peer.name, candidate.script)
        if agent.transport is not None:
            node = agent.transport.trust(candidate.peer.certificate)
            if agent.shell is not None:
                agent.shell.peers.keep_trust(node)
