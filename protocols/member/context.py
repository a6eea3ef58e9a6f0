"""What the parts of one node share: its identity, its links, its policies, its outbox.

A part acts on the world only by appending to `effects`. What one part must know of another stands
here, or is given to it when it is built.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.ancestry import Ancestor, Past
from protocols.effects import Effect, Report, Send
from protocols.scheduler.join_cost import Pace
from protocols.wire.messages import PolicyFetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.election import Election
    from protocols.cluster.policy import Electorate, Policy
    from protocols.cluster.view import Member
    from protocols.events import Applied
    from protocols.network.measures import Rate
    from protocols.network.routing import Router
    from protocols.scheduler.planning import Planner
    from protocols.wire.envelope import Envelope
    from protocols.wire.messages import Message

NO_LINEAGE = bytes(limits.LINEAGE_BYTES)


def _not_known(_node: bytes) -> Rate | None:
    """Nothing has been measured."""
    return None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What never changes in one incarnation of a node.

    `chunks`: number of chunks of the gradient vector, chunk 0 included. `state_bytes`: size of the
    flat training state. `samples_per_iteration`: the global batch. `pauses`: without a quorum this
    node waits instead of going on in a lineage of its own. `rotate_every`: steps after which it
    hands the scheduler's role over, 0 for never. `vector_bytes`: size of the gradient vector.
    `join_stall_s`: how long a join may stop the others, as long as this node is the scheduler; 0
    for as long as it takes.
    """

    me: Member
    chunks: int
    state_bytes: int
    micro_batches: int
    samples_per_iteration: int
    steps: int
    wanted_neighbours: tuple[str, ...] = ()
    pauses: bool = False
    rotate_every: int = 0
    vector_bytes: int = 0
    join_stall_s: float = 0.0


