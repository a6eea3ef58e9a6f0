"""Who is the scheduler: terms and votes, similar to leader election in Raft (protocol.md, 7.1).

- A member grants one vote in a term, so there is at most one scheduler in a term. Terms only grow.
- A candidate whose newest stored policy is older than the voter's is refused. So a winner knows
  every policy that may have come into force, and it needs a quorum under each of them.
- A scheduler that hands its role over asks its heir to stand. One that is lost is replaced by the
  first heir, in the order of ids, that notices it.
- A voter that can still reach the scheduler refuses its vote, so that a node with one bad link does
  not unseat the scheduler.
- A term further ahead than elections could have gone unnoticed is not believed. Each message raises
  the largest believable term by `limits.MAX_TERM_STEP` at most. So one message with a wrong term
  decides nothing, while parts of a cluster that were apart for long, each with candidates in vain,
  catch up with each other by asking again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import is_quorum
from protocols.table import Row, StateTable
from protocols.wire.messages import EVERYONE, Lead, Letter, PassRole, Vote, VoteRequest

if TYPE_CHECKING:
    from protocols.cluster.policy import Electorate

Electorates = tuple["Electorate", ...]


class Role(StrEnum):
    """What this node is in its term."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    SCHEDULER = "scheduler"


ELECTION_TABLE: StateTable[Role] = StateTable(
    "election",
    Row(Role.FOLLOWER, "founded", (Role.SCHEDULER,)),
    Row(Role.FOLLOWER, "role passed", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.FOLLOWER, "scheduler lost", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.CANDIDATE, "scheduler lost", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.FOLLOWER, "vote wanted", (Role.FOLLOWER,)),
    Row(Role.FOLLOWER, "led", (Role.FOLLOWER,)),
    Row(Role.CANDIDATE, "voter lost", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.CANDIDATE, "vote", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.CANDIDATE, "role passed", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.CANDIDATE, "vote wanted", (Role.CANDIDATE, Role.FOLLOWER)),
    Row(Role.CANDIDATE, "led", (Role.FOLLOWER,)),
    Row(Role.SCHEDULER, "vote wanted", (Role.SCHEDULER, Role.FOLLOWER)),
    Row(Role.SCHEDULER, "led", (Role.FOLLOWER,)),
    Row(Role.SCHEDULER, "rival", (Role.FOLLOWER,)),
)


