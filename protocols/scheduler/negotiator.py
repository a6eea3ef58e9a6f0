"""The scheduler's negotiations: joins, leaves, links, and the switch from one policy to the next.

- A negotiation never changes the cluster by itself. It only says what is *desired*; whenever that
  differs from what is in force and no switch is under way, one new policy is made of all of it.
- While a policy waits for the end of a long step, one that has what was desired since then, too,
  takes its place, as soon as enough nodes have stored that.
- A policy is offered in the control word only after a majority of the old view and of the new one,
  and every node that enters with it, have stored its body: whoever survives can then know it.
- No state here has to survive the scheduler: the next one has the policy in force, and gets all
  requests again, since they are repeated until they are fulfilled.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.policy import Policy
from protocols.cluster.view import Edge, Member, View, edge, make_view, parts
from protocols.effects import SearchWays
from protocols.scheduler.agenda import MOST_MADE, Agenda, Switch
from protocols.scheduler.asked_links import AskedLinks
from protocols.scheduler.join import COMING, JoinState, planned_pulls
from protocols.scheduler.join_cost import JoinCost
from protocols.scheduler.joins import Joins
from protocols.scheduler.levelling import Haste, level
from protocols.scheduler.ways_search import WaysSearch
from protocols.wire.messages import (
    Letter,
    OpenLinks,
    PolicyBody,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Container

    from protocols.cluster.stripes import Stripe
    from protocols.events import WaysFound
    from protocols.scheduler.planning import Planner


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
        copies: int = 0,
        stripe_bytes: int = 0,
    ) -> None:
        self.node = node
        self.term = term
        self._agenda = Agenda(policy)
        self._micro_batches = micro_batches
        self._planner = planner
        self._leaving: dict[bytes, None] = {}
        self._away: dict[bytes, None] = {}
        self._expelled: dict[bytes, None] = {}
        self._divided: dict[Edge, bool] = {}  # link -> users want it closed (False: open again)
        self._copies = copies  # of each stripe
        self._stripe_bytes = stripe_bytes
        cost = cost or JoinCost()
        self._pace = cost.pace
        self._learned: dict[tuple[int, bytes], None] = {}  # stripes and who has learned them
        self._issued = 0  # version of the newest policy made in this term
        self._edges: dict[tuple[bytes, bytes], Edge] = {}  # open links that no policy names yet
        self.asked_links = AskedLinks()
        self.joins = Joins(
            self._agenda,
            term,
            planner,
            cost,
            self.asked_links,
            micro_batches,
            lambda: self._outlaws,
        )
        self._search = WaysSearch(term, searches=planner.searches)
        self._densify_at = self._repair_at = 0.0
        self._replan_at = 0.0  # when measurements may next lead to a new policy
        self._measured = False  # something was measured since they last did

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._agenda.policy

    @property
    def switch(self) -> Switch | None:
        """The policy that is on its way into force, None if none is."""
        return self._agenda.switch

    @property
    def passing(self) -> bool:
        """Whether the role is being handed over, so that nothing new is started."""
        return self._agenda.passing

    @property
    def made(self) -> tuple[Policy, ...]:
        """The policies that were made here and may come into force next."""
        return tuple(switch.policy for switch in self._agenda.under_way)

    def offer(self) -> tuple[int, int]:
        """Return the key that the scheduler's control word is to name (`Agenda.offer`)."""
        return self._agenda.offer()

    @property
    def urgent(self) -> Switch | None:
        """The switch under way, if it was not offered yet and has more than another plan."""
        switch = self.switch
        if switch is None or switch.offered or _task(switch.policy) == _task(self.policy):
            return None
        return switch

    def expects(self, now: float) -> bool:
        """Whether a joiner will soon need another policy, and that can still be made."""
        can_be_made = not self.passing and self._amend_at < math.inf
        return can_be_made and self.joins.are_expected(now)

    def missed(self) -> None:
        """What was offered late was named in no round (`Agenda.missed`)."""
        self._agenda.missed()

    @property
    def leaving(self) -> tuple[bytes, ...]:
        """Members that asked to leave."""
        return tuple(self._leaving)

    @property
    def is_idle(self) -> bool:
        """Whether no change is under way."""
        agenda = self._agenda
        changes = agenda.switch is not None or agenda.dirty
        joins = self.joins.open.values()
        return not changes and all(join.follows for join in joins) and not self._leaving

    def hold_back(self, passing: bool) -> None:
        """Start no new switch while the role is being handed over, or go on as before."""
        self._agenda.passing = passing
        self._agenda.dirty = True

    def leave_request(self, sender: bytes) -> None:
        """Let a member leave with the next policy."""
        if sender in self.policy.view.nodes and sender not in self._leaving:
            self._leaving[sender] = None
            self._agenda.dirty = True

    def connected(self, sender: bytes, links: tuple[bytes, ...]) -> None:
        """A member opened a link that it was told to open."""
        nodes = self._next_view().nodes
        for other in links:
            if sender != other and sender in nodes and other in nodes:
                new = edge(sender, other)
                self._edges[new.low, new.high] = new
        self._agenda.dirty = True
        self._repair_at = 0.0

    def learned(self, sender: bytes, stripes: tuple[int, ...]) -> None:
        """A member has learned these stripes, and can be a holder of them."""
        nodes, known = self.policy.view.nodes, self.policy.stripes
        if sender not in nodes:
            return
        me = nodes.index(sender)
        for s in stripes:
            if s < len(known) and me in known[s].learners and (s, sender) not in self._learned:
                self._learned[s, sender] = None
                self._agenda.dirty = True

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
            self._agenda.dirty = True
            return [(sender, OpenLinks(0, (far,)))]
        before, self._divided[pair] = dict(self._divided), True
        if len(parts(self._next_view())) > 1:
            self._divided = before
            reason = "without that link the cluster would be in two"
            return [(sender, Refused(peer, False, reason))]
        self._agenda.dirty = True
        return []

    def part(self, pair: Edge) -> None:
        """Link two members, of which one is broken, no more, unless that would divide the rest."""
        before, self._divided[pair] = dict(self._divided), True
        if len(parts(self._next_view())) > 1:
            self._divided = before
        else:
            self._agenda.dirty = True

    def expel(self, sender: bytes, node: bytes, *, known: bool) -> list[Letter]:
        """Expel `node` for good, as a member's user wants; `known`: it is or was a member. One that
        follows from outside is told to end."""
        if sender not in self.policy.view.nodes or node in self.policy.view.expelled:
            return []
        if node in self._expelled:
            return []
        open_joins = self.joins.open.values()
        follows = [j.number for j in open_joins if j.joiner.node == node and j.follows]
        if node not in self.policy.view.nodes and not known and not follows:
            return [(sender, Refused(node, True, "there is no such member"))]
        self._expelled[node] = None
        self._agenda.dirty = True
        why = "this device was expelled"
        return [letter for number in follows for letter in self.joins.give_up(number, why)]

    @property
    def _outlaws(self) -> tuple[bytes, ...]:
        """The nodes that are not let in again; only the last `MAX_EXPELLED` are remembered."""
        found = dict.fromkeys((*self.policy.view.expelled, *self._expelled))
        return tuple(found)[-limits.MAX_EXPELLED :]

    def share_wish(self, sender: bytes, away: bool) -> None:
        """A member wants share 0 (`away`), or a share again."""
        self._agenda.dirty = True
        known = [*self.policy.view.nodes, *(j.joiner.node for j in self.joins.open.values())]
        if away and sender in known:
            self._away[sender] = None
        elif not away:
            self._away.pop(sender, None)

    def fenced(self, policies: tuple[Policy, ...], reason: str) -> list[Letter]:
        """A fence has opened, or is decided, with one of `policies` in force: end the switch, and
        for `reason` all joins except those that `Joins.fenced` spares."""
        mail = self.joins.fenced(policies, reason)
        self._agenda.switch = self._agenda.amended = None
        return mail

    def stored(self, sender: bytes, key: tuple[int, int]) -> None:
        """`sender` has stored the body of the policy `key`."""
        self._agenda.stored(sender, key, self._enough)

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
        old = self.policy
        if policy.view != old.view or policy.stripes != old.stripes:
            self._search.want()
        self._agenda.in_force(policy)
        self._densify_at = 0.0
        nodes = policy.view.nodes
        self._leaving = {n: None for n in self._leaving if n in nodes}
        self._away = {n: None for n in self._away if n in nodes}
        # Who has told so while this policy was on its way to all is still a learner in it. Without
        # that, a cluster whose policy changes in each iteration would hardly ever hear of it.
        learners = {(s, nodes[k]) for s, x in enumerate(policy.stripes) for k in x.learners}
        self._learned = {pair: None for pair in self._learned if pair in learners}
        outlaws = policy.view.expelled
        self._expelled = {n: None for n in self._expelled if n not in outlaws}
        apart = policy.view.apart
        self._divided = {e: cut for e, cut in self._divided.items() if cut is (e not in apart)}
        self._edges = {
            ends: e
            for ends, e in self._edges.items()
            if e not in policy.view.edges and all(n in nodes for n in ends)
        }
        if self.joins.in_force(now, policy):
            self._search.want()

    def measured(self) -> None:
        """Links or speeds have been measured, so another plan may be better."""
        self._measured = True

    def tick(self, now: float) -> list[Letter]:
        """Give up joins that are late, repeat what was not answered, start a switch if one is due,
        or amend the one that is under way."""
        mail = self.joins.tick(now)
        if not self.passing and now >= self._densify_at:
            self._densify_at = now + limits.LINK_RETRY_SECONDS
            mail += self._densify(now)
        if self._measured and now >= self._replan_at:
            self._measured, self._agenda.dirty = False, True
            self._replan_at = now + limits.REPLAN_SECONDS
            self._search.want()
        for switch in self._agenda.under_way:
            if now >= switch.resend_at:
                mail += self._bodies(now, switch)
        if self._agenda.dirty and not self.passing and now >= max(self._repair_at, self._amend_at):
            mail += (repair := self._repair())
            self._agenda.dirty = bool(repair)
            self._repair_at = now + limits.RETRY_SECONDS if repair else now
            if not repair and (policy := self._desired()) is not None:
                mail += self._begin(now, policy)
        return mail

    @property
    def _amend_at(self) -> float:
        """When a policy may be made: at once if none is under way. One that has waited for a while
        waits for the end of a long step. So it is amended by what has changed meanwhile, but not
        twice at a time, nor often, since members keep few policies."""
        switch, agenda = self.switch, self._agenda
        if switch is None:
            return -math.inf
        stays = switch.offered or agenda.amended is not None or agenda.made >= MOST_MADE
        return math.inf if stays else switch.amend_at

    def _begin(self, now: float, policy: Policy) -> list[Letter]:
        """Have all store `policy`, unless it has another plan alone and would amend the switch
        under way, or come before that by which a joiner enters: with noise in what is measured
        there would be one each second, and the joiner would wait a step longer."""
        agenda = self._agenda
        before = agenda.switch
        is_plan = _task(policy) == _task(before.policy if before is not None else self.policy)
        supersedes = self._issued > self.policy.version
        if is_plan and (before is not None or (self.joins.is_any_entering and not supersedes)):
            return []
        self._issued = policy.version
        agenda.made += 1
        switch = Switch(policy, {self.node: None}, amend_at=now + limits.AMEND_SECONDS)
        switch.ready = self._enough(switch)
        if before is None or switch.ready:
            agenda.switch = switch
        else:
            agenda.amended = switch
        return self._bodies(now, switch)

    def begin_search(self, now: float) -> SearchWays | None:
        """Return the search for ways that is to begin now, None if none is."""
        begun = self._search.begin(now, self._searched) if self._may_search else None
        if begun is None:
            return None
        (number, view), policy = begun, self.policy
        if view is not policy.view:
            plan = self._planner.plan(view, self._micro_batches, (), policy)
            stripes = self._numbered_in(view)
            whole = (view, plan.parents, plan.shares, (), plan.reason, plan.ways, stripes)
            policy = Policy(policy.term, policy.version, *whole)
        return SearchWays(number, policy, self._search.found(view))

    @property
    def _searched(self) -> list[View]:
        """The views for which ways are searched: those in force and, so that ways are there when
        joiners enter and not seconds later, with these."""
        now, later = self.policy.view, self._with_joiners
        return [view for view in (now, later) if view is not None and len(view.members) > 1]

    @property
    def _may_search(self) -> bool:
        return not self.passing and self._search.deadline is not None and bool(self._searched)

    @property
    def _with_joiners(self) -> View | None:
        """The view that is desired once the joiners on their way have entered, with members that
        want to leave and alone hold a stripe. None if there are none, or if no links would connect
        all: the members that a joiner is linked to may be lost, and a member that leaves may
        connect others."""
        joins = self.joins.open.values()
        if not any(join.state in COMING and not join.outside for join in joins):
            return None
        view = self._next_view(COMING, keep=self._alone())
        return view if len(parts(view)) == 1 else None

    def ways_found(self, now: float, event: WaysFound) -> None:
        """Take the answer to a search; the next plan chooses between these ways and its own."""
        self._agenda.dirty |= self._search.answered(now, event.number, event.found)

    @property
    def deadline(self) -> float | None:
        """When `tick` or `begin_search` has something to do although nothing has happened."""
        times = [at for at in (self.joins.deadline,) if at is not None]
        if len(self.policy.view.members) > 1 and not self.passing:
            times.append(self._densify_at)
        if self._may_search and (search_at := self._search.deadline) is not None:
            times.append(search_at)
        times += [switch.resend_at for switch in self._agenda.under_way]
        if self._agenda.dirty and not self.passing and self._amend_at < math.inf:
            times.append(max(self._amend_at, self._repair_at))
        if self._measured:
            times.append(self._replan_at)
        return min(times, default=None)

    def _bodies(self, now: float, switch: Switch) -> list[Letter]:
        switch.resend_at = now + limits.RETRY_SECONDS
        policy = switch.policy
        to = dict.fromkeys((*self.policy.view.nodes, *policy.view.nodes))
        to |= dict.fromkeys(p.joiner.node for p in policy.pulls)
        return [(n, PolicyBody(policy)) for n in to if n not in switch.stored]

    def _next_view(
        self, states: tuple[JoinState, ...] = (JoinState.CAUGHT_UP,), keep: Container[bytes] = ()
    ) -> View:
        """Return the view that is desired: without leavers, except those to `keep`, with the
        joiners in these `states`."""
        view = self.policy.view
        outlaws = tuple(n for n in self._outlaws if n not in keep)
        gone = [n for n in (*self._leaving, *outlaws) if n not in keep]
        stay = [m for m in view.members if m.node not in gone]
        entering = [j for j in self.joins.open.values() if j.state in states and not j.outside]
        edges = [*view.edges, *self._edges.values()]
        for join in entering:
            edges += [edge(join.joiner.node, n) for n in join.links]
        members = stay + [j.joiner for j in entering] if stay else list(view.members)
        here = [m.node for m in members]
        outlaws = tuple(n for n in outlaws if n not in here)
        apart = [e for e in view.apart if self._divided.get(e) is not False]
        apart += [e for e, cut in self._divided.items() if cut]
        return make_view(view.lineage, view.number + 1, members, edges, apart, outlaws)

    def _alone(self) -> dict[bytes, None]:
        """Return the members that are to go and alone hold a stripe: they stay until another one
        has learned it."""
        now, stay = self.policy, dict.fromkeys(self._next_view().nodes)
        nodes = now.view.nodes
        return {nodes[k]: None for s in now.stripes if not self._stay(s, stay) for k in s.holders}

    def _numbered_in(self, view: View) -> tuple[Stripe, ...]:
        """Return the stripes in force, with members numbered as in `view`."""
        nodes = self.policy.view.nodes
        numbers = {n: k for k, n in enumerate(view.nodes)}

        def new(members: bytes) -> bytes:
            return bytes(numbers[nodes[k]] for k in members if nodes[k] in numbers)

        return tuple(
            replace(s, holders=new(s.holders), learners=new(s.learners))
            for s in self.policy.stripes
        )

    def _stay(self, stripe: Stripe, here: Container[bytes]) -> bool:
        """Whether a stripe has a holder in `here`."""
        return any(self.policy.view.nodes[k] in here for k in stripe.holders)

    def _repair(self) -> list[Letter]:
        """If the next view falls into parts, have a link opened between two of them first."""
        view = self._next_view(keep=self._alone())
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
        alone, now = self._alone(), self.policy.view
        view = self._next_view(keep=alone)
        kept = self._numbered_in(view)
        if replace(view, number=now.number) == now:
            view = now
        away, found = tuple(self._away), self._search.found(view)
        pulls = planned_pulls(self.joins.open.values(), dict.fromkeys(view.nodes), away)
        plan = self._planner.plan(view, self._micro_batches, away, self.policy, found=found)
        haste = Haste(self._stripe_bytes, self._pace.usual_s, self._planner.rate)
        who = (self._copies, alone, self._learned)
        stripes = level(view, kept, *who, haste, plan.ways, away)
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
            stripes,
        )
        term, version, reason = self.policy.term, self.policy.version, self.policy.reason
        same = replace(policy, term=term, version=version, reason=reason)
        # If others have stored a newer policy, a new one must follow even if nothing else changes.
        superseded = self._issued <= self.policy.version
        return None if same == self.policy and superseded else policy


def _task(policy: Policy) -> tuple[object, ...]:
    """Return what a policy was made for: its members, links and joiners, who has no share, and
    whether there are ways yet. The rest is a plan for that."""
    idle = [not share for share in policy.shares]
    return policy.view, policy.pulls, idle, bool(policy.ways), policy.stripes
