"""What the user of a running agent asks of the cluster: links, expulsions, a new token.

Nothing is decided here: a request becomes one event of the node (an expulsion is followed by a new
token), and the node's answer becomes the request's. At most `MAX_CHANGES` requests are kept; each
is answered within `ANSWER_SECONDS`, and its answer is given once. A token is part of the answer to
the request that made it, and of no log line, event or status.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local.changes import ChangeState, ChangeStatus, TokenShown, find_member
from edgeagent.transport.token import TOKEN_BYTES, token_text
from protocols.cluster.view import edge
from protocols.events import ExpelWanted, LinkWanted, TokenWanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.local.status_model import Status
    from edgeagent.shell import Shell
    from protocols.cluster.policy import Policy
    from protocols.member.node import Node

ANSWER_SECONDS = 30.0  # after which a request that is still pending is refused
MAX_CHANGES = 16


class Host(Protocol):
    """The agent, as far as requests need it."""

    @property
    def shell(self) -> Shell | None:
        """Its shell; None until the trainer has told what to train."""

    @property
    def token(self) -> bytes | None:
        """The token that it proves and accepts at present; None if it trains alone."""

    def status(self) -> Status:
        """Return its status."""

    async def leave(self) -> None:
        """Start to leave gracefully."""


@dataclass(slots=True)
class _Change:
    """One request.

    `target` is the node that it is about, `made` the token that it has made. `out` says that the
    node it had to expel is out.
    """

    number: int
    node: Node
    name: str
    event: LinkWanted | ExpelWanted | TokenWanted
    target: bytes = b""
    deadline: asyncio.TimerHandle | None = None
    state: ChangeState = "pending"
    text: str = ""
    step: int = 0
    made: bytes = b""
    out: bool = False


class Administration:
    """Serves the command socket of one agent; implements `local.api.Handler`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._changes: dict[int, _Change] = {}
        self._count = 0

    def status(self) -> Status:
        """What `edgeagent status` shows."""
        return self._host.status()

    def trace(self) -> Iterator[str]:
        """`edgeagent status --trace`: return the lines of a trace; raise `EdgeAgentError` if
        nothing is recorded."""
        if (shell := self._host.shell) is None:
            raise EdgeAgentError("nothing is recorded yet: this agent is not training yet")
        return shell.trace()

    async def leave(self) -> None:
        """`edgeagent leave`."""
        await self._host.leave()

    # --- requests ---------------------------------------------------------------------------------

    def change_link(self, asked: str, wanted: bool) -> ChangeStatus:
        """`edgeagent link add` and `link remove`: connect to, or disconnect from, a member.

        Raises `NoSuchMember`, `UsageError` or, if it is not possible at present, `EdgeAgentError`.
        """
        node, policy = self._training()
        member = find_member(asked, policy.view.members)
        if member.node == node.context.node:
            raise UsageError(f"{member.name} is this agent itself: name another member")
        linked = edge(node.context.node, member.node) in policy.view.edges
        if linked == wanted:
            already = "already linked to" if linked else "not linked to"
            raise EdgeAgentError(f"{node.context.config.me.name} is {already} {member.name}")
        return self._begin(node, member.name, LinkWanted(member.node, wanted))

    def expel(self, asked: str) -> ChangeStatus:
        """`edgeagent expel`: remove a member, or one that follows from outside, then change the
        token.

        Raises `NoSuchMember`, `UsageError` or, if it is not possible at present, `EdgeAgentError`.
        """
        node, policy = self._training()
        joiners = (pull.joiner for pull in policy.pulls)
        known = {m.node: m for m in (*joiners, *policy.view.members)}
        member = find_member(asked, tuple(known.values()))
        if member.node == node.context.node:
            raise UsageError(
                f"{member.name} is this agent itself: `edgeagent leave` takes it out of the cluster"
            )
        return self._begin(node, member.name, ExpelWanted(member.node))

    def rotate_token(self) -> ChangeStatus:
        """`edgeagent token rotate`: give all members a new token.

        Raises `EdgeAgentError` if that is not possible at present.
        """
        if self._host.token is None:
            raise EdgeAgentError(
                "this agent trains alone, without a token: there is none to change (set "
                "EDGEAGENT_TOKEN before you start it, to let others join)"
            )
        node, _ = self._training()
        return self._begin(node, "", TokenWanted(secrets.token_bytes(TOKEN_BYTES)))

    def show_token(self) -> TokenShown:
        """`edgeagent token show` and `invite`: return the token that is valid at present.

        Raises `EdgeAgentError` if this agent trains alone.
        """
        if self._host.token is None:
            raise EdgeAgentError("this agent trains alone, without a token: there is none to show")
        return TokenShown(token=token_text(self._host.token))

    def change(self, number: int) -> ChangeStatus | None:
        """Return how far a request is, None if there is none of that number. A final answer is
        given once, and the request is then forgotten."""
        change = self._changes.get(number)
        if change is None:
            return None
        if change.state != "pending":
            del self._changes[number]
        return self._status_of(change)

    def watch(self, shell: Shell) -> None:
        """Look after each event of the node but heartbeats whether a request is answered."""
        shell.watch = self._look

    # --- their course -----------------------------------------------------------------------------

    def _training(self) -> tuple[Node, Policy]:
        phase = self._host.status()["phase"]
        shell = self._host.shell
        node = shell.node if shell is not None else None
        policy = node.context.policy if node is not None else None
        if phase == "leaving":
            raise EdgeAgentError("this agent is leaving the cluster: ask another member")
        if node is None or policy is None or phase != "training":
            raise EdgeAgentError(f"this agent is not training yet ({phase}): ask again when it is")
        return node, policy

    def _begin(
        self, node: Node, name: str, event: LinkWanted | ExpelWanted | TokenWanted
    ) -> ChangeStatus:
        while len(self._changes) >= MAX_CHANGES:
            over = [n for n, c in self._changes.items() if c.state != "pending"]
            if not over:
                raise EdgeAgentError("too many changes wait for their end already: ask again later")
            del self._changes[over[0]]
        target = b"" if isinstance(event, TokenWanted) else event.node
        for other in [c for c in self._changes.values() if c.state == "pending"]:
            if not target or other.target != target:
                continue
            if other.out or (isinstance(event, ExpelWanted) and other.event == event):
                raise EdgeAgentError(f"another command is expelling {name} already")
            if other.event != event:
                self._settle(other, f"a later command about {name} took its place")
        self._count += 1
        change = _Change(self._count, node, name, event, target)
        self._changes[change.number] = change
        loop = asyncio.get_running_loop()
        change.deadline = loop.call_later(ANSWER_SECONDS, self._give_up, change)
        self._tell(change, event)
        return self._status_of(change)

    def _tell(self, change: _Change, event: LinkWanted | ExpelWanted | TokenWanted) -> None:
        """Give the node the event of a request, the answer to which is found by `_look`."""
        change.event = event
        if isinstance(event, TokenWanted):
            change.made = event.token
        if (shell := self._host.shell) is not None:
            shell.handle(event)

    def _look(self) -> None:
        """Find the requests that the last event has answered."""
        for change in [c for c in self._changes.values() if c.state == "pending"]:
            shell = self._host.shell
            if shell is None or shell.node is not change.node:
                self._settle(change, "this device had to join again meanwhile: ask once more")
                continue
            event = change.event
            if isinstance(event, TokenWanted):
                answer = "" if self._host.token == event.token else None
            else:
                answer = change.node.wishes.answer(event)
            if answer == "" and isinstance(event, ExpelWanted):
                change.out = True
                change.step = change.node.context.iteration + 1
                self._tell(change, TokenWanted(secrets.token_bytes(TOKEN_BYTES)))
            elif answer is not None:
                self._settle(change, answer)

    def _settle(self, change: _Change, refusal: str) -> None:
        """End a request. It is done if `refusal` is "", else refused for that reason."""
        if change.state != "pending":
            return
        change.state = "refused" if refusal else "done"
        change.text = refusal
        if refusal and change.out:
            change.text = (
                f"{change.name} is out, but the token is the old one still ({refusal}): run "
                "`edgeagent token rotate` to keep it out"
            )
        change.step = change.step or change.node.context.iteration + 1
        if change.deadline is not None:
            change.deadline.cancel()

    def _give_up(self, change: _Change) -> None:
        later = "it is done when that is over (see `edgeagent status`)"
        if isinstance(change.event, ExpelWanted):
            later += "; run `edgeagent token rotate` then, so that the device cannot come back"
        waits = self._waits_for(change)
        self._settle(change, f"not done after {ANSWER_SECONDS:.0f} s: still {waits}; {later}")

    def _waits_for(self, change: _Change) -> str:
        context = change.node.context
        if change.node.negotiator is not None:
            return "waiting for the members to take the plan over at the end of an iteration"
        scheduler = context.name(context.election.scheduler)
        return f"waiting for {scheduler}, the scheduler, and for the end of a step"

    def _status_of(self, change: _Change) -> ChangeStatus:
        pending = change.state == "pending"
        return ChangeStatus(
            number=change.number,
            state=change.state,
            node=change.name,
            text=self._waits_for(change) if pending else change.text,
            step=0 if pending else change.step,
            token=token_text(change.made) if change.state == "done" and change.made else "",
        )
