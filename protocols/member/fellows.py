"""What joiners that copy the same state at the same time do for each other.

When many devices come at once, as at the start of a lesson, the members would have to send the
whole state to each of them. But a joiner may send on what it has copied already: then the members
together need send little more than one copy, and the more devices come, the more of them send.

- Fellows are joiners whose pulls begin with one policy and in one way, so that they copy the state
  of one iteration. They learn of each other from that policy, which also makes them trust each
  other's keys. Each links to a few of the others (`MOST_FELLOWS`), after it has heard from them,
  through members, that they have begun.
- A joiner tells its fellows which shards are verified here (`ShardsHere`), and they ask for them
  as they ask a source (`pull.py`). It sends only what it has verified itself, and they verify it
  again.
- As soon as its copy is whole, its trainer changes the state. So it tells its fellows that it
  sends nothing more, and what they still wait for comes from others. Nobody relies on a fellow.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import CloseLink, Dial, SendShards
from protocols.errors import RemoteProtocolError
from protocols.wire.messages import CopyEnded, ShardsHere

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.policy import Pull as PullPlan
    from protocols.member.context import Context
    from protocols.member.pull import Pull
    from protocols.wire.messages import ShardRequest

# With so many others a joiner exchanges shards; more links would cost more than they bring.
MOST_FELLOWS = 8
# Verified shards are told at most so often, so that a message tells of several: the more seldom,
# the longer the copy has taken, because then little is lost if a fellow hears a moment later.
TELL_SECONDS = 0.05
TELL_PART = 0.02  # of the time since the copy began
MOST_TELL_SECONDS = 0.5
# After so long a fellow is dialled again if there is no link.
DIAL_AGAIN_SECONDS = 2.0


class Fellows:
    """The fellows of one joiner, nobody before it has begun to copy."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.part = (0, 1)  # which part of the state it asks the sources for first: (number, count)
        self._join = 0
        self._fellows: dict[bytes, PullPlan] = {}
        self._ready: dict[bytes, float] = {}  # fellow that has begun -> when to dial it again
        self._told: dict[bytes, int] = {}  # linked fellow -> how many verified shards it knows of
        self._pull: Pull | None = None
        self._here: dict[int, None] = {}  # shards that were verified, in the order in which
        self._at = (0, 0)  # iteration of the state, size of a shard
        self._told_at = self._began_at = 0.0
        self._is_large = False  # whether members of such a cluster have no links to all others

    def meet(self, policy: Policy, plan: PullPlan) -> None:
        """Find those with which this joiner copies together by `plan`, its pull in `policy`."""
        self.end()
        alike = _alike(self._context.node, policy, plan)
        nodes = sorted((self._context.node, *alike))
        at = nodes.index(self._context.node)
        self.part, self._join = (at, len(nodes)), plan.join
        self._fellows, self._ready = {node: alike[node] for node in _nearest(nodes, at)}, {}
        self._is_large = len(policy.view.nodes) + len(policy.pulls) > limits.ALL_LINKED_MEMBERS

    def __contains__(self, node: bytes) -> bool:
        return node in self._fellows

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        if self._pull is None:
            return None
        times = [at for node, at in self._ready.items() if self._dials(node)]
        if any(told < len(self._known) for told in self._told.values()):
            times.append(self._tell_at)
        return min(times, default=None)

    @property
    def _tell_at(self) -> float:
        """When the fellows may be told again."""
        pause = TELL_PART * (self._told_at - self._began_at)
        return self._told_at + min(max(TELL_SECONDS, pause), MOST_TELL_SECONDS)

    @property
    def _known(self) -> dict[int, None]:
        """The shards that are verified. It never shrinks, although other digests may be believed
        later, so that those of which a fellow knows are the first of them."""
        assert self._pull is not None, "nothing is copied"
        self._here |= dict.fromkeys(self._pull.verified)
        return self._here

    def _dials(self, node: bytes) -> bool:
        """Whether this joiner is to dial `node`: of two, the one with the smaller id dials."""
        return node > self._context.node and node not in self._context.links

    def begin(self, pull: Pull, iteration: int, shard_bytes: int) -> None:
        """Exchange shards of `pull`, a copy of the state at the start of `iteration`."""
        self._pull, self._here, self._at = pull, {}, (iteration, shard_bytes)
        self._told_at = self._began_at = self._context.now
        for node in self._fellows:
            self._tell(node, 0, begins=True)

    def linked(self, node: bytes) -> None:
        """Ask `node` what it has, if it is a fellow, and tell it what is here."""
        if node in self._fellows:
            self._tell(node, 0, begins=True)

    def gone(self, node: bytes) -> None:
        """Note that the link to `node` has ended, or that it sends nothing more."""
        self._told.pop(node, None)

    def here(self, now: float, node: bytes, message: ShardsHere) -> tuple[int, ...]:
        """Return which shards `node` has for this joiner: none if it is no fellow, copies another
        state, or has no link to this joiner, which is then to be opened."""
        plan, pull = self._fellows.get(node), self._pull
        same = (message.iteration, message.shard_bytes) == self._at
        if plan is None or pull is None or message.join != plan.join or not same:
            return ()
        self._ready.setdefault(node, now)
        if message.begins:
            self._tell(node, 0)
        return message.shards if node in self._context.links else ()

    def wanted(self, node: bytes, request: ShardRequest) -> None:
        """Send `node` what it asks for, if it is a fellow that was told of it. Raises
        `RemoteProtocolError` if it was told of no such shards, or asks for one twice."""
        plan, pull = self._fellows.get(node), self._pull
        if plan is None or pull is None or request.join != plan.join or node not in self._told:
            return
        at, shard_bytes = self._at
        shards, twice = request.shards, len(dict.fromkeys(request.shards)) < len(request.shards)
        if twice or request.shard_bytes != shard_bytes or any(k not in self._known for k in shards):
            raise RemoteProtocolError("a request for shards that are not here")
        here = tuple(k for k in shards if k in pull.verified)
        self._context.do(SendShards(node, request.join, at, shard_bytes, here, as_now=True))

    def tick(self, now: float) -> None:
        """Dial the fellows to which there is no link, and tell all what has been verified."""
        if self._pull is None:
            return
        for node, at in self._ready.items():
            if now >= at and self._dials(node):
                self._ready[node] = now + DIAL_AGAIN_SECONDS
                self._context.do(Dial(self._fellows[node].joiner))
        if now < self._tell_at:
            return
        self._told_at = now
        for node, told in list(self._told.items()):
            if told < len(self._known):
                self._tell(node, told)

    def end(self) -> None:
        """Send nothing more: the state changes from here on. Links that the cluster would not have
        are closed."""
        for node in self._told:
            self._context.send(node, CopyEnded(self._fellows[node].join))
            if self._is_large:
                self._context.do(CloseLink(node))
        self._told, self._pull = {}, None

    def _tell(self, node: bytes, told: int, *, begins: bool = False) -> None:
        """Tell `node` of the verified shards after the first `told`, or, without a link to it, that
        this joiner has begun."""
        if self._pull is None:
            return
        shards: tuple[int, ...] = ()
        if node in self._context.links:
            shards = tuple(islice(self._known, told, None))
            self._told[node] = told + len(shards)
        iteration, size = self._at
        self._context.send(node, ShardsHere(self._join, iteration, size, begins, shards))


def _alike(node: bytes, policy: Policy, plan: PullPlan) -> dict[bytes, PullPlan]:
    """Return the pulls of joiners other than `node` that copy the same state as that of `plan`. A
    user who has chosen which links a device has, or how many, has chosen these, too."""

    def is_free(pull: PullPlan) -> bool:
        return not pull.joiner.sparse and not pull.joiner.most_links

    alike = [
        pull
        for pull in policy.pulls
        if pull.together == plan.together and pull.beside is plan.beside and is_free(pull)
    ]
    if plan not in alike or not plan.together:
        return {}
    return {pull.joiner.node: pull for pull in alike if pull.joiner.node != node}


def _nearest(nodes: list[bytes], at: int) -> list[bytes]:
    """Return those of `nodes` that are near number `at` in a ring of all of them. Whoever is near
    somebody has that one near, too."""
    reach = min(MOST_FELLOWS // 2, len(nodes) // 2)
    steps = (step for k in range(1, reach + 1) for step in (k, -k))
    ring = dict.fromkeys(nodes[(at + step) % len(nodes)] for step in steps)
    return [node for node in ring if node != nodes[at]]
