"""What must hold in a random history, checked after every event by an all-knowing observer.

The observer knows the exact sum of every iteration. It reads the nodes' state and changes nothing.
It checks that

- every state that an update leads to contains each micro-batch exactly once;
- a chunk that is kept over a fence is the sum of all micro-batches, each of them once (`world.py`);
- all members that take part in one attempt of a round have the same history (commit id);
- one lineage has one history: the round of iteration i can only be complete anywhere if all its
  members have applied i - 1, so C(i - 1) is committed, and there is only one such C for each i;
- a commit id names only one iteration, and one way in which each chunk of its sum was made (with
  floating-point numbers another attempt, that is another tree, gives other bits);
- no cluster gives way to one that is behind it (`seeker.py`);
- no state is replaced by another one unless it was saved, or the other one has at least as many
  iterations and contains all its samples (as the commit ids show; its last update may have been
  made again);
- one policy exists for each (lineage, term, version) that comes into force, also by a fence;
- at most one scheduler was elected by a quorum in each (lineage, term);
- policies, open joins and early frames stay within their limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocols import events, limits
from protocols.member.joining_table import JoiningState
from tests.simulation.numbers import VECTOR

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.rounds.round import RoundSpec
    from tests.simulation.host import Host
    from tests.simulation.sharding import Losses
    from tests.simulation.world import World

MOST_EARLY = 8 * (VECTOR + 1) * 16  # early frames: some rounds of a few neighbours


class Truth:
    """The observer: it remembers what has happened in the world so far."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._commits: dict[tuple[bytes, int], bytes] = {}
        self._iterations: dict[bytes, int] = {}
        self._made: dict[bytes, Any] = {}
        self._losses: dict[bytes, Losses] = {}
        self._attempts: dict[tuple[Any, ...], bytes] = {}
        self._policies: dict[tuple[bytes, int, int], Policy] = {}
        self._leaders: dict[tuple[bytes, int], bytes] = {}
        self._last: dict[bytes, Policy] = {}
        self._before: dict[bytes, bytes] = {}  # commit id -> the one before
        # node -> its context, iteration and commit id at its last event
        self._seen: dict[bytes, tuple[Context, int, bytes]] = {}

    def handled(self, host: Host, event: events.Event) -> None:
        """Check what must hold after `host` has taken an event."""
        node = host.node
        if node is None:
            return
        context = node.context
        self._follow(host.me.node, context)
        if type(event) is events.Applied and not node.over and not host.lost_trainer:
            self._applied(host, context.iteration)
        policy = context.policy
        if policy is not None and policy is not self._last.get(host.me.node):
            self._last[host.me.node] = policy
            key = (policy.view.lineage, *policy.key)
            known = self._policies.setdefault(key, policy)
            assert known == policy, f"two policies {policy.key} in one lineage"
            self._limits(host)
        election = context.election
        if election.leads and election.by_quorum and context.is_member:
            held = (context.lineage, election.term)
            leader = self._leaders.setdefault(held, host.me.node)
            assert leader == host.me.node, f"two schedulers in term {election.term}"

    def _follow(self, node: bytes, context: Context) -> None:
        """Note which commit id comes after which."""
        same, iteration, commit = self._seen.get(node, (context, -1, b""))
        if context is same and context.iteration == iteration + 1 and iteration >= 0:
            self._before[context.commit] = commit
        self._seen[node] = (context, context.iteration, context.commit)

    def _applied(self, host: Host, iteration: int) -> None:
        self._updated(host)
        behind = len(host.node.debt.kept) if host.node is not None else 0
        joining = host.node.joining if host.node is not None else None
        if joining is not None and joining.state is JoiningState.FAILED:
            return  # the trainer ends an update of a copy that is given up
        if joining is not None and joining.state is JoiningState.PULLING and joining.copy:
            behind = iteration - joining.copy.next  # updates since its snapshot that it lacks
        assert iteration == host.iteration + behind, f"{host.me.name}: node and trainer out of step"
        if host.node is not None and not behind:
            commit = host.node.context.commit
            known = self._iterations.setdefault(commit, iteration)
            assert known == iteration, "one commit id for two iterations"
            made = host.made.get(iteration - 1)
            assert self._made.setdefault(commit, made) == made, "one commit id for two sums"
            if host.node.context.is_member:
                losses = host.slots.losses
                known_losses = self._losses.setdefault(commit, losses)
                assert known_losses == losses, "one commit id where two things were lost"

    def _updated(self, host: Host) -> None:
        """Check the state of `host` after an update."""
        gathering = self._world.gathering
        if host.is_wrong:
            return
        if gathering is None:
            assert self._world.is_right(host), f"{host.me.name}: wrong state {host.iteration}"
        else:
            commit = self._world.commit_of(host) if host.is_member else b""
            gathering.updated(host, commit, dict(host.made[host.iteration - 1]))

    def _limits(self, host: Host) -> None:
        node = host.node
        assert node is not None
        kept = len(node.context.policies)
        assert kept <= limits.MAX_POLICIES_KEPT + 1, f"{kept} policies kept"
        assert len(host.early) <= MOST_EARLY, f"{len(host.early)} early frames"
        joins = len(node.negotiator.joins.open) if node.negotiator else 0
        assert joins <= limits.MAX_OPEN_JOINS, f"{joins} open joins"

    def begun(self, host: Host, spec: RoundSpec) -> None:
        """Check the history of `host`, which is about to take part in an attempt."""
        if host.node is not None and spec.contributes:
            commit = host.node.context.commit
            known = self._attempts.setdefault(spec.key, commit)
            assert known == commit, f"{host.me.name}: another history at {spec.key[3:]}"

    def completed(self, host: Host, iteration: int) -> None:
        """Check the history of `host`, where the round of `iteration` is complete."""
        if host.node is not None:
            key = (host.node.context.lineage, iteration)
            commit = host.node.context.commit
            known = self._commits.setdefault(key, commit)
            assert known == commit, f"{host.me.name}: two committed histories before {iteration}"

    def replaced(self, host: Host) -> None:
        """Check that the state of `host`, over which another one begins to be written, is not
        lost."""
        if host.node is None or host.iteration == 0 or host.iteration in host.aside:
            return
        context, before = host.node.context, self._before.get(host.commit, b"")
        assert context.iteration >= host.iteration, f"{host.me.name}: replaced by a younger state"
        commit = context.commit
        while commit not in (host.commit, before):
            assert commit in self._before, f"{host.me.name}: a state replaced and not put aside"
            commit = self._before[commit]

    def earlier(self, commit: bytes, updates: int) -> bytes:
        """Return the commit id so many updates before `commit`."""
        for _ in range(updates):
            commit = self._before.get(commit, b"")
        return commit
