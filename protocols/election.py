"""Who is the scheduler: terms and votes.

Law: one granted vote a term, so at most one scheduler a term; terms only grow; a candidate whose
newest stored policy is older than the voter's is refused, so a winner knows every policy that may
have come into force. A scheduler that hands its role over asks its heir to stand; one that is
lost is replaced by whoever notices first, in the order of ids. A voter that can still reach it
votes for nobody, so a node with one bad link does not unseat it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from protocols.messages import EVERYONE, Lead, Message, PassRole, Vote, VoteRequest
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from protocols.view import View

Mail = tuple[bytes, Message]


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
    Row(Role.CANDIDATE, "vote", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.CANDIDATE, "role passed", (Role.CANDIDATE, Role.SCHEDULER)),
    Row(Role.CANDIDATE, "vote wanted", (Role.CANDIDATE, Role.FOLLOWER)),
    Row(Role.CANDIDATE, "led", (Role.FOLLOWER,)),
    Row(Role.SCHEDULER, "vote wanted", (Role.SCHEDULER, Role.FOLLOWER)),
    Row(Role.SCHEDULER, "led", (Role.FOLLOWER,)),
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
        self._gone: tuple[bytes, ...] = ()  # members whose votes this candidacy does without
        self._why = "founded"
        self.by_quorum = True  # False: this node's term holds only in a lineage of its own

    @property
    def why(self) -> str:
        """How the present term of this node came about."""
        return self._why

    @property
    def leads(self) -> bool:
        """Whether this node is the scheduler."""
        return self.state is Role.SCHEDULER

    def found(self) -> None:
        """This node founded the cluster: term 1 is its own."""
        self.state = ELECTION_TABLE.step(self.state, "founded", Role.SCHEDULER)
        self.term = self.voted_term = 1
        self.scheduler = self.node

    def follow(self, term: int, scheduler: bytes) -> None:
        """Learn from a member's welcome who leads in `term`."""
        if term > self.term:
            self.term, self.scheduler = term, scheduler
            self.voted_term = max(self.voted_term, term)

    def role_passed(self, message: PassRole, view: View, key: tuple[int, int]) -> list[Mail]:
        """The scheduler asks this node to stand; `key` is the newest policy stored here."""
        if not ELECTION_TABLE.allows(self.state, "role passed"):
            return []
        if message.next_term <= self.voted_term or self.node not in view.nodes:
            return []
        self._why = "rotated"
        return self._stand("role passed", message.next_term, view, key, ())

    def scheduler_lost(
        self, view: View, key: tuple[int, int], gone: tuple[bytes, ...]
    ) -> list[Mail]:
        """The scheduler is lost: stand in a new term. `gone`: members whose votes are not needed,
        because they are proven dead or the wait for them is over."""
        if not ELECTION_TABLE.allows(self.state, "scheduler lost"):
            return []
        self._why = "failed over"
        term = max(self.term, self.voted_term, self.seen_term) + 1
        return self._stand("scheduler lost", term, view, key, gone)

    def _stand(
        self,
        event: str,
        term: int,
        view: View,
        key: tuple[int, int],
        gone: tuple[bytes, ...],
    ) -> list[Mail]:
        self.voted_term = term
        self._gone = gone
        self._votes = {self.node: None}
        self.state = ELECTION_TABLE.step(self.state, event, Role.CANDIDATE)
        if self._enough(view):
            return self._win(event, view)
        request = VoteRequest(term, *key, event == "role passed")
        return [(n, request) for n in view.nodes if n != self.node]

    def _enough(self, view: View) -> bool:
        here = sum(n in self._votes for n in view.nodes)
        rest = [n for n in view.nodes if n not in self._votes]
        return here >= view.majority or all(n in self._gone for n in rest)

    def vote_wanted(
        self,
        sender: bytes,
        message: VoteRequest,
        view: View,
        key: tuple[int, int],
        *,
        content: bool,
    ) -> list[Mail]:
        """A candidate asks for this node's vote; `content`: the scheduler is in reach."""
        self.seen_term = max(self.seen_term, message.next_term)
        known = self.node in view.nodes and sender in view.nodes
        known = known and (message.asked or not content)
        newer = (message.policy_term, message.version) >= key
        granted = known and newer and message.next_term > self.voted_term
        then = self.state
        if granted:
            self.voted_term = message.next_term
            self._votes = {}
            then = Role.FOLLOWER if self.state is Role.CANDIDATE else self.state
            self._gone = ()
        self.state = ELECTION_TABLE.step(self.state, "vote wanted", then)
        return [(sender, Vote(message.next_term, granted))]

    def vote(self, sender: bytes, message: Vote, view: View) -> list[Mail]:
        """A member answered."""
        mine = message.next_term == self.voted_term and message.granted
        if not mine or sender not in view.nodes or not ELECTION_TABLE.allows(self.state, "vote"):
            return []
        self._votes[sender] = None
        if self._enough(view):
            return self._win("vote", view)
        self.state = ELECTION_TABLE.step(self.state, "vote", Role.CANDIDATE)
        return []

    def led(self, sender: bytes, message: Lead) -> bool:
        """`sender` announces that it won; return whether that is news."""
        if message.new_term <= self.term:
            return False
        self.state = ELECTION_TABLE.step(self.state, "led", Role.FOLLOWER)
        self.term, self.scheduler = message.new_term, sender
        self.voted_term = max(self.voted_term, message.new_term)
        return True

    def _win(self, event: str, view: View) -> list[Mail]:
        self.by_quorum = sum(n in self._votes for n in view.nodes) >= view.majority
        self.state = ELECTION_TABLE.step(self.state, event, Role.SCHEDULER)
        self.term, self.scheduler = self.voted_term, self.node
        return [(EVERYONE, Lead(self.term, self._why))]
