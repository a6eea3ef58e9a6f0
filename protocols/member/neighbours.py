"""What the beginning and the end of a link mean to the parts of this node.

A link ends because its connections do, because the neighbour is silent or is accused by this node,
or because the neighbour has parted from this node. Whether the end of a link is the loss of a
member, `recovery/` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.cluster.stripes import OnLost
from protocols.effects import CloseLink, Distrust
from protocols.events import LinkDown
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.member.context import Context
    from protocols.member.copies import Copies
    from protocols.member.cycle import Cycle
    from protocols.member.entry import Entry
    from protocols.member.followers import Followers
    from protocols.member.introductions import Introductions
    from protocols.member.mail import Mail
    from protocols.member.wishes import Wishes
    from protocols.network.monitor import Monitor
    from protocols.recovery.recovery import Recovery


@dataclass(slots=True)
class Neighbours:
    """Tells the other parts of one node which links there are."""

    context: Context
    mail: Mail
    cycle: Cycle
    entry: Entry
    copies: Copies
    recovery: Recovery
    wishes: Wishes
    introductions: Introductions
    followers: Followers
    monitor: Monitor

    def link_up(self, now: float, peer: Member) -> None:
        """A link to `peer` is open."""
        context, joining = self.context, self.entry.joining
        context.links[peer.node] = peer
        self.recovery.relinking.located(now, peer.node, peer.addresses)
        self.recovery.link_up(now, peer)
        context.report("link_up", node=peer.name)
        self.mail.welcome(peer.node)
        self.connected(peer.node, is_open=True)
        self.monitor.link_up(peer.node)
        if joining is not None:
            joining.link_settled(now, peer.node, is_open=True)

    def dial_failed(self, now: float, node: bytes) -> None:
        """No link to `node` could be opened."""
        self.recovery.relinking.failed(now, node)
        self.connected(node, is_open=False)
        name = self.context.name(node)
        self.wishes.unreachable(node, f"no connection to {name} could be opened")
        if self.entry.joining is not None:
            self.entry.joining.link_settled(now, node, is_open=False)

    def connected(self, node: bytes, *, is_open: bool) -> None:
        """Tell the scheduler that asked this member for a link to `node` that it is open."""
        asker = self.introductions.settled(node)
        if asker is not None and is_open:
            self.mail.post(asker, m.LinksOpen(0, (node,)))

    def link_down(self, now: float, event: LinkDown) -> None:
        """A link has ended: tell all parts, and say whom this cluster may have lost."""
        context, node, joining = self.context, event.node, self.entry.joining
        if node not in context.links:
            return
        name = context.name(node)
        peer = context.links.pop(node)
        self.recovery.link_gone(now, event)
        self.copies.link_down(node)
        self.wishes.link_gone(node)
        self.introductions.link_down(node)
        self.followers.link_down(node)
        context.report("link_down", node=name)
        policy = context.policy
        if event.why is LinkEnd.PROTOCOL_ERROR:
            context.do(Distrust(node))  # for a while (`relinking.py`), or until it joins again
        if joining is not None and joining.on_the_way:
            joining.link_down(node, is_clean=event.why.is_clean)
        elif self.cycle.over or policy is None or (event.why.is_clean and context.is_leaving(node)):
            return
        elif context.is_member and not context.is_spare(peer, policy.view):
            self.recovery.say_lost(now, event)

    def part_from(self, now: float, node: bytes) -> None:
        """Part from a neighbour that is out of reach; tell it so, in case it hears that later."""
        context = self.context
        if node in context.links:
            context.send(node, m.Dropped())
            context.do(CloseLink(node))
            self.link_down(now, LinkDown(node, LinkEnd.SILENT))

    def blame(self, now: float, node: bytes, reason: str) -> None:
        """Accuse `node`, which does not do what only it can do, and close the link to it."""
        self.mail.post(m.EVERYONE, m.Accused(node, reason))
        self.part_from(now, node)

    def dropped_by(self, now: float, sender: bytes) -> None:
        """A neighbour did not hear us for too long. If all of several say so, this device was away
        and they went on without it. But a single other member waits before it goes on, members that
        pause without a quorum may need us to have one, and members wait without limit for a part of
        a divided optimizer's state of which we have the last copy, which we may even if there was a
        second one when we fell asleep: then a new link lets us go on, or says that they did."""
        context, joining = self.context, self.entry.joining
        if joining is not None and joining.on_the_way:
            context.do(CloseLink(sender))  # nothing of what it still sends may reach the state
        self.link_down(now, LinkDown(sender, LinkEnd.DROPPED))
        members = len(context.policy.view.members) if context.policy is not None else 0
        waited_for = context.has_few_copies and context.config.on_lost is OnLost.WAIT
        went_on = members > 2 and not context.config.pauses and not waited_for
        if context.is_isolated and went_on and not self.cycle.over:  # isolated: no member is left
            self.cycle.leave("expelled", "")
