"""The scheduler's role: how it comes to this node, and how it is handed over to another.

The role changes hands only by an election, so that there is at most one scheduler in a term. A
scheduler that leaves, or has led for `rotate_every` steps, asks an heir to stand for election. It
starts nothing new until it has been replaced, or until the heir has let too much time pass. While a
fence or a negotiation is open it keeps the role, because nobody else could finish that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from protocols import limits
from protocols.member.orders import may_order
from protocols.scheduler.join_cost import JoinCost
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from protocols.member.context import Context


class Watch(Protocol):
    """What the scheduler's role needs of the part of a node that deals with losses (`Recovery`)."""

    @property
    def has_fence(self) -> bool:
        """Whether this node leads a fence that is not decided."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether this node can only wait, for a quorum or for a scheduler."""
        ...

    def content(self, candidate: bytes) -> bool:
        """Whether the scheduler is in reach of this node and is not the candidate itself."""
        ...

    def voted(self, now: float) -> None:
        """This node has voted for another one at the time `now`."""
        ...

    def led(self) -> None:
        """Another node is the scheduler now."""
        ...

    def won(self) -> None:
        """This node is the scheduler now."""
        ...

    def brief(self) -> None:
        """Tell the negotiator, which is new, which pairs of members it is not to link."""
        ...

    def open_fence(self, now: float, policy: Policy) -> None:
        """Freeze all members and find out how they go on."""
        ...


