"""Whom the members wait for and which of them cost more than they give, as users are told; and that
a newcomer waits for the end of their step.

A status and this agent's own terminal show the same figures. Neither is decided here, but in
`protocols.network.waiting` and `planner.worth`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.local.status_model import AdviceStatus, WaitingStatus
from edgeagent.planner.shares import STEPS_OF_ALL, ShareRule
from edgeagent.planner.worth import worth
from edgeagent.terminal.waiting_text import advice_text, waiting_text
from protocols.member.joining_table import JoiningState
from protocols.network.waiting import Cause, Telling, waiting_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.standby import Costly
    from protocols.member.node import Node
    from protocols.network.heartbeats import Heartbeats
    from protocols.network.waiting import Waiting


# A newcomer that is let in waits for a step of the others, and says so once that takes this long.
LET_IN_SECONDS = 3.0
LET_IN = (
    "let in: this device copies the state when the running step of the others is done; before the"
    " first one they may wait for more devices (--wait-for)"
)
# Devices do not begin a step at the same moment, so what they say of it differs by so many seconds.
STALE_SECONDS = 2.0


class Waits:
    """Watches the node that `node()` returns; it returns None while there is no node."""

    def __init__(
        self,
        node: Callable[[], Node | None],
        heartbeats: Heartbeats,
        payload_bytes: int,
        chunk_bytes: int,
        say: Callable[[str], None],
        rule: Callable[[], ShareRule] = lambda: STEPS_OF_ALL,
    ) -> None:
        """`payload_bytes` is what a round sums on each node, `chunk_bytes` the size of its
        pieces, `rule()` what the job says about shares."""
        self._node = node
        self._heartbeats = heartbeats
        self._payload_bytes = payload_bytes
        self._chunk_bytes = chunk_bytes
        self._say = say
        self._rule = rule
        self._telling = Telling()
        self._let_in_since: float | None = None
        self._let_in_told = False

    def waiting(self) -> WaitingStatus | None:
        """Return whom the members wait for, None if for nobody."""
        node = self._node()
        return _waiting_status(node, self._waiting(node)) if node is not None else None

    def advice(self, waiting: WaitingStatus | None) -> AdviceStatus | None:
        """Return which members cost more than they give; `waiting` is whom the members wait for."""
        node = self._node()
        found = self._worth(node) if node is not None else None
        return _advice_status(node, found, waiting) if node is not None and found else None

    def tell(self, now: float) -> None:
        """Tell the user in a line or two who is waited for if it lasts, and when it is over."""
        node = self._node()
        if node is None:
            return
        self._tell_of_entry(now, node)
        waiting = self._waiting(node)
        if self._telling.look(now, waiting) and (shown := _waiting_status(node, waiting)):
            self._say(shown["text"])
            if (advice := self.advice(shown)) is not None:
                self._say(advice["text"])
        elif (gone := self._telling.over(now, waiting)) is not None:
            self._say(_over_text(node, gone))

    def _tell_of_entry(self, now: float, node: Node) -> None:
        """Tell once for each join that this device is let in, and what it waits for, if that
        lasts."""
        joining = node.joining
        if joining is None or joining.state is not JoiningState.WAITING:
            self._let_in_since, self._let_in_told = None, False
            return
        since = self._let_in_since = now if self._let_in_since is None else self._let_in_since
        if not self._let_in_told and now - since >= LET_IN_SECONDS:
            self._let_in_told = True
            self._say(LET_IN)

    def _waiting(self, node: Node) -> Waiting | None:
        context = node.context
        found = waiting_of(node, self._heartbeats.quiet(context.now))
        step_s = context.pace.since(context.now)
        # No trainer owes an answer for longer than the running step takes. What says so is of an
        # earlier one, such as the first step of a founder that has waited for others before it.
        stale = found is not None and found.trainer and found.seconds > 2 * step_s + STALE_SECONDS
        return None if stale else found

    def _worth(self, node: Node) -> Costly | None:
        context, policy = node.context, node.context.policy
        if policy is None or not context.is_member:
            return None
        known = {n: node.monitor.times(n) for n in policy.view.nodes}
        return worth(
            policy.view,
            context.config.micro_batches,
            node.monitor.measures,
            {n: times for n, times in known.items() if times is not None},
            self._payload_bytes,
            step_s=context.pace.recent_s,
            chunk_bytes=self._chunk_bytes,
            rule=self._rule(),
        )


def _waiting_status(node: Node, waiting: Waiting | None) -> WaitingStatus | None:
    if waiting is None:
        return None
    name = node.context.name
    linked = waiting.cause is Cause.LINK
    found = WaitingStatus(
        cause=waiting.cause.value,
        node=name(waiting.node) if waiting.node else "",
        seconds=round(waiting.seconds, 6),
        step_s=round(waiting.step_s, 6),
        peer=name(waiting.peer) if waiting.peer else "",
        mbit_s=round(waiting.rate * 8e-6, 3) if linked else None,
        delay_ms=round(waiting.delay_s * 1e3, 3) if linked else None,
        shared=waiting.shared,
        late=waiting.late,
        trainer=waiting.trainer,
        more=waiting.more,
        text="",
    )
    found["text"] = waiting_text(found, here=waiting.node == node.context.node)
    return found


def _over_text(node: Node, gone: bytes) -> str:
    """Return the line which says that nobody waits for `gone` any more (empty: for no device)."""
    if gone == node.context.node:
        return "the others no longer wait for this device"
    return "no longer waiting" + (f" for {node.context.name(gone)}" if gone else "")


def _advice_status(node: Node, found: Costly, waiting: WaitingStatus | None) -> AdviceStatus:
    context, name = node.context, node.context.name
    advice = AdviceStatus(
        left_out=[name(n) for n in found.left_out],
        step_s=round(found.step_s, 6),
        without_s=round(found.without_s, 6),
        alone=name(found.alone) if found.alone else "",
        alone_s=round(found.alone_s, 6),
        others=len(context.policy.view.nodes) - 1 if context.policy is not None else 0,
        text="",
    )
    advice["text"] = advice_text(advice, waiting["cause"] if waiting is not None else "")
    return advice