@dataclass(slots=True)
class Context:
    """Shared by the parts of one node."""

    config: NodeConfig
    planner: Planner
    router: Router
    election: Election
    links: dict[bytes, Member] = field(default_factory=dict)
    policies: dict[tuple[int, int], Policy] = field(default_factory=dict)
    policy: Policy | None = None
    lineage: bytes = NO_LINEAGE
    ancestors: tuple[Ancestor, ...] = ()  # lineages that came before this one
    iteration: int = 0
    attempt: int = 0
    steps: int = 0
    samples: int = 0
    commit: bytes = bytes(32)
    meta: bytes = b""
    asked: tuple[int, int] | None = None  # key of the policy that this node asks others for
    prepared: tuple[int, int] | None = None  # key of a fence's policy that is stored, not decided
    leaving: bool = False
    yielding: bool = False
    pace: Pace = field(default_factory=Pace)  # of this node's steps
    stalled: bool = False  # the trainer does not answer: let this node go
    diverged: bool = False  # the trainer's state was found to differ from that of the others
    now: float = 0.0  # of the event that is being handled
    incoming: Callable[[bytes], Rate | None] = _not_known  # what arrives from a neighbour
    effects: list[Effect] = field(default_factory=list)
    own: deque[Applied] = field(default_factory=deque)  # events that the node causes itself
    # What follows from the policies alone is asked for many times an event, so it is kept.
    _stored: int = 0  # policies so far
    _counted_for: tuple[int, tuple[int, int], bytes] = (-1, (0, 0), b"")
    _counted: tuple[Policy, ...] = ()
    _neighbours: tuple[bytes, ...] = ()

    @property
    def node(self) -> bytes:
        """This node's id."""
        return self.config.me.node

    @property
    def past(self) -> Past:
        """What the training state has behind it."""
        return Past(self.iteration, self.lineage, self.ancestors)

    @property
    def is_member(self) -> bool:
        """Whether this node is in the view in force."""
        return self.policy is not None and self.node in self.policy.view.nodes

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only member."""
        return self.policy is not None and self.policy.view.nodes == (self.node,)

    @property
    def is_isolated(self) -> bool:
        """Whether this node is a member with others of which it reaches none."""
        policy = self.policy
        return policy is not None and len(policy.view.members) > 1 and not self.near

    @property
    def near(self) -> tuple[bytes, ...]:
        """Members of the view in force to which a link is open; a device that has begun anew since
        is another one than the member of its name."""
        links = self.links
        members = self.policy.view.members if self.policy is not None else ()
        linked = [m for m in members if m.node in links]
        return tuple(m.node for m in linked if m.incarnation == links[m.node].incarnation)

    @property
    def unlinked(self) -> list[bytes]:
        """`neighbours` to which no link is open, as the members that they are."""
        counts, links = self._that_count, self.links
        missing: list[bytes] = []
        for node in self._neighbours:
            peer = links.get(node)
            named = [p.view.member(node) for p in counts] if peer is not None else []
            if not any(m and peer and m.incarnation == peer.incarnation for m in named):
                missing.append(node)
        return missing

    @property
    def departs(self) -> str:
        """Why this node wants to go, "" if it does not."""
        if self.diverged:
            return "diverged"
        if self.leaving:
            return "left"
        if self.yielding:
            return "yielded"
        return "stalled" if self.stalled and not self.is_alone else ""

    @property
    def newest_key(self) -> tuple[int, int]:
        """The newest policy stored here."""
        return max(self.policies, default=(0, 0))

    @property
    def electorates(self) -> tuple[Electorate, ...]:
        """Whose quorums count: that of the policy in force, and those of newer ones that are stored
        here and so may be in force elsewhere."""
        return tuple(p.electorate for p in self._that_count)

    @property
    def neighbours(self) -> tuple[bytes, ...]:
        """To whom those policies have a link from here, ascending."""
        self._count()
        return self._neighbours

    @property
    def _that_count(self) -> tuple[Policy, ...]:
        self._count()
        return self._counted

    def _count(self) -> None:
        """Find the policies that count, and the neighbours in them, if anything has changed."""
        here = self.policy.key if self.policy is not None else (0, 0)
        now = (self._stored, here, self.lineage)
        if now == self._counted_for:
            return
        self._counted_for = now
        self._counted = tuple(
            p
            for key, p in sorted(self.policies.items())
            if key == here or (key > here and p.view.lineage == self.lineage)
        )
        near = dict.fromkeys(n for p in self._counted for n in p.view.neighbours(self.node))
        self._neighbours = tuple(sorted(near))

    def is_leaving(self, node: bytes) -> bool:
        """Whether a policy that is stored here leaves a member of the present view out."""
        if self.policy is None or node not in self.policy.view.nodes:
            return False
        newest = max(k for k in self.policies if k != self.prepared)
        return node not in self.policies[newest].view.nodes

    def name(self, node: bytes) -> str:
        """Return the name of `node` for people."""
        if node == self.node:
            return self.config.me.name
        if node in self.links:
            return self.links[node].name
        for policy in self.policies.values():
            if (member := policy.view.member(node)) is not None:
                return member.name
        return node.hex()[:8]

    def do(self, effect: Effect) -> None:
        """Want `effect`."""
        self.effects.append(effect)

    def report(self, event: str, **values: object) -> None:
        """Tell the user."""
        self.effects.append(Report(event, values))

    def send(self, to: bytes, message: Message) -> None:
        """Send `message` to a node, neighbour or not, or to everyone in reach."""
        policy = self.policy
        tags = (
            self.lineage,
            self.election.term,
            policy.view.number if policy else 0,
            policy.version if policy else 0,
            self.iteration,
            self.attempt,
        )
        self.relay(self.router.stamp(tags, to, message), None)

    def relay(self, envelope: Envelope, via: bytes | None) -> None:
        """Send `envelope` on towards its destination."""
        for neighbour in self.router.ways(envelope, tuple(sorted(self.links)), via):
            self.effects.append(Send(neighbour, envelope))

    def fetch(self, key: tuple[int, int]) -> None:
        """Ask the neighbours for the body of a policy."""
        self.asked = key
        for neighbour in sorted(self.links):
            self.send(neighbour, PolicyFetch(*key))

    def store(self, policy: Policy) -> None:
        """Keep a policy's body; the oldest ones go."""
        self._stored += 1
        self.policies[policy.key] = policy
        for key in sorted(self.policies)[: -limits.MAX_POLICIES_KEPT]:
            if self.policy is None or key != self.policy.key:
                del self.policies[key]
