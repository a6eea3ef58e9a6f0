"""The scheduler's negotiations: joins, leaves, links, and the switch from one policy to the next.

- A negotiation never changes the cluster by itself. It only says what is *desired*; whenever that
  differs from what is in force and no switch is under way, one new policy is made of all of it.
- A policy is offered in the control word only after a majority of the old view and of the new one,
  and every node that enters with it, have stored its body: whoever survives can then know it.
- No state here has to survive the scheduler: the next one has the policy in force, and gets all
  requests again, since they are repeated until they are fulfilled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.policy import Policy
from protocols.cluster.view import Edge, Member, View, edge, make_view, parts
from protocols.effects import SearchWays
from protocols.scheduler.asked_links import AskedLinks
from protocols.scheduler.join import COMING, JOIN_TABLE, Join, JoinState, planned_pulls
from protocols.scheduler.join_cost import JoinCost
from protocols.scheduler.ways_search import WaysSearch
from protocols.wire.messages import (
    EVERYONE,
    Introduce,
    JoinAborted,
    JoinProgress,
    JoinRequest,
    Letter,
    LinksOpen,
    OpenLinks,
    PolicyBody,
    Refused,
)

if TYPE_CHECKING:
    from protocols.events import WaysFound
    from protocols.scheduler.planning import Planner

OFTEN_LOST = "its links to the others broke again and again, and it may try again in a minute"
MOST_UNMEASURED = 3  # reports without rates, after which a joiner is let in unmeasured


@dataclass(slots=True)
class Switch:
    """A policy on its way into force."""

    policy: Policy
    stored: dict[bytes, None] = field(default_factory=dict)
    offered: bool = False
    resend_at: float = 0.0


class Negotiator:
    """What the scheduler negotiates in one term. `policy` is the one in force."""

    def __init__(
        self,
        node: bytes,
        term: int,
        policy: Policy,
        micro_batches: int,
        planner: Planner,
        cost: JoinCost | None = None,
    ) -> None:
        self.node = node
        self.term = term
        self.policy = policy
        self.joins: dict[int, Join] = {}
        self.switch: Switch | None = None
        self.passing = False  # the role is being handed over, so nothing new is started
        self._micro_batches = micro_batches
        self._planner = planner
        self._cost = cost or JoinCost()
        self._leaving: dict[bytes, None] = {}
        self._away: dict[bytes, None] = {}
        self._pausing: dict[bytes, None] = {}  # joiners whose copy beside the training has failed
        self._expelled: dict[bytes, None] = {}
        self._divided: dict[Edge, bool] = {}  # link -> users want it closed (False: open again)
        self._next_join = (term << 32) + 1
        self._ended: dict[int, None] = {}  # joins given up that a policy may still name
        self._issued = 0  # version of the newest policy made in this term
        self._edges: dict[tuple[bytes, bytes], Edge] = {}  # open links that no policy names yet
        self.asked_links = AskedLinks()
        self._search = WaysSearch(term, searches=planner.searches)
        self._densify_at = self._repair_at = 0.0
        self._dirty = True  # something changed since `_desired` last looked
        self._replan_at = 0.0  # when measurements may next lead to a new policy
        self._measured = False  # something was measured since they last did

    def resume(self, now: float) -> None:
        """Take over the joins that the policy in force names and that nobody here has ended."""
        asking = [join.joiner.node for join in self.joins.values()]
        for pull in self.policy.pulls:
            if pull.joiner.node in asking or pull.join in self._ended:
                continue
            deadline = now + limits.JOIN_PROGRESS_SECONDS
            state = JoinState.COPYING if pull.beside else JoinState.PULLING
            join = Join(pull.join, pull.joiner, pull.sources, deadline, state)
            join.links, join.parent, join.beside = pull.sources, pull.parent, pull.beside
            join.stops_until = math.inf if pull.beside else now + self._cost.most_s
            self.joins[pull.join] = join

    @property
    def offered(self) -> tuple[int, int]:
        """The key that the scheduler's control word names: that of the policy in force, or of the
        switch once enough nodes have stored it."""
        if self.switch is not None and self.switch.offered:
            return self.switch.policy.key
        return self.policy.key

    @property
    def leaving(self) -> tuple[bytes, ...]:
        """Members that asked to leave."""
        return tuple(self._leaving)

    @property
    def is_idle(self) -> bool:
        """Whether no change is under way."""
        return self.switch is None and not self.joins and not self._dirty and not self._leaving

    def hold_back(self, passing: bool) -> None:
        """Start no new switch while the role is being handed over, or go on as before."""
        self.passing = passing
        self._dirty = True

    def join_request(self, now: float, message: JoinRequest) -> list[Letter]:
        """Begin a join, or answer the same incarnation of the joiner again."""
        joiner = message.joiner
        if self.passing or joiner.node in self.policy.view.nodes:
            return []
        if joiner.node in self._outlaws:
            return [(joiner.node, JoinAborted(0, joiner.node, "this device was expelled"))]
        known = next((j for j in self.joins.values() if j.joiner.node == joiner.node), None)
        if known is not None and known.joiner.incarnation == joiner.incarnation:
            return self._repeated(known)
        mail: list[Letter] = []
        if known is not None:
            mail += self.give_up(known.number, "the device started again")
        if len(self.joins) >= limits.MAX_OPEN_JOINS:
            return mail
        near = self._planner.neighbours(self.policy.view, message.neighbours, joiner.most_links)
        chosen, wait_s = self.asked_links.ways_in(now, joiner.node, near)
        if wait_s:
            refusal = JoinAborted(0, joiner.node, OFTEN_LOST, math.ceil(1000 * wait_s))
            return [*mail, (joiner.node, refusal)]
        deadline = now + limits.JOIN_PROGRESS_SECONDS
        join = Join(self._next_join, joiner, chosen, deadline)
        self._next_join += 1
        self.joins[join.number] = join
        return mail + [(n, Introduce(join.number, joiner)) for n in chosen]

    def _repeated(self, join: Join) -> list[Letter]:
        """Answer a request again; chosen neighbours that have left are no longer waited for."""
        join.neighbours = tuple(n for n in join.neighbours if n in self.policy.view.nodes)
        if not join.neighbours:
            return self.give_up(join.number, "its chosen neighbours left")
        if silent := [n for n in join.neighbours if n not in join.introduced]:
            return [(n, Introduce(join.number, join.joiner)) for n in silent]
        if join.state is JoinState.INTRODUCING:
            join.state = JOIN_TABLE.step(join.state, "introduced", JoinState.LINKING)
        return self._links_wanted(join)

    def introduced(self, sender: bytes, number: int) -> list[Letter]:
        """Note that a chosen neighbour expects the joiner's link."""
        join = self.joins.get(number)
        if join is None or not JOIN_TABLE.allows(join.state, "introduced"):
            return []
        join.introduced[sender] = None
        ready = all(n in join.introduced for n in join.neighbours)
        then = JoinState.LINKING if ready else join.state
        join.state = JOIN_TABLE.step(join.state, "introduced", then)
        return self._links_wanted(join) if ready else []

    def _links_wanted(self, join: Join) -> list[Letter]:
        if join.state is not JoinState.LINKING:
            return []
        members = [self.policy.view.member(n) for n in join.neighbours]
        chosen = tuple(m for m in members if m is not None)
        return [(join.joiner.node, OpenLinks(join.number, chosen))]

    def links_open(self, now: float, sender: bytes, message: LinksOpen) -> list[Letter]:
        """Take the links that a joiner has opened, with their rates, or learn that it has copied
        the state beside the training. A joiner that only the last scheduler knew is told to begin
        anew, one whose links are too slow is refused. The join 0 stands for a member that has
        opened a link which it was told to open."""
        number, links, rates = message.join, message.neighbours, message.rates
        if number == 0:
            self._connected(sender, links)
            return []
        join = self.joins.get(number)
        if join is None and sender not in self.policy.view.nodes:
            return [(sender, JoinAborted(number, sender, "the scheduler knows no such join"))]
        if join is None or sender != join.joiner.node:
            return []
        join.rates = dict(zip(links, rates, strict=False)) or join.rates
        if message.copied and JOIN_TABLE.allows(join.state, "copied"):
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS
            self._pause_for(join)
        if JOIN_TABLE.allows(join.state, "links open") and links:
            if join.unmeasured < MOST_UNMEASURED and self._cost.has_to_know(rates):
                join.unmeasured += 1  # the joiner repeats its message, perhaps with rates
                return []
            join.beside = join.joiner.node not in self._pausing and self._cost.goes_beside(
                rates, message.constants
            )
            reason = self._cost.refusal(join.joiner.name, rates, message.constants)
            if reason and not join.beside:
                return self.give_up(number, reason, limits.JOIN_AGAIN_SECONDS)
            join.state = JOIN_TABLE.step(join.state, "links open", JoinState.LINKED)
            join.links = links
            self._dirty = True
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS
        return []

    def _pause_for(self, join: Join) -> None:
        """Have the others hold their update for a joiner, with the next policy."""
        join.state = JOIN_TABLE.step(join.state, "copied", JoinState.LINKED)
        join.beside = False
        self._dirty = True

    def no_snapshot(self, sender: bytes, number: int) -> None:
        """A source has too little memory for a snapshot. A joiner without any other source copies
        while the others hold their update."""
        join = self.joins.get(number)
        if join is not None and join.beside and sender in join.links:
            join.without[sender] = None
            self._look_for_snapshots(join)

    def _look_for_snapshots(self, join: Join) -> None:
        """A source may say that it has none before the policy is in force here."""
        if join.state is JoinState.COPYING and all(n in join.without for n in join.links):
            self._pause_for(join)

    def progress(self, now: float, sender: bytes, message: JoinProgress) -> list[Letter]:
        """Take a joiner's report on its pull. Its deadline moves only if more bytes have come, and
        a pull that is much slower than its links promised is given up."""
        join = self.joins.get(message.join)
        if join is None or join.joiner.node != sender:
            return []
        before = join.progress.pulled_bytes if join.progress is not None else 0
        # One that has the whole snapshot still copies updates. If it falls too far behind with
        # them, its sources, whose memory is bounded, end its copy.
        has_all = join.state is JoinState.COPYING and message.pulled_bytes == message.total_bytes
        if message.pulled_bytes > before or has_all:
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS
        join.progress = message
        seconds, name = message.pull_us / 1e6, join.joiner.name
        slow = self._cost.too_slow(name, seconds, message.pulled_bytes, message.total_bytes)
        if not slow or join.stops_until == math.inf or self._is_entering(join):
            return []
        return self.give_up(join.number, slow, limits.JOIN_MUCH_LATER_SECONDS)

    def pulled(self, number: int) -> None:
        """The joiner has the state, so it no longer stops the others."""
        if (join := self.joins.get(number)) is not None:
            join.stops_until = math.inf

    def caught_up(self, now: float, sender: bytes, number: int) -> None:
        """The joiner has applied an update like the members, and can be let in."""
        join = self.joins.get(number)
        if join is None or sender != join.joiner.node:
            return
        if JOIN_TABLE.allows(join.state, "caught up"):
            join.state = JOIN_TABLE.step(join.state, "caught up", JoinState.CAUGHT_UP)
            self._dirty = True
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS

    def leave_request(self, sender: bytes) -> None:
        """Let a member leave with the next policy."""
        if sender in self.policy.view.nodes and sender not in self._leaving:
            self._leaving[sender] = None
            self._dirty = True

    def link_wish(self, sender: bytes, peer: bytes, *, wanted: bool) -> list[Letter]:
        """Open or remove the link between a member and `peer`, as its user wants."""
        view = self.policy.view
        if sender not in view.nodes or (far := view.member(peer)) is None or peer == sender:
            return [(sender, Refused(peer, False, "there is no such member"))]
        pair = edge(sender, peer)
        if wanted:
            if pair in view.edges:
                return []
            self._divided[pair] = False
            self._dirty = True
            return [(sender, OpenLinks(0, (far,)))]
        before, self._divided[pair] = dict(self._divided), True
        if len(parts(self._next_view())) > 1:
            self._divided = before
            reason = "without that link the cluster would be in two"
            return [(sender, Refused(peer, False, reason))]
        self._dirty = True
        return []

    def part(self, pair: Edge) -> None:
        """Link two members, of which one is broken, no more, unless that would divide the rest."""
        before, self._divided[pair] = dict(self._divided), True
        if len(parts(self._next_view())) > 1:
            self._divided = before
        else:
            self._dirty = True

    def expel(self, sender: bytes, node: bytes, *, known: bool) -> list[Letter]:
        """Expel `node` for good, as a member's user wants; `known`: it is or was a member."""
        if sender not in self.policy.view.nodes or node in self.policy.view.expelled:
            return []
        if node in self._expelled:
            return []
        if node not in self.policy.view.nodes and not known:
            return [(sender, Refused(node, True, "there is no such member"))]
        self._expelled[node] = None
        self._dirty = True
        return []

    @property
    def _outlaws(self) -> tuple[bytes, ...]:
        """The nodes that are not let in again; only the last `MAX_EXPELLED` are remembered."""
        found = dict.fromkeys((*self.policy.view.expelled, *self._expelled))
        return tuple(found)[-limits.MAX_EXPELLED :]

    def share_wish(self, sender: bytes, away: bool) -> None:
        """A member wants share 0 (`away`), or a share again."""
        self._dirty = True
        known = [*self.policy.view.nodes, *(j.joiner.node for j in self.joins.values())]
        if away and sender in known:
            self._away[sender] = None
        elif not away:
            self._away.pop(sender, None)

    def link_lost(self, reporter: bytes, peer: bytes) -> list[Letter]:
        """A link broke. A join that loses its parent, or every link, is given up."""
        mail: list[Letter] = []
        for join in list(self.joins.values()):
            ends = (reporter, peer)
            if join.joiner.node not in ends or self._is_entering(join):
                continue
            other = ends[1 - ends.index(join.joiner.node)]
            if join.links and other not in join.links:
                continue  # this loss was reported before
            join.links = tuple(n for n in join.links if n != other)
            self._withdraw(join)
            parent = other == join.parent and join.state is not JoinState.COPYING
            if parent or not join.links:
                mail += self.give_up(join.number, "its link broke")
        return mail

    def give_up(self, number: int, reason: str, pause_s: float = 0.0) -> list[Letter]:
        """End a join that has not entered; its joiner waits for `pause_s` before it asks again."""
        join = self.joins.pop(number)
        pulls = self.policy.pulls + (self.switch.policy.pulls if self.switch is not None else ())
        if any(p.join == number for p in pulls):
            self._ended[number] = None
        self._withdraw(join)
        if join.state is JoinState.COPYING:
            self._pausing[join.joiner.node] = None
        join.state = JOIN_TABLE.step(join.state, "given up", JoinState.ABORTED)
        pause_ms = round(1000 * pause_s)
        return [(EVERYONE, JoinAborted(number, join.joiner.node, reason, pause_ms))]

    def _is_entering(self, join: Join) -> bool:
        """Whether a policy that lets the joiner in may be in force already: it is too late then."""
        switch = self.switch
        offered = switch is not None and switch.offered
        return offered and switch is not None and join.joiner.node in switch.policy.view.nodes

    def _is_left_behind(self, join: Join) -> bool:
        """Whether a joiner should follow the rounds, but nobody forwards them to it any more."""
        follows = join.state in (JoinState.PULLING, JoinState.CAUGHT_UP)
        node = join.joiner.node
        return follows and self.policy.pull_of(node) is None and node not in self.policy.view.nodes

    def _withdraw(self, join: Join) -> None:
        """The joiner has changed: withdraw a switch that lets it in, unless it is offered."""
        self._dirty = True
        switch = self.switch
        if switch is not None and not switch.offered:
            entering = join.joiner.node in switch.policy.view.nodes
            self.switch = None if entering else switch

    def stored(self, sender: bytes, key: tuple[int, int]) -> None:
        """`sender` has stored the body of the policy `key`."""
        if self.switch is not None and self.switch.policy.key == key:
            self.switch.stored[sender] = None
            self.switch.offered = self._enough(self.switch)

    def _enough(self, switch: Switch) -> bool:
        old, new = self.policy.view, switch.policy.view
        return all(
            (
                sum(n in switch.stored for n in old.nodes) >= old.majority,
                sum(n in switch.stored for n in new.nodes) >= new.majority,
                all(n in switch.stored for n in new.nodes if n not in old.nodes),
            )
        )

    def in_force(self, now: float, policy: Policy) -> None:
        """`policy` has come into force: forget what it fulfils, and move joins along."""
        if policy.view != self.policy.view:
            self._search.want()
        self.policy = policy
        self.switch = None
        self._dirty = True
        self._densify_at = 0.0
        nodes = policy.view.nodes
        self._leaving = {n: None for n in self._leaving if n in nodes}
        self._away = {n: None for n in self._away if n in nodes}
        outlaws = policy.view.expelled
        self._expelled = {n: None for n in self._expelled if n not in outlaws}
        apart = policy.view.apart
        self._divided = {e: cut for e, cut in self._divided.items() if cut is (e not in apart)}
        self._edges = {
            ends: e
            for ends, e in self._edges.items()
            if e not in policy.view.edges and all(n in nodes for n in ends)
        }
        for join in list(self.joins.values()):
            pull = policy.pull_of(join.joiner.node)
            if join.state is JoinState.LINKED and pull and pull.beside is join.beside:
                then = JoinState.COPYING if pull.beside else JoinState.PULLING
                join.state = JOIN_TABLE.step(join.state, "pull in force", then)
                join.deadline = now + limits.JOIN_PROGRESS_SECONDS
                join.stops_until = math.inf if pull.beside else now + self._cost.most_s
                self._search.want()
                self._look_for_snapshots(join)
            elif join.joiner.node in nodes:  # it has entered
                if JOIN_TABLE.allows(join.state, "entry in force"):
                    join.state = JOIN_TABLE.step(join.state, "entry in force", JoinState.ENTERED)
                del self.joins[join.number]
        self.resume(now)
        self._ended = {p.join: None for p in policy.pulls if p.join in self._ended}

    def measured(self) -> None:
        """Links or speeds have been measured, so another plan may be better."""
        self._measured = True

    def tick(self, now: float) -> list[Letter]:
        """Give up joins that are late, repeat what was not answered, start a switch if one is
        due."""
        mail: list[Letter] = []
        for join in list(self.joins.values()):
            if self._is_entering(join):
                continue
            if now >= join.deadline:
                mail += self.give_up(join.number, "no progress")
            elif now >= join.stops_until:
                reason = self._cost.too_long(join.joiner.name)
                mail += self.give_up(join.number, reason, limits.JOIN_MUCH_LATER_SECONDS)
            elif self._is_left_behind(join):
                mail += self.give_up(join.number, "all that it was linked to left")
        if not self.passing and now >= self._densify_at:
            self._densify_at = now + limits.LINK_RETRY_SECONDS
            mail += self._densify(now)
        if self._measured and now >= self._replan_at:
            self._measured, self._dirty = False, True
            self._replan_at = now + limits.REPLAN_SECONDS
            self._search.want()
        if self.switch is not None:
            if now >= self.switch.resend_at:
                mail += self._bodies(now, self.switch)
        elif self._dirty and not self.passing and now >= self._repair_at:
            mail += (repair := self._repair())
            self._dirty = bool(repair)
            self._repair_at = now + limits.RETRY_SECONDS if repair else now
            if not repair and (policy := self._desired()) is not None:
                self._issued = policy.version
                self.switch = Switch(policy, {self.node: None})
                self.switch.offered = self._enough(self.switch)
                mail += self._bodies(now, self.switch)
        return mail

    def begin_search(self, now: float) -> SearchWays | None:
        """Return the search for ways that is to begin now, None if none is."""
        number = self._search.begin(now) if self._may_search else None
        if number is None:
            return None
        policy = self.policy
        if any(join.state in COMING for join in self.joins.values()):
            # Joiners are counted in, so that ways are there when they enter, and not seconds later.
            view = self._next_view(COMING)
            plan = self._planner.plan(view, self._micro_batches, (), policy)
            whole = (view, plan.parents, plan.shares, (), plan.reason, plan.ways)
            policy = Policy(policy.term, policy.version, *whole)
        return SearchWays(number, policy, self._search.found)

    @property
    def _may_search(self) -> bool:
        coming = any(join.state in COMING for join in self.joins.values())
        return not self.passing and len(self.policy.view.members) + coming > 1

    def ways_found(self, event: WaysFound) -> None:
        """Take the answer to a search; the next plan chooses between these ways and its own."""
        self._dirty |= self._search.answered(event.number, event.found)

    @property
    def deadline(self) -> float | None:
        """When `tick` or `begin_search` has something to do although nothing has happened."""
        open_joins = [j for j in self.joins.values() if not self._is_entering(j)]
        times = [min(j.deadline, j.stops_until) for j in open_joins]
        if len(self.policy.view.members) > 1 and not self.passing:
            times.append(self._densify_at)
        if self._may_search and (search_at := self._search.deadline) is not None:
            times.append(search_at)
        if self.switch is not None:
            times.append(self.switch.resend_at)
        if self.switch is None and self._dirty and not self.passing:
            times.append(self._repair_at)
        if self._measured:
            times.append(self._replan_at)
        return min(times, default=None)

    def _bodies(self, now: float, switch: Switch) -> list[Letter]:
        switch.resend_at = now + limits.RETRY_SECONDS
        policy = switch.policy
        to = dict.fromkeys((*self.policy.view.nodes, *policy.view.nodes))
        to |= dict.fromkeys(p.joiner.node for p in policy.pulls)
        return [(n, PolicyBody(policy)) for n in to if n not in switch.stored]

    def _connected(self, sender: bytes, links: tuple[bytes, ...]) -> None:
        """A member opened a link that it was told to open."""
        nodes = self._next_view().nodes
        for other in links:
            if sender != other and sender in nodes and other in nodes:
                new = edge(sender, other)
                self._edges[new.low, new.high] = new
        self._dirty = True
        self._repair_at = 0.0

    def _next_view(self, states: tuple[JoinState, ...] = (JoinState.CAUGHT_UP,)) -> View:
        """Return the view that is desired: without leavers, with the joiners in these `states`."""
        view = self.policy.view
        outlaws = self._outlaws
        gone = (*self._leaving, *outlaws)
        stay = [m for m in view.members if m.node not in gone]
        entering = [j for j in self.joins.values() if j.state in states]
        edges = [*view.edges, *self._edges.values()]
        for join in entering:
            edges += [edge(join.joiner.node, n) for n in join.links]
        members = stay + [j.joiner for j in entering] if stay else list(view.members)
        here = [m.node for m in members]
        outlaws = tuple(n for n in outlaws if n not in here)
        apart = [e for e in view.apart if self._divided.get(e) is not False]
        apart += [e for e, cut in self._divided.items() if cut]
        return make_view(view.lineage, view.number + 1, members, edges, apart, outlaws)

    def _repair(self) -> list[Letter]:
        """If the next view falls into parts, have a link opened between two of them first."""
        view = self._next_view()
        split = parts(view)
        if len(split) == 1:
            return []
        pairs = [(a, b) for a in split[0] for part in split[1:] for b in part]
        a, b = next((p for p in pairs if edge(*p) not in view.apart), pairs[0])
        self._divided[edge(a, b)] = False
        far = view.member(b)
        return [] if far is None else [(a, OpenLinks(0, (far,)))]

    def _densify(self, now: float) -> list[Letter]:
        """Have links opened that the planner wants: between members that joined at the same time,
        where links broke, or where the loss of one member would divide the cluster."""
        view = self.policy.view
        known = dict.fromkeys((e.low, e.high) for e in (*view.edges, *self._next_view().apart))
        far: dict[bytes, list[Member]] = {}
        for wanted in self._planner.links(view):
            ends = (wanted.low, wanted.high)
            other = view.member(wanted.high)
            if other is None or ends in known or not self.asked_links.ask(now, ends):
                continue
            far.setdefault(wanted.low, []).append(other)
        return [(node, OpenLinks(0, tuple(others))) for node, others in far.items()]

    def _desired(self) -> Policy | None:
        """Return the next policy, None if the policy in force is what is desired."""
        view = self._next_view()
        now = self.policy.view
        if replace(view, number=now.number) == now:
            view = now
        pulls = planned_pulls(self.joins.values(), dict.fromkeys(view.nodes))
        away, found = tuple(self._away), self._search.found
        plan = self._planner.plan(view, self._micro_batches, away, self.policy, found=found)
        version = max(self.policy.version, self._issued) + 1
        policy = Policy(
            self.term,
            version,
            view,
            plan.parents,
            plan.shares,
            pulls,
            plan.reason,
            plan.ways,
        )
        term, version, reason = self.policy.term, self.policy.version, self.policy.reason
        same = replace(policy, term=term, version=version, reason=reason)
        # If others have stored a newer policy, a new one must follow even if nothing else changes.
        superseded = self._issued <= self.policy.version
        return None if same == self.policy and superseded else policy
