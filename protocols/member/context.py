"""The state that all parts of one node share: its identity, its links, its policies, its effects.

A part acts on the world only by appending to `effects`, which the shell carries out after the
event. If one part has to know something about another one, that is either kept here, or passed to
its constructor; parts do not look into each other otherwise.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.ancestry import Ancestor, Past
from protocols.cluster.standby import LEAST_OTHERS
from protocols.cluster.stripes import OnLost, other_holders
from protocols.effects import Effect, Report, Send
from protocols.member.freeze import Freeze
from protocols.scheduler.join_cost import JoinWay, Pace
from protocols.wire.messages import PolicyFetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.election import Election
    from protocols.cluster.policy import Electorate, Policy, Pull
    from protocols.cluster.view import Member, View
    from protocols.events import Applied
    from protocols.network.measures import Rate
    from protocols.network.routing import Router
    from protocols.scheduler.planning import Planner
    from protocols.wire.envelope import Envelope
    from protocols.wire.messages import Message

NO_LINEAGE = bytes(limits.LINEAGE_BYTES)


def _not_known(_node: bytes) -> Rate | None:
    """Stand in for `Monitor.incoming` until there is a monitor: no rate is known."""
    return None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What never changes in one incarnation of a node.

    - `chunks`: the number of chunks of the gradient vector, including chunk 0, the control word.
    - `state_bytes`: the size of the flat training state.
    - `micro_batches`: how many micro-batches the global batch of one iteration has.
    - `samples_per_iteration`: the size of the global batch in samples.
    - `steps`: the iteration after which the training ends.
    - `wanted_neighbours`: names of the members that the user wants this node to link to.
    - `pauses`: without a quorum, this node waits instead of going on in a lineage of its own.
    - `rotate_every`: the scheduler hands its role over after this many steps; 0 means never.
    - `vector_bytes`: the size of the gradient vector.
    - `join_stall_s`: a join may stop the other members for this many seconds while this node is
      the scheduler; 0 means that it may take as long as it needs.
    - `constant_bytes`: so many bytes at the beginning of the state never change while training.
    - `constants`: SHA-256 of these bytes as they are here, empty if there are none or not known.
    - `update_bytes`: the size of what a joiner that copies beside the training receives of one
      update: the reduced gradient in full precision and the sum of squares of each chunk; 0 if
      joiners cannot copy in that way.
    - `join_way`: how joiners copy while this node is the scheduler (`join_cost.JoinWay`).
    - `stands_by`: this node stands by while the others are much faster without it, and has others
      do the same while it is the scheduler (`standby.py`).
    - `follows`: this node follows from outside, and enters only if nobody else is there.
    - `window`: where a policy has ways, a node sends partial sums up to so many chunks ahead of the
      first one that is not reduced there (`limits.WINDOW_BYTES`).
    - `stripes`: into how many the optimizer's state is divided, 0 if all members keep all of it;
      `copies`: how many members keep each of them beside its owner; `stripe_bytes`: the slots of
      one; `on_lost`: what this node does if all holders of one are lost.
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
    constant_bytes: int = 0
    constants: bytes = b""
    window: int = limits.MAX_CHUNKS
    update_bytes: int = 0
    join_way: JoinWay = JoinWay.AUTO
    stands_by: bool = False
    follows: bool = False
    stripes: int = 0
    copies: int = 0
    stripe_bytes: int = 0
    on_lost: OnLost = OnLost.WAIT


@dataclass(slots=True)
class Context:
    """The state that the parts of one node share."""

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
    constants: bytes = b""  # SHA-256 of the constant part of a member's state, as far as is known
    asked: tuple[int, int] | None = None  # key of the policy that this node asks others for
    # A neighbour that was asked for a policy that it alone has named here, and the policy's key.
    missed: tuple[bytes, tuple[int, int]] | None = None
    prepared: tuple[int, int] | None = None  # key of a fence's policy that is stored, not decided
    leaving: bool = False
    yielding: bool = False
    freeze: Freeze = field(default_factory=Freeze)  # whether a fence holds this node
    pace: Pace = field(default_factory=Pace)  # of this node's steps
    stands_by: bool = False  # the others are faster without this node, so it asks to be let go
    standby: str = ""  # the reason for which it has last asked so
    stalled: bool = False  # the trainer does not answer, so this node asks to be let go
    keeps_up: Callable[[bytes], bool] = lambda _node: True  # whether a member's trainer answers
    diverged: bool = False  # the trainer's state was found to differ from that of the others
    now: float = 0.0  # the time of the event that is being handled, in seconds
    incoming: Callable[[bytes], Rate | None] = _not_known  # how fast a neighbour sends to this node
    effects: list[Effect] = field(default_factory=list)
    inbox: deque[Message] = field(default_factory=deque)  # messages to this node itself
    own: deque[Applied] = field(default_factory=deque)  # events that the node causes itself
    # A cache. `electorates` and `neighbours` are read many times during one event, and change only
    # if a policy is stored or comes into force, or if the lineage changes. `_counted_for` is the
    # state of these three for which `_counted` and `_neighbours` were computed.
    _stored: int = 0  # how many times `store` was called
    _counted_for: tuple[int, tuple[int, int], bytes] = (-1, (0, 0), b"")
    _counted: tuple[Policy, ...] = ()
    _neighbours: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # their incarnations

    @property
    def node(self) -> bytes:
        """This node's id."""
        return self.config.me.node

    @property
    def past(self) -> Past:
        """The history of the training state: its iteration and the lineages it has gone through."""
        return Past(self.iteration, self.lineage, self.ancestors)

    def pull_of(self, joiner: bytes) -> Pull | None:
        """Return the pull of `joiner` under the policy in force, None if there is none."""
        return self.policy.pull_of(joiner) if self.policy is not None else None

    @property
    def may_be_named(self) -> bool:
        """Whether a policy with this node in its view may come into force: nobody offers one before
        it is stored here."""
        key = self.policy.key if self.policy is not None else (0, 0)
        return any(p.key > key and p.view.member(self.node) for p in self.policies.values())

    @property
    def is_member(self) -> bool:
        """Whether this node is in the view in force."""
        return self.policy is not None and self.node in self.policy.view.nodes

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only member."""
        return self.policy is not None and self.policy.view.nodes == (self.node,)

    @property
    def is_awaited(self) -> bool:
        """Whether other members may wait for this node: those of the view in force, or of one that
        is stored here and may be in force elsewhere, as where a joiner that follows the rounds is
        a member already."""
        return any(p.view.nodes != (self.node,) for p in self._that_count)

    @property
    def is_at_end(self) -> bool:
        """Whether the last update is in the state here, so that nothing is left to be trained."""
        return self.iteration >= self.steps

    @property
    def has_few_copies(self) -> bool:
        """Whether a stripe that this node keeps or learns has fewer than two other holders, under
        the policy in force or a later one that is here. Then another member that goes at the same
        moment, which this node cannot know, may take the last other copy with it."""
        policy = self.policy
        least = policy.key if policy is not None else (0, 0)
        known = [p for p in (policy, *self.policies.values()) if p and p.key >= least]
        found = [other_holders(p.view, p.stripes, self.node) for p in known]
        return any(len(others) < 2 for stripes in found for others in stripes)

    @property
    def is_isolated(self) -> bool:
        """Whether the view has other members, but no link to any of them is open."""
        policy = self.policy
        return policy is not None and len(policy.view.members) > 1 and not self.near

    @property
    def near(self) -> tuple[bytes, ...]:
        """The members of the view in force to which a link is open. A device whose agent has
        started again since is not the member that the view names, so its incarnation is compared,
        too."""
        links = self.links
        members = self.policy.view.members if self.policy is not None else ()
        linked = [m for m in members if m.node in links]
        return tuple(m.node for m in linked if m.incarnation == links[m.node].incarnation)

    @property
    def unlinked(self) -> list[bytes]:
        """Those of `neighbours` to which no link is open. A link to another incarnation of the node
        than a policy that counts names does not count as open."""
        self._count()
        links, found = self.links, self._neighbours
        return [
            n for n, named in found.items() if n not in links or links[n].incarnation not in named
        ]

    @property
    def departs(self) -> str:
        """Why this node wants to leave the cluster, "" if it does not want to. A trainer that does
        not answer is no reason for the only member to leave, because nobody waits for it, and a
        slow link is none where too few others would be left."""
        if self.diverged:
            return "diverged"
        if self.leaving:
            return "left"
        if self.yielding:
            return "yielded"
        if self.stands_by and self.policy is not None:
            others = [n for n in self.policy.view.nodes if n != self.node]
            if len(others) >= LEAST_OTHERS:
                return "standby"
        return "stalled" if self.stalled and not self.is_alone else ""

    @property
    def parts_for(self) -> str:
        """Why this node goes that a policy does not name any more. It may have changed its mind
        after it had asked to stand by, when the scheduler had already planned without it."""
        return self.departs or ("standby" if self.standby else "left")

    def parting_words(self, why: str) -> str:
        """Return what a user is told when this node's part ends for the reason `why`."""
        if why == "removed":
            return "a user has expelled this device from the cluster"
        return self.standby if why == "standby" else ""

    @property
    def newest_key(self) -> tuple[int, int]:
        """The key (term, version) of the newest policy stored here; (0, 0) if none is."""
        return max(self.policies, default=(0, 0))

    @property
    def electorates(self) -> tuple[Electorate, ...]:
        """The electorates of which a quorum is needed: that of the policy in force, and those of
        the newer policies that are stored here and therefore may be in force elsewhere."""
        return tuple(p.electorate for p in self._that_count)

    @property
    def neighbours(self) -> tuple[bytes, ...]:
        """The nodes to which a policy in `electorates` names a link from this node, ascending."""
        self._count()
        return tuple(self._neighbours)

    @property
    def _that_count(self) -> tuple[Policy, ...]:
        self._count()
        return self._counted

    def _count(self) -> None:
        """Compute the policies that count and the neighbours in them, unless they are cached."""
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
        views = [p.view for p in self._counted]
        near = dict.fromkeys(n for view in views for n in view.neighbours(self.node))
        self._neighbours = {
            n: tuple(member.incarnation for view in views if (member := view.member(n)) is not None)
            for n in sorted(near)
        }

    def is_leaving(self, node: bytes) -> bool:
        """Whether `node`, a member of the present view, is absent from the newest policy that is
        stored here. The policy of a fence that is not decided yet does not count."""
        if self.policy is None or node not in self.policy.view.nodes:
            return False
        newest = max(k for k in self.policies if k != self.prepared)
        return node not in self.policies[newest].view.nodes

    def is_spare(self, peer: Member, view: View) -> bool:
        """Whether `view` has no link to `peer`, not yet or no longer, so that its loss is none."""
        if peer.node in view.nodes:
            return peer.node not in self.neighbours
        known = [p.view.member(peer.node) for p in self.policies.values()]
        return any(m is not None and m.incarnation == peer.incarnation for m in known)

    def name(self, node: bytes) -> str:
        """Return the name of `node` to be shown to people; the start of its id if it is unknown."""
        if node == self.node:
            return self.config.me.name
        if node in self.links:
            return self.links[node].name
        for policy in self.policies.values():
            if (member := policy.view.member(node)) is not None:
                return member.name
            if (pull := policy.pull_of(node)) is not None:
                return pull.joiner.name
        return node.hex()[:8]

    def do(self, effect: Effect) -> None:
        """Append `effect` to those that the shell carries out after this event."""
        self.effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return the effects that were asked for since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects

    def report(self, event: str, **values: object) -> None:
        """Have `event` reported to the user and written to the event file."""
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
        """Send `envelope` towards its destination. `via` is the neighbour it came from, to which it
        is not sent back, None if this node is its origin."""
        links = tuple(sorted(self.links))
        near = self.policy.linked_to(envelope.tags.origin) if self.policy is not None else ()
        if via is not None and not self.is_member:
            near = links  # a joiner's neighbours have the members' messages from members
        for neighbour in self.router.ways(envelope, links, via, near):
            self.effects.append(Send(neighbour, envelope))

    def fetch(self, key: tuple[int, int]) -> None:
        """Ask all neighbours for the body of the policy `key`; any of them may have it."""
        self.asked = key
        for neighbour in sorted(self.links):
            self.send(neighbour, PolicyFetch(*key))

    def store(self, policy: Policy) -> None:
        """Store a policy's body. The oldest bodies beyond `MAX_POLICIES_KEPT` are forgotten, but
        never that of the policy in force."""
        self._stored += 1
        self.policies[policy.key] = policy
        for key in sorted(self.policies)[: -limits.MAX_POLICIES_KEPT]:
            if self.policy is None or key != self.policy.key:
                del self.policies[key]