class Election:
    """The role, term and vote of one member."""

    def __init__(self, node: bytes) -> None:
        self.state = ELECTION_TABLE.initial
        self.node = node
        self.term = 0
        self.scheduler = b""
        self.voted_term = 0  # the newest term in which this node granted its vote
        self.seen_term = 0  # the newest term that anybody stood for
        self._votes: dict[bytes, None] = {}
        self._electorates: Electorates = ()  # the electorates that this candidacy needs a quorum of
        self._gone: tuple[bytes, ...] = ()  # members whose votes this candidacy does without
        self._why = "founded"
        self.by_quorum = True  # False: elected without a quorum, so its fence may have to fork

    @property
    def why(self) -> str:
        """How this node became the scheduler: "founded", "rotated" or "failed over"."""
        return self._why

    @property
    def leads(self) -> bool:
        """Whether this node is the scheduler."""
        return self.state is Role.SCHEDULER

    def is_credible(self, term: int) -> bool:
        """Note that a node says that `term` has begun; return whether that can be believed yet."""
        most = max(self.term, self.voted_term, self.seen_term) + limits.MAX_TERM_STEP
        self.seen_term = max(self.seen_term, min(term, most))
        return term <= most

    def found(self) -> None:
        """This node has founded the cluster, so it is the scheduler of term 1."""
        self.state = ELECTION_TABLE.step(self.state, "founded", Role.SCHEDULER)
        self.term = self.voted_term = 1
        self.scheduler = self.node

    def resign(self) -> None:
        """Give the role up because another member leads in this term, too. `scheduler` stays this
        node, so that the other one's orders are not obeyed."""
        self.state = ELECTION_TABLE.step(self.state, "rival", Role.FOLLOWER)

    def follow(self, term: int, scheduler: bytes) -> None:
        """Take from a member's `Welcome` who is the scheduler of `term`."""
        if term > self.term:
            self.term, self.scheduler = term, scheduler
            self.voted_term = max(self.voted_term, term)

    def role_passed(
        self, message: PassRole, electorates: Electorates, key: tuple[int, int]
    ) -> list[Letter]:
        """Stand for election because the scheduler asks for it; `key` is that of the newest policy
        stored here. The scheduler may not know of terms in which others stood in vain, so this node
        stands in a later one if it has voted in the term that it was offered."""
        if not ELECTION_TABLE.allows(self.state, "role passed"):
            return []
        if message.next_term <= self.term or self.node not in electorates[0].nodes:
            return []
        self._why = "rotated"
        term = max(message.next_term, self.voted_term + 1)
        return self._stand("role passed", term, electorates, key, ())

    def scheduler_lost(
        self, electorates: Electorates, key: tuple[int, int], gone: tuple[bytes, ...]
    ) -> list[Letter]:
        """Stand in a new term because the scheduler is lost. `gone`: members whose votes are not
        needed, because they are proven dead or the wait for them is over."""
        if not ELECTION_TABLE.allows(self.state, "scheduler lost"):
            return []
        self._why = "failed over"
        # Also larger than the term of every stored policy, whose scheduler may have missed us.
        term = max(self.term, self.voted_term, self.seen_term, key[0]) + 1
        return self._stand("scheduler lost", term, electorates, key, gone)

    def _stand(
        self,
        event: str,
        term: int,
        electorates: Electorates,
        key: tuple[int, int],
        gone: tuple[bytes, ...],
    ) -> list[Letter]:
        self.voted_term = term
        self._gone = gone
        self._electorates = electorates
        self._votes = {self.node: None}
        self.state = ELECTION_TABLE.step(self.state, event, Role.CANDIDATE)
        if self._enough:
            return self._win(event)
        request = VoteRequest(term, *key, event == "role passed")
        voters = dict.fromkeys(n for e in electorates for n in e.nodes)
        return [(n, request) for n in voters if n != self.node]

    @property
    def _enough(self) -> bool:
        return all(
            is_quorum(e.nodes, self._votes)
            or all(n in self._votes or n in self._gone for n in e.nodes)
            for e in self._electorates
        )

    def vote_wanted(
        self,
        sender: bytes,
        message: VoteRequest,
        electorates: Electorates,
        key: tuple[int, int],
        *,
        content: bool,
    ) -> list[Letter]:
        """Answer a candidate that asks for this node's vote (protocol.md, 7.1, has the rules).
        `content`: the scheduler is in reach. A joiner that a stored policy lets in votes, too,
        because that policy may be in force elsewhere."""
        credible = self.is_credible(message.next_term)
        known = credible and any(self.node in e.nodes and sender in e.nodes for e in electorates)
        known = known and (message.asked or not content)
        newer = (message.policy_term, message.version) >= key
        granted = known and newer and message.next_term > self.voted_term
        then = self.state
        if granted:
            # A vote in a later term ends this node's own candidacy, so late votes for it are void.
            self.voted_term = message.next_term
            self._votes = {}
            then = Role.FOLLOWER if self.state is Role.CANDIDATE else self.state
            self._gone = ()
        self.state = ELECTION_TABLE.step(self.state, "vote wanted", then)
        return [(sender, Vote(message.next_term, granted, *key))]

    def vote(self, sender: bytes, message: Vote) -> list[Letter]:
        """Count a member's answer."""
        mine = message.next_term == self.voted_term and message.granted
        if not mine or not ELECTION_TABLE.allows(self.state, "vote"):
            return []
        if not any(sender in e.nodes for e in self._electorates):
            return []
        self._votes[sender] = None
        if self._enough:
            return self._win("vote")
        self.state = ELECTION_TABLE.step(self.state, "vote", Role.CANDIDATE)
        return []

    def voters_lost(self, gone: tuple[bytes, ...]) -> list[Letter]:
        """Do without the votes of members that are proven dead, in a candidacy under way."""
        if not ELECTION_TABLE.allows(self.state, "voter lost"):
            return []
        if all(n in self._gone for n in gone):
            return []
        self._gone = tuple(dict.fromkeys((*self._gone, *gone)))
        if self._enough:
            return self._win("voter lost")
        self.state = ELECTION_TABLE.step(self.state, "voter lost", Role.CANDIDATE)
        return []

    def led(self, sender: bytes, message: Lead) -> bool:
        """Follow `sender`, which announces that it has won; return whether its term is new."""
        if message.new_term <= self.term:
            return False
        self.state = ELECTION_TABLE.step(self.state, "led", Role.FOLLOWER)
        self.term, self.scheduler = message.new_term, sender
        self.voted_term = max(self.voted_term, message.new_term)
        return True

    def _win(self, event: str) -> list[Letter]:
        self.by_quorum = all(is_quorum(e.nodes, self._votes) for e in self._electorates)
        self.state = ELECTION_TABLE.step(self.state, event, Role.SCHEDULER)
        self.term, self.scheduler = self.voted_term, self.node
        return [(EVERYONE, Lead(self.term, self._why))]
