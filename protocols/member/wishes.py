"""What this device's user wants of the cluster: links, the expulsion of a member, a new token.

A wish is repeated to whoever is the scheduler, until the policy in force shows it or the scheduler
refuses it, so a change of scheduler loses nothing. A new token is passed on only among members of a
policy that expels all those whom the user wants to keep from it: otherwise an expelled node could
get it and join again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge
from protocols.effects import CloseLink, UseToken
from protocols.events import ExpelWanted, LinkWanted
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import View
    from protocols.member.context import Context
    from protocols.member.mail import Mail

Wish = LinkWanted | ExpelWanted


class Wishes:
    """The wishes of one node's user, and the cluster's newest token if there is a new one."""

    def __init__(self, context: Context, mail: Mail) -> None:
        self._context = context
        self._mail = mail
        self._open: dict[Wish, None] = {}  # wishes that are neither in force nor refused
        self._answers: dict[Wish, str] = {}  # closed wishes; see `answer`
        self._say_at = 0.0
        self._closing: tuple[bytes, ...] = ()  # links that the policy in force no longer has
        self._token: m.NewToken | None = None  # the newest one; used once its policy is in force
        self._used = False

    @property
    def deadline(self) -> float | None:
        """When open wishes are to be repeated."""
        return self._say_at if self._open and self._context.is_member else None

    def answer(self, wish: Wish) -> str | None:
        """Return None while `wish` is open, "" once it is in force, else why it was refused."""
        return self._answers.get(wish)

    def want(self, now: float, wish: Wish) -> None:
        """Take a new wish of the user; an open wish about the same node is replaced by it."""
        self._answers.pop(wish, None)
        self._open = {w: None for w in self._open if w.node != wish.node}
        self._open[wish] = None
        self._settle(now)
        self.say(now)

    def tick(self, now: float) -> None:
        """Repeat the wishes that have not been fulfilled or refused, if it is time to."""
        if self._open and now >= self._say_at:
            self.say(now)

    def say(self, now: float) -> None:
        """Send all open wishes to the scheduler."""
        self._say_at = now + limits.RETRY_SECONDS
        if not self._context.is_member:
            return
        for wish in list(self._open):
            message = (
                m.LinkWish(wish.node, wish.wanted)
                if isinstance(wish, LinkWanted)
                else m.Expel(wish.node)
            )
            self._mail.post(self._context.election.scheduler, message)

    def refused(self, sender: bytes, message: m.Refused) -> None:
        """Close the wish that the scheduler refuses."""
        if sender != self._context.election.scheduler:
            return
        for wish in list(self._open):
            expels = isinstance(wish, ExpelWanted)
            if (wish.node, expels) == (message.node, message.expels):
                self._close(wish, message.reason)

    def unreachable(self, node: bytes, reason: str) -> None:
        """Close the wish for a link to `node`, because none could be opened."""
        wish = LinkWanted(node, True)
        if wish in self._open:
            self._close(wish, reason)

    def _close(self, wish: Wish, text: str) -> None:
        del self._open[wish]
        self._answers[wish] = text
        for old in list(self._answers)[: -limits.MAX_OPEN_JOINS]:
            del self._answers[old]

    def _settle(self, now: float) -> None:
        policy = self._context.policy
        for wish in list(self._open):
            if policy is not None and self._in_force(wish, policy.view):
                self._close(wish, "")

    def _in_force(self, wish: Wish, view: View) -> bool:
        if isinstance(wish, ExpelWanted):
            return wish.node in view.expelled
        if wish.node == self._context.node:
            return False
        pair = edge(self._context.node, wish.node)
        return pair in (view.edges if wish.wanted else view.apart)

    def switched(self, now: float, old: Policy, new: Policy) -> None:
        """Act on a policy that came into force: close the wishes that it fulfils, note the links
        that it no longer has, and pass the token on to new members."""
        context = self._context
        self._settle(now)
        pairs = [(e.low, e.high) for e in new.view.apart]
        apart = [n for pair in pairs if context.node in pair for n in pair]
        gone = dict.fromkeys((*apart, *new.view.expelled))
        # They are closed only after an iteration under this policy, as the others may need them.
        self._closing = tuple(n for n in sorted(context.links) if n in gone)
        if self._token is not None and not self._used:
            self._use(None)
        elif self._token is not None:
            for member in new.view.members:
                if member.node not in old.view.nodes and member.node in context.links:
                    context.send(member.node, self._token)

    def applied(self) -> None:
        """Close the links that the policy in force no longer has. A whole iteration under it is
        done now, so nobody needs them any more."""
        closing, self._closing = self._closing, ()
        for node in closing:
            self._context.do(CloseLink(node))

    def link_gone(self, node: bytes) -> None:
        """Forget to close the link to `node`, which its other end has closed first. A link to it
        that is opened later is one that was added again, and must stay."""
        self._closing = tuple(n for n in self._closing if n != node)

    def new_token(self, token: bytes) -> None:
        """Use a token that this device's user has made, and pass it on to the other members."""
        policy = self._context.policy
        key, before, known = policy.key if policy is not None else (0, 0), 0, self._token
        if known is not None:  # perhaps of a newer policy: others would keep that one otherwise
            key, before = max(key, (known.policy_term, known.version)), known.count
        outlaws = policy.view.expelled if policy is not None else ()
        message = m.NewToken(token, *key, min(before + 1, limits.MAX_INTEGER), outlaws)
        self._token, self._used = message, False
        self._use(None)

    def heard_token(self, sender: bytes, message: m.NewToken) -> None:
        """Take the cluster's new token from a member; a joiner gets it when it enters."""
        policy = self._context.policy
        if policy is None or sender not in policy.view.nodes:
            return
        if message.policy_term > max(self._context.newest_key[0], self._context.election.term):
            return  # its policy cannot be under way, so the sender is wrong
        known = self._token
        if known is not None and _age(known) >= _age(message):
            return
        self._token, self._used = message, False
        self._use(sender)

    def _use(self, sender: bytes | None) -> None:
        """Use the token and pass it on to all neighbours but `sender`, if the policy that it needs
        is in force."""
        context, policy, message = self._context, self._context.policy, self._token
        if policy is None or message is None:
            return
        if policy.key < (message.policy_term, message.version):
            return
        if any(n not in policy.view.expelled for n in message.expelled):
            self._token = None  # a node that it must not reach is no longer expelled
            return
        self._used = True
        context.do(UseToken(message.token))
        for node in policy.view.nodes:
            if node in context.links and node != sender:
                context.send(node, message)


def _age(message: m.NewToken) -> tuple[int, int, int, bytes]:
    """Return a key that orders tokens by age, the newest being the largest: by the policy under
    which they were made, then by their count, then, if two users have made one at the same time, by
    the token itself, so that all members choose the same."""
    return (message.policy_term, message.version, message.count, message.token)