class Succession:
    """The part of one node that stands for election, votes, wins, and hands the role over.

    `negotiator`: what this node negotiates as the scheduler, None while another node is that.
    """

    def __init__(
        self,
        context: Context,
        watch: Callable[[], Watch],
        new_scheduler: Callable[[float], None],
    ) -> None:
        """`watch()` returns the node's `Recovery`, which is built after this part.
        `new_scheduler(now)` is called when there is a new scheduler, so that requests which the
        last one has not fulfilled are repeated."""
        self.negotiator: Negotiator | None = None
        self._context = context
        self._find_watch = watch
        self._new_scheduler = new_scheduler
        self._tried_term = 0  # newest term for which we asked somebody to take the role over
        self._since = 0  # iteration from which the steps until a rotation are counted
        self._asked_until: float | None = None  # until when an heir that was asked is waited for

    @property
    def _watch(self) -> Watch:
        return self._find_watch()

    @property
    def leads_fence(self) -> bool:
        """Whether this node leads a fence that is not done, and so has to keep the role."""
        return self._watch.has_fence

    @property
    def deadline(self) -> float | None:
        """When an heir that was asked to stand is waited for no longer, None if none was."""
        return self._asked_until

    def take(self, now: float, sender: bytes, message: m.Message, term: int = 0) -> None:
        """Act on a message about the role: `Lead`, `PassRole`, `VoteRequest` or `Vote`. `term`: the
        one in which the sender of a request stands, 0 if that is not known."""
        context, policy = self._context, self._context.policy
        election = context.election
        if isinstance(message, m.Lead):
            term = message.new_term
            if may_order(context, sender, term) and election.led(sender, message):
                self.negotiator = None
                self._asked_until = None
                self._watch.led()
                name = context.name(sender)
                context.report("scheduler", node=name, term=message.new_term, why=message.why)
                self._new_scheduler(now)
            return
        if policy is None:
            return
        led = election.leads
        mail: list[tuple[bytes, m.Message]] = []
        match message:
            case m.PassRole() if context.departs:  # this heir leaves, too: let it be seen off first
                context.send(sender, m.LeaveRequest(context.config.me.incarnation))
            case m.PassRole() if sender == election.scheduler and election.is_credible(
                message.next_term
            ):
                mail = election.role_passed(message, context.electorates, context.newest_key)
            case m.VoteRequest():
                mail = self._vote_wanted(now, sender, message, term)
            case m.Vote():
                mail = election.vote(sender, message)
                self._fetch_newer(sender, message)
        for to, body in mail:
            context.send(to, body)
        if election.leads and not led:
            self.won(now, policy)

    def _vote_wanted(
        self, now: float, sender: bytes, message: m.VoteRequest, term: int
    ) -> list[tuple[bytes, m.Message]]:
        context, election = self._context, self._context.election
        # A candidate of a later term obeys the scheduler that is known here no more, whether that
        # is in reach or not. If its own one is lost, nobody else can bring all together again.
        content = self._watch.content(sender) and term <= election.term
        key, before = context.newest_key, election.voted_term
        self._fetch_missed(sender, (message.policy_term, message.version))
        mail = election.vote_wanted(sender, message, context.electorates, key, content=content)
        if election.voted_term > before:
            self._watch.voted(now)
        return mail

    def _fetch_newer(self, sender: bytes, vote: m.Vote) -> None:
        """Ask for the policy for the lack of which `sender` has refused its vote, so that the next
        candidacy of this node can succeed. Others that have it may not be able to win one."""
        context, key = self._context, (vote.policy_term, vote.version)
        if not vote.granted and self._is_known(sender) and self._is_newer(key):
            context.fetch(key)
            if sender not in context.links:
                context.send(sender, m.PolicyFetch(*key))

    def _fetch_missed(self, sender: bytes, key: tuple[int, int]) -> None:
        """Ask a candidate that no policy names here for the policy that it names. It may have
        become a member with that one, which this member has missed; if those who have not are out
        of reach, they need each other. Only a member that can do nothing without this asks, because
        it then believes a neighbour whom no member of its own has let in."""
        context = self._context
        cut_off = context.is_member and self._watch.is_cut_off
        stranger = sender in context.links and not self._is_known(sender)
        if cut_off and stranger and self._is_newer(key):
            context.missed = (sender, key)
            context.send(sender, m.PolicyFetch(*key))

    def _is_known(self, sender: bytes) -> bool:
        return any(sender in e.nodes for e in self._context.electorates)

    def _is_newer(self, key: tuple[int, int]) -> bool:
        """Whether the policy `key` is newer than all that are stored here, and can have been made
        by now."""
        newest = self._context.newest_key
        credible = key[0] <= newest[0] + limits.MAX_TERM_STEP
        return credible and key > newest and key[1] <= newest[1] + limits.MAX_VERSION_STEP

    def won(self, now: float, policy: Policy) -> None:
        """Take the role over: this node has won an election."""
        context, election = self._context, self._context.election
        self._watch.won()
        self.lead(now, policy)
        me = context.config.me.name
        context.report("scheduler", node=me, term=election.term, why=election.why)
        if election.why == "failed over":  # the scheduler was lost, so the round needs a fence
            self._watch.open_fence(now, policy)
        self._new_scheduler(now)

    def resign(self) -> None:
        """Give the role up because another member leads in the same term."""
        self._context.election.resign()
        self.negotiator = self._asked_until = None

    def lead(self, now: float, policy: Policy) -> None:
        """Begin to negotiate as the scheduler of the present term."""
        context = self._context
        term, total = context.election.term, context.config.micro_batches
        self._since, self._asked_until = context.iteration, None
        config = context.config
        sizes = (config.state_bytes, config.vector_bytes)
        known = (config.constant_bytes, context.constants)
        how = (config.update_bytes, config.join_way)
        cost = JoinCost(*sizes, config.join_stall_s, context.pace, *known, *how, config.stands_by)
        divided = (context.config.copies, context.config.stripe_bytes)
        negotiator = Negotiator(context.node, term, policy, total, context.planner, cost, *divided)
        negotiator.joins.resume(now)
        self.negotiator = negotiator
        self._watch.brief()

    def rotate(self, now: float) -> None:
        """Hand the role over if it is time to and nothing is open; take it up again if the heir
        that was asked has let too much time pass."""
        context, negotiator = self._context, self.negotiator
        if negotiator is None or context.departs:
            self._asked_until = None
        elif self._asked_until is not None:
            if now >= self._asked_until:
                self._asked_until, self._since = None, context.iteration
                negotiator.hold_back(False)
        elif negotiator.passing:  # this node wanted to go, and wants it no more: it is alone now
            negotiator.hold_back(False)
        elif negotiator.is_idle and self._is_due:
            self.step_down(now)

    def search(self, now: float) -> None:
        """Have better ways searched for, if that is due."""
        if self.negotiator is not None and (wanted := self.negotiator.begin_search(now)):
            self._context.do(wanted)

    @property
    def _is_due(self) -> bool:
        every = self._context.config.rotate_every
        return every > 0 and self._context.iteration - self._since >= every

    def make_way(self, now: float) -> None:
        """Hand the role over, unless a fence or a switch is open, because a user wants this node
        expelled; the next scheduler is asked to do that."""
        negotiator = self.negotiator
        if negotiator is None or self.leads_fence or self._asked_until is not None:
            return
        if negotiator.switch is None:
            self.step_down(now)

    def step_down(self, now: float) -> None:
        """Ask an heir to take the role over; `rotate` takes it up again if none does in time."""
        negotiator, policy = self.negotiator, self._context.policy
        if negotiator is not None and policy is not None and len(policy.view.nodes) > 1:
            self._asked_until = now + limits.RETRY_SECONDS
            self.pass_role(policy, negotiator)

    def pass_role(self, policy: Policy, negotiator: Negotiator) -> None:
        """Ask the next heir to stand for election, another one each time. If all others are leaving
        there is none: this node lets them leave first."""
        context = self._context
        leaving = (context.node, *negotiator.leaving)
        heirs = [n for n in policy.view.nodes if n not in leaving]
        negotiator.hold_back(bool(heirs))
        if heirs:
            self._tried_term = max(context.election.term, self._tried_term) + 1
            heir = heirs[self._tried_term % len(heirs)]
            context.send(heir, m.PassRole(self._tried_term))
