"""How a member becomes a holder of stripes (`cluster/stripes.py`): it gets their slots from one.

When a policy comes into force that names this member as a learner, it asks a neighbour among the
holders for the slots as they are at the start of that iteration. Neither of the two applies the
update of the iteration before the learner has them, or rather, before the holder has copied them
for it. From then on the learner steps the slots with the sums that it receives like a holder, and
tells everyone. The scheduler's next policy names it as one; if the scheduler is lost, the others
count on what they have learned.

A fence ends all learning, because its policy names no learners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge
from protocols.effects import LendStripes
from protocols.wire.messages import EVERYONE, StripesLearned, StripesWanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.member.mail import Mail
    from protocols.rounds.control_word import ControlWord

Pair = tuple[int, bytes]  # a stripe and the member that learns it


class Learning:
    """The part of one node that learns stripes and lends them to others. `released()` is called
    when nothing here holds the update of the running iteration any more. `has_old_slots()`: whether
    the slots here may lack updates, so that they are not lent."""

    def __init__(
        self,
        context: Context,
        mail: Mail,
        released: Callable[[], None],
        has_old_slots: Callable[[], bool],
    ) -> None:
        self._context = context
        self._has_old_slots = has_old_slots
        self._mail = mail
        self._released = released
        self._known: dict[int, None] = {}  # stripes that this member has learned
        self._wanted: dict[int, bytes] = {}  # stripes that are still to come, and from whom
        self._owed: dict[Pair, None] = {}  # learners that have not asked this holder yet
        self._begun_at = 0.0  # when they began to learn
        self._early: dict[bytes, StripesWanted] = {}  # questions about the next iteration
        self._again_at: float | None = None
        self._before: dict[Pair, None] = {}  # who learns what under the policy begun last

    @property
    def is_busy(self) -> bool:
        """Whether the update of the running iteration has to wait."""
        return bool(self._wanted or self._owed)

    @property
    def known(self) -> tuple[int, ...]:
        """The stripes that this member has learned, and is no holder of yet."""
        return tuple(self._known)

    @property
    def coming(self) -> tuple[int, ...]:
        """The stripes that this member has asked for."""
        return tuple(self._wanted)

    @property
    def owes(self) -> bool:
        """Whether learners wait for what this member has to lend them."""
        return bool(self._owed)

    @property
    def owes_long(self) -> bool:
        """Whether they have waited for as long as a trainer may be late."""
        late_at = self._begun_at + limits.TRAINER_LET_GO_SECONDS
        return self.owes and self._context.now >= late_at

    @property
    def deadline(self) -> float | None:
        """When there is something to do although nothing has happened."""
        waits = self._known or (self._wanted and not self._context.freeze.holds)
        times = [self._again_at if waits else None]
        if self.owes and not self.owes_long:
            times.append(self._begun_at + limits.TRAINER_LET_GO_SECONDS)
        return min((t for t in times if t is not None), default=None)

    def stripes(self, policy: Policy) -> tuple[int, ...]:
        """Return the stripes whose slots this member has under `policy` in the running iteration:
        as a holder or, what it has learned, as a learner. Those that are to begin anew in the next
        iteration are lost, with their sums."""
        me, after = policy.view.nodes.index(self._context.node), self._context.iteration + 1
        every = [(s, x) for s, x in enumerate(policy.stripes) if x.anew != after]
        return tuple(s for s, x in every if me in x.holders or (me in x.learners and self._has(s)))

    def goes_on(self, policy: Policy, word: ControlWord) -> bool:
        """Whether some device learns slots under `policy`, which is in force, or under the one that
        `word` names, which is in force after its update. Slots that others wait for must have this
        update before they are lent."""
        named = max(policy.key, (word.term, word.policy))
        after = policy if named == policy.key else self._context.policies.get(named)
        if after is None:
            return True  # it is not here yet, so nobody knows
        return any(stripe.learners for p in (policy, after) for stripe in p.stripes)

    def _has(self, stripe: int) -> bool:
        return stripe in self._known

    def forget(self) -> None:
        """Forget everything, because a fence has ended all learning."""
        self._known, self._wanted, self._owed, self._early, self._before = {}, {}, {}, {}, {}

    def begin(self, policy: Policy) -> None:
        """An iteration begins under `policy`."""
        context = self._context
        nodes = policy.view.nodes
        pairs = {(s, nodes[k]): None for s, x in enumerate(policy.stripes) for k in x.learners}
        self._known = {s: None for s in self._known if (s, context.node) in pairs}
        # Nobody has applied the update of an earlier iteration before those had learned that learn
        # since then.
        lenders = {pair: lender(policy, pair) for pair in pairs if pair not in self._before}
        self._before = pairs
        self._wanted = {s: n for (s, learner), n in lenders.items() if learner == context.node}
        self._owed = {pair: None for pair, source in lenders.items() if source == context.node}
        self._begun_at = context.now
        self._ask()
        early, self._early = self._early, {}
        for sender, message in early.items():
            self.asked(sender, message)

    def _ask(self) -> None:
        if not self._wanted:
            return
        self._again_at = self._context.now + limits.RETRY_SECONDS
        for source in dict.fromkeys(self._wanted.values()):
            stripes = tuple(s for s, n in self._wanted.items() if n == source)
            self._context.send(source, StripesWanted(self._context.iteration, stripes))

    def tick(self, now: float) -> None:
        """Ask again for what has not come, and tell again what was learned. A fence does not end
        that, since an heir has to know what the members in reach have together."""
        if self._again_at is None or now < self._again_at:
            return
        self._again_at = now + limits.RETRY_SECONDS
        if not self._context.freeze.holds:
            self._ask()
        if self._known:
            self._tell()

    def asked(self, learner: bytes, message: StripesWanted) -> None:
        """A neighbour asks for slots: lend them if this member owes them and has not changed them
        since. A question that is repeated while they are on their way is not answered again."""
        context = self._context
        if message.iteration == context.iteration + 1:
            self._early[learner] = message  # it is ahead of us, and names what we do not know yet
            for old in list(self._early)[: -limits.MAX_LINKS_PER_NODE]:
                del self._early[old]
            return
        found = tuple(s for s in message.stripes if (s, learner) in self._owed)
        late = message.iteration != context.iteration or self._has_old_slots()
        if late or not found or context.freeze.holds:
            return
        context.do(LendStripes(learner, context.iteration, found))
        for s in found:
            del self._owed[s, learner]
        self._release()

    def arrived(self, iteration: int, stripe: int) -> None:
        """The slots of `stripe` as at the start of `iteration` are here."""
        if iteration != self._context.iteration or self._wanted.pop(stripe, None) is None:
            return
        self._known[stripe] = None
        if not self._wanted:
            self._tell()
            self._release()

    def expects(self, sender: bytes, iteration: int, stripe: int) -> bool:
        """Whether `sender` may send the slots of `stripe` now."""
        return iteration == self._context.iteration and self._wanted.get(stripe) == sender

    def _tell(self) -> None:
        self._again_at = self._context.now + limits.RETRY_SECONDS
        self._mail.post(EVERYONE, StripesLearned(tuple(self._known)))

    def _release(self) -> None:
        if not self.is_busy:
            self._released()


def lender(policy: Policy, pair: Pair) -> bytes:
    """Return from whom a learner gets a stripe: from the first holder to which it has a link."""
    stripe, learner = pair
    holders = [policy.view.nodes[k] for k in policy.stripes[stripe].holders]
    return next(n for n in holders if edge(n, learner) in policy.view.edges)
