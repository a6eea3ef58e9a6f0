"""The joins under way, as the scheduler leads them: from a device's request to its entry.

A join only says what is desired: a pull in the next policy, and then a member in its view. The
negotiator (`negotiator.py`) makes the policy. A join that makes no progress, that would stop the
others for too long, or that has lost the links it needs is given up, and its joiner asks again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster import standby
from protocols.cluster.view import edge, make_view
from protocols.scheduler import together
from protocols.scheduler.join import JOIN_TABLE, Join, JoinState
from protocols.wire.messages import (
    EVERYONE,
    Introduce,
    JoinAborted,
    JoinProgress,
    JoinRequest,
    Letter,
    LinksOpen,
    OpenLinks,
    StaysOutside,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from protocols.scheduler.agenda import Agenda
    from protocols.scheduler.asked_links import AskedLinks
    from protocols.scheduler.join_cost import JoinCost
    from protocols.scheduler.planning import Planner

UNKNOWN = "the scheduler knows no such join"
BEHIND = "the trainers of all devices that it is linked to are behind, so it could copy nothing"
OTHERS_FIRST = "devices with faster links join first, since all would wait for the slowest one"
STARTED_AGAIN = "the device started again"
OFTEN_LOST = "its links to the others broke again and again, and it may try again in a minute"
NO_PROGRESS = f"it copied nothing for {limits.JOIN_PROGRESS_SECONDS:.0f} s"
LAGS = "it has the state, but updates have come faster since then than its links carry them"
MOST_UNMEASURED = 3  # reports without rates, after which a joiner is let in unmeasured
# So many steps of the members a join may have to wait for: the running one, and one more for each
# policy that is on its way for other joiners and comes into force first.
MOST_STEPS = 3
_FOLLOWS = (JoinState.PULLING, JoinState.CAUGHT_UP)  # members forward the rounds to it


class Joins:
    """The joins of one term. `outlaws()` returns the nodes that are not let in."""

    def __init__(
        self,
        agenda: Agenda,
        term: int,
        planner: Planner,
        cost: JoinCost,
        asked_links: AskedLinks,
        micro_batches: int,
        outlaws: Callable[[], tuple[bytes, ...]],
    ) -> None:
        self.open: dict[int, Join] = {}  # by number
        self._agenda = agenda
        self._planner = planner
        self._cost = cost
        self._asked_links = asked_links
        self._micro_batches = micro_batches
        self._outlaws = outlaws
        self._next = (term << 32) + 1
        self._ended: dict[int, None] = {}  # joins given up that a policy may still name
        self._others_first = together.OthersFirst(cost)
        # How many copies beside the training have failed, by joiner: those that kept up with it.
        self._failed: dict[bytes, int] = {}
        self._unsent: list[Letter] = []  # what members are told with the next tick

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        times = [min(j.deadline, j.stops_until) for j in self.open.values() if not self._enters(j)]
        waits = together.deadline(self.open.values())
        return min(times if waits is None else [*times, waits], default=None)

    def resume(self, now: float) -> None:
        """Take over the joins that the policy in force names and that nobody here has ended.

        The last scheduler may have made that policy, and its joiner may have asked again since. The
        older one of its two joins is given up then: members hold their update for a join that a
        policy names until somebody ends it. The number of a later join is greater.
        """
        asking = {join.joiner.node: join.number for join in self.open.values()}
        for pull in self._agenda.policy.pulls:
            if pull.join in self.open or pull.join in self._ended:
                continue
            known = asking.get(pull.joiner.node, 0)
            if known > pull.join:
                self._ended[pull.join] = None
                continue
            if known:
                self._unsent += self.give_up(known, STARTED_AGAIN)
            deadline = now + limits.JOIN_PROGRESS_SECONDS
            state = JoinState.COPYING if pull.beside else JoinState.PULLING
            join = Join(pull.join, pull.joiner, pull.sources, deadline, state)
            join.links, join.beside, join.resumed = pull.sources, pull.beside, pull.beside
            join.take(pull)
            join.stops_until = math.inf if pull.beside else now + self._cost.most_s
            self.open[pull.join] = join

    def request(self, now: float, message: JoinRequest) -> list[Letter]:
        """Begin a join, or answer the same incarnation of the joiner again."""
        joiner, view = message.joiner, self._agenda.policy.view
        if self._agenda.passing or joiner.node in view.nodes:
            return []
        if joiner.node in self._outlaws():
            return [(joiner.node, JoinAborted(0, joiner.node, "this device was expelled"))]
        known = next((j for j in self.open.values() if j.joiner.node == joiner.node), None)
        if known is not None and known.joiner.incarnation == joiner.incarnation:
            return self._repeated(known)
        mail: list[Letter] = []
        if known is not None:
            mail += self.give_up(known.number, STARTED_AGAIN)
        if len(self.open) >= limits.MAX_OPEN_JOINS:
            return mail
        near = self._planner.neighbours(view, message.neighbours, joiner.most_links)
        chosen, wait_s = self._asked_links.ways_in(now, joiner.node, near)
        if wait_s:
            refusal = JoinAborted(0, joiner.node, OFTEN_LOST, math.ceil(1000 * wait_s))
            return [*mail, (joiner.node, refusal)]
        deadline = now + limits.JOIN_PROGRESS_SECONDS
        join = Join(self._next, joiner, chosen, deadline, asked_at=now)
        self._next += 1
        self.open[join.number] = join
        return mail + [(n, Introduce(join.number, joiner)) for n in chosen]

    def _repeated(self, join: Join) -> list[Letter]:
        """Answer a request again; chosen neighbours that have left are no longer waited for."""
        nodes = self._agenda.policy.view.nodes
        join.neighbours = tuple(n for n in join.neighbours if n in nodes)
        if not join.neighbours:
            return self.give_up(join.number, "the members that it was to link to have left")
        if silent := [n for n in join.neighbours if n not in join.introduced]:
            return [(n, Introduce(join.number, join.joiner)) for n in silent]
        if join.state is JoinState.INTRODUCING:
            join.state = JOIN_TABLE.step(join.state, "introduced", JoinState.LINKING)
        return self._links_wanted(join)

    def introduced(self, sender: bytes, number: int) -> list[Letter]:
        """Note that a chosen neighbour expects the joiner's link."""
        join = self.open.get(number)
        if join is None or not JOIN_TABLE.allows(join.state, "introduced"):
            return []
        join.introduced[sender] = None
        ready = all(n in join.introduced for n in join.neighbours)
        then = JoinState.LINKING if ready else join.state
        join.state = JOIN_TABLE.step(join.state, "introduced", then)
        return self._links_wanted(join) if ready else []

    @property
    def is_any_entering(self) -> bool:
        """Whether a joiner that has copied the state gets the last updates."""
        pulls = [j for j in self.open.values() if j.state is JoinState.PULLING]
        return any(join.copied and not join.has_state for join in pulls)

    def _links_wanted(self, join: Join) -> list[Letter]:
        if join.state is not JoinState.LINKING:
            return []
        members = [self._agenda.policy.view.member(n) for n in join.neighbours]
        chosen = tuple(m for m in members if m is not None)
        return [(join.joiner.node, OpenLinks(join.number, chosen))]

    def links_open(self, now: float, sender: bytes, message: LinksOpen) -> list[Letter]:
        """Take the links that a joiner has opened, with their rates, or learn that it has copied
        the state beside the training. A joiner that only the last scheduler knew is told to begin
        anew, one whose links are too slow is refused."""
        number, links, rates = message.join, message.neighbours, message.rates
        join = self.open.get(number)
        if join is None and sender not in self._agenda.policy.view.nodes:
            return [(sender, JoinAborted(number, sender, UNKNOWN))]
        if join is None or sender != join.joiner.node:
            return []
        join.rates = dict(zip(links, rates, strict=False)) or join.rates
        join.constants = message.constants
        if join.state is JoinState.COPYING:
            if not message.copied and join.copied_at is None:
                return []  # it still waits for a source to begin, and may do so for ever
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS
            return self._copies_on(now, join, message)
        if JOIN_TABLE.allows(join.state, "links open") and links:
            reason = self._not_wanted(join, message)
            # What is measured may be the slower part of its links.
            waits = self._cost.has_to_know(rates) or (bool(reason) and not all(rates))
            if waits and join.unmeasured < MOST_UNMEASURED:
                join.unmeasured += 1  # the joiner repeats its message, perhaps with more rates
                return []
            return self._linked(now, join, message, reason)
        return []

    def _copies_on(self, now: float, join: Join, message: LinksOpen) -> list[Letter]:
        """Act on the report of a joiner that has copied the state beside the training. What was too
        slow to be measured at first has been measured by its copy."""
        join.copied_at = now if join.copied_at is None else join.copied_at
        if now - join.copied_at >= standby.STEADY_SECONDS:
            self._failed.pop(join.joiner.node, None)  # it can follow, so its links had broken
        if reason := self._not_wanted(join, message):
            join.worth = 0
            return self._stay_outside(join, reason, message.rates)
        join.worth += 1
        waits = (bool(join.outside) or join.resumed) and join.worth < standby.WORTH_TIMES
        if message.copied and not waits:
            join.copied = True
            self._pause_for(join)
        return []

    def _linked(self, now: float, join: Join, message: LinksOpen, reason: str) -> list[Letter]:
        """Let a joiner copy whose links are open. `reason`: why it is not to enter, "" if it is."""
        rates, constants = message.rates, message.constants
        mail: list[Letter] = []
        if reason:
            mail = self._stay_outside(join, reason, rates)
        else:
            failed = self._failed.get(join.joiner.node, 0)
            join.beside = self._cost.goes_beside(rates, constants, failed)
            if not join.beside and (refusal := self._refusal(join)):
                mail = self.give_up(join.number, refusal, limits.JOIN_AGAIN_SECONDS)
        if join.state is JoinState.ABORTED:
            return mail
        join.state = JOIN_TABLE.step(join.state, "links open", JoinState.LINKED)
        join.links = message.neighbours
        self._agenda.dirty = True
        join.deadline = now + limits.JOIN_PROGRESS_SECONDS
        gather_s, batch_s = self._cost.waits_s(rates, constants, beside=join.beside)
        if batch_s:
            # Who started at the same moment as this joiner has asked by then, or is known to come.
            join.gathers_until, join.waits_until = join.asked_at + gather_s, now + batch_s
        return mail

    def _stay_outside(self, join: Join, reason: str, rates: tuple[int, ...]) -> list[Letter]:
        """Have a joiner follow from outside for `reason`, if its links carry the updates; otherwise
        it asks again later. One that has begun is stopped by its sources if it falls behind. Who
        follows has no part of a divided optimizer, so it could not go on from what it has."""
        begins = join.state is not JoinState.COPYING
        failed = self._failed.get(join.joiner.node, 0)
        others = sum(bool(j.outside) for j in self.open.values() if j is not join)
        # Each update is sent once for each who follows. So a member sends them no more than about
        # as much as its own rounds make it send.
        most = min(limits.MAX_FOLLOWERS, len(self._agenda.policy.view.nodes))
        unable = begins and not self._cost.can_follow(rates, failed)
        if others >= most or unable or self._agenda.policy.stripes:
            return self.give_up(join.number, reason, standby.AGAIN_SECONDS, stands_by=True)
        to = join.joiner.node if join.outside else EVERYONE
        join.outside, join.beside = reason, True
        return [(to, StaysOutside(join.number, join.joiner.node, reason))]

    def _not_wanted(self, join: Join, message: LinksOpen) -> str:
        """Return why the joiner is not to enter now, "" if it is."""
        return standby.WANTED if message.outside else self._slows_down(join)

    def _slows_down(self, join: Join) -> str:
        """Return why the members had better train without the joiner, "" if they need not, or if
        not enough is known."""
        view = self._agenda.policy.view
        if not self._cost.stands_by or len(view.nodes) < standby.LEAST_OTHERS:
            return ""
        # Links that are not measured would be taken for typical ones, which are fast.
        measured = [node for node, rate in join.rates.items() if rate and node in view.nodes]
        links = [edge(join.joiner.node, node) for node in measured]
        members, edges = [*view.members, join.joiner], [*view.edges, *links]
        larger = make_view(view.lineage, view.number + 1, members, edges)
        with_s = self._planner.step_s(larger, self._micro_batches)
        without_s = self._planner.step_s(view, self._micro_batches)
        if with_s is None or without_s is None:
            return ""
        # Both are what a step takes at least. Steps as they are seen take longer, for other reasons
        # than the links, too, and those remain with the joiner.
        other_s = max(0.0, self._cost.pace.recent_s - without_s)
        with_s, without_s = with_s + other_s, without_s + other_s
        if with_s <= standby.ENTERS * without_s:
            return ""
        return standby.reason(with_s, without_s, float(max(join.rates.values())))

    def _refusal(self, join: Join) -> str:
        """Return why the others do not hold their update while `join` copies the whole state, "" if
        they do."""
        return self._cost.refusal(join.joiner.name, tuple(join.rates.values()), join.constants)

    def _pause_for(self, join: Join) -> None:
        """Have the others hold their update for a joiner, with the next policy."""
        join.outside = ""
        join.state = JOIN_TABLE.step(join.state, "copied", JoinState.LINKED)
        join.beside = False
        join.without.clear()
        self._agenda.dirty = True

    def no_snapshot(self, sender: bytes, number: int) -> None:
        """Nothing can be copied from a source; it may say so before the policy that names the pull
        is in force here."""
        join = self.open.get(number)
        if join is not None and sender in join.links:
            join.without[sender] = None

    def _look_for_snapshots(self, join: Join) -> list[Letter]:
        """A joiner none of whose sources has a snapshot copies while the others hold their update,
        unless that would take too long. If they do that already, and its sources have nothing for
        it because their trainers are behind, nobody waits any longer."""
        copies = join.state in (JoinState.COPYING, JoinState.PULLING)
        if not copies or any(n not in join.without for n in join.reached):
            return []
        if join.state is JoinState.PULLING:
            return self.give_up(join.number, BEHIND, limits.JOIN_AGAIN_SECONDS)
        if join.outside:
            return self.give_up(join.number, join.outside, standby.AGAIN_SECONDS, stands_by=True)
        if reason := self._refusal(join):
            return self.give_up(join.number, reason, limits.JOIN_AGAIN_SECONDS)
        self._pause_for(join)
        return []

    def progress(self, now: float, sender: bytes, message: JoinProgress) -> list[Letter]:
        """Take a joiner's report on its pull. Its deadline moves only if more bytes have come, and
        a pull that is much slower than its links promised is given up. One that has copied beside
        the training stopped nobody meanwhile, however long that took."""
        join = self.open.get(message.join)
        if join is None or join.joiner.node != sender:
            return []
        before = join.progress.pulled_bytes if join.progress is not None else 0
        # One that has the whole snapshot still copies updates.
        has_all = join.state is JoinState.COPYING and message.pulled_bytes == message.total_bytes
        if message.pulled_bytes > before or has_all:
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS
        if has_all and join.lags(now, message):
            return self.give_up(message.join, LAGS, failed=True)
        join.progress = message
        join.foretell(now, message, self._cost.pace.usual_s)
        seconds, name = message.pull_us / 1e6, join.joiner.name
        slow = self._cost.too_slow(name, seconds, message.pulled_bytes, message.total_bytes)
        if not slow or join.copied or join.stops_until == math.inf or self._enters(join):
            return []
        return self.give_up(join.number, slow, limits.JOIN_MUCH_LATER_SECONDS)

    def pulled(self, number: int) -> None:
        """The joiner has the state, so it no longer stops the others."""
        if (join := self.open.get(number)) is not None:
            join.stops_until = math.inf
            join.has_state = True

    def caught_up(self, now: float, sender: bytes, number: int) -> None:
        """The joiner has the state and has applied an update like the members: let it in."""
        join = self.open.get(number)
        if join is None or sender != join.joiner.node:
            return
        if JOIN_TABLE.allows(join.state, "caught up"):
            join.state = JOIN_TABLE.step(join.state, "caught up", JoinState.CAUGHT_UP)
            self._agenda.dirty = True
            join.deadline = now + limits.JOIN_PROGRESS_SECONDS

    def are_expected(self, now: float) -> bool:
        """Whether a joiner will soon say what leads to its next policy."""
        if not self.open:  # this is asked at every event of a round
            return False
        step_s = self._cost.pace.usual_s
        return any(join.is_expected(now, step_s) for join in self.open.values())

    def has_link(self, a: bytes, b: bytes) -> bool:
        """Whether one of the two joins and has the link to the other, as far as is known here. The
        links of one that enters are those of a member."""
        ends = {j.joiner.node: j.links for j in self.open.values() if not self._enters(j)}
        return b in ends.get(a, ()) or a in ends.get(b, ())

    def link_lost(self, reporter: bytes, peer: bytes) -> list[Letter]:
        """A link broke. A join that loses every link is given up, and so is one that loses a feeder
        when it has begun to follow the rounds, or may have begun."""
        mail: list[Letter] = []
        for join in list(self.open.values()):
            ends = (reporter, peer)
            if join.joiner.node not in ends or self._enters(join):
                continue
            other = ends[1 - ends.index(join.joiner.node)]
            if join.links and other not in join.links:
                continue  # this loss was reported before
            join.links = tuple(n for n in join.links if n != other)
            self._agenda.changed(join.joiner.node)
            policies = [self._agenda.policy, *(s.policy for s in self._agenda.under_way)]
            pulls = [policy.pull_of(join.joiner.node) for policy in policies]
            feeds = not join.beside and other in (join.parent, *join.feeds)
            feeds = feeds or any(pull is not None and pull.is_fed_by(other) for pull in pulls)
            stuck = feeds and (
                join.state in _FOLLOWS or not self._agenda.withdraw_pull(join.joiner.node)
            )
            stuck = stuck or (bool(join.sources) and not join.reached)
            if stuck or not join.links:
                reason = "the link that it needs broke"
                mail += self.give_up(join.number, reason, failed=not join.links)
        return mail

    def give_up(
        self,
        number: int,
        reason: str,
        pause_s: float = 0.0,
        *,
        stands_by: bool = False,
        failed: bool = False,
    ) -> list[Letter]:
        """End a join that has not entered; its joiner waits for `pause_s` before it asks again.
        `stands_by`: the members are faster without it. `failed`: its copy came to nothing by
        itself. A joiner whose copy has failed closes all its links, while a member that dies closes
        only one."""
        join = self.open.pop(number)
        if self._agenda.names(number):
            self._ended[number] = None
        self._agenda.changed(join.joiner.node)
        if join.state is JoinState.COPYING and failed:
            self._failed[join.joiner.node] = self._failed.get(join.joiner.node, 0) + 1
        join.state = JOIN_TABLE.step(join.state, "given up", JoinState.ABORTED)
        pause_ms = round(1000 * pause_s)
        return [(EVERYONE, JoinAborted(number, join.joiner.node, reason, pause_ms, stands_by))]

    def fenced(self, policies: tuple[Policy, ...], reason: str) -> list[Letter]:
        """Give all joins up for `reason`, because of a fence, except those of joiners that one of
        `policies` lets in, and of those that copy beside the training under one: what is kept for
        them does not change with a fence."""
        entering = [node for policy in policies for node in policy.view.nodes]
        beside = [p.join for policy in policies for p in policy.pulls if p.beside]
        ended = [
            number
            for number, join in self.open.items()
            if join.joiner.node not in entering and number not in beside
        ]
        return [letter for number in ended for letter in self.give_up(number, reason)]

    def in_force(self, now: float, policy: Policy) -> bool:
        """A policy has come into force: move the joins along that it names. Return whether a joiner
        has begun to copy."""
        begun = False
        for join in list(self.open.values()):
            pull = next((p for p in policy.pulls if p.join == join.number), None)
            if join.state is JoinState.COPYING and pull and not pull.beside:
                # The last scheduler has heard that the joiner has its copy, and made this policy.
                join.copied = True
                self._pause_for(join)
            if join.state is JoinState.LINKED and pull and pull.beside is join.beside:
                then = JoinState.COPYING if pull.beside else JoinState.PULLING
                join.state = JOIN_TABLE.step(join.state, "pull in force", then)
                join.take(pull)
                join.due_at = now if join.copied else math.inf
                join.deadline = now + limits.JOIN_PROGRESS_SECONDS
                waits = not pull.beside and not join.has_state
                join.stops_until = now + self._most_s(join) if waits else math.inf
                begun = True
            elif join.joiner.node in policy.view.nodes:  # it has entered
                if JOIN_TABLE.allows(join.state, "entry in force"):
                    join.state = JOIN_TABLE.step(join.state, "entry in force", JoinState.ENTERED)
                del self.open[join.number]
                self._failed.pop(join.joiner.node, None)
                self._others_first.entered(join.joiner.node)
        self.resume(now)
        over = [p for p in policy.pulls if p.join in self._ended]
        self._ended = {p.join: None for p in over}
        # All were told when these joins ended. Members remember that of the last joins only, and
        # may have heard of many others before this policy came into force.
        self._unsent += [(EVERYONE, JoinAborted(p.join, p.joiner.node, UNKNOWN)) for p in over]
        return begun

    def _most_s(self, join: Join) -> float:
        """For how many seconds `join` may stop the others."""
        if not join.copied:
            return self._cost.most_s
        return self._cost.most_of_rest_s(tuple(join.rates.values()))

    def _waits_for_members(self, now: float, join: Join) -> bool:
        """Whether a join that stops nobody gets no further because the members' steps take long
        beside the time that a join may rest, as over slow links or in rounds of local steps."""
        follows = join.state is JoinState.PULLING and join.has_state
        waits = follows or join.state in (JoinState.LINKED, JoinState.CAUGHT_UP)
        return waits and self._cost.pace.is_long(now, limits.JOIN_PROGRESS_SECONDS / MOST_STEPS)

    def tick(self, now: float) -> list[Letter]:
        """Give up joins that are late, or that have lost what they need."""
        mail, self._unsent = self._unsent, []
        for join in list(self.open.values()):
            if self._enters(join):
                continue
            if now >= join.deadline and self._waits_for_members(now, join):
                join.deadline = now + limits.JOIN_PROGRESS_SECONDS
            elif now >= join.deadline:
                mail += self.give_up(join.number, NO_PROGRESS, failed=True)
            elif now >= join.stops_until:
                reason = self._cost.too_long(join.joiner.name, self._most_s(join))
                mail += self.give_up(join.number, reason, limits.JOIN_MUCH_LATER_SECONDS)
            elif self._is_left_behind(join):
                mail += self.give_up(join.number, "all members that it was linked to have left")
            else:
                mail += self._look_for_snapshots(join)
        return mail + self._begin_together(now)

    def _begin_together(self, now: float) -> list[Letter]:
        """Let joiners begin to copy that have waited for others, and put those off that would keep
        the others waiting."""
        joins = together.ready(now, self.open.values())
        if not joins:
            return []
        self._agenda.dirty = True
        mail: list[Letter] = []
        for number, pause_s in self._others_first.choose(joins).items():
            mail += self.give_up(number, OTHERS_FIRST, pause_s)
        return mail

    def _enters(self, join: Join) -> bool:
        """Whether a policy that lets the joiner in may be in force already."""
        return self._agenda.lets_in(join.joiner.node)

    def _is_left_behind(self, join: Join) -> bool:
        """Whether a joiner should follow the rounds, but nobody forwards them to it any more, or
        waits for its pull, but nobody is left from whom it could copy."""
        policy, node = self._agenda.policy, join.joiner.node
        if join.state is JoinState.LINKED and not any(n in policy.view.nodes for n in join.links):
            return True
        follows = join.state in _FOLLOWS
        return follows and policy.pull_of(node) is None and node not in policy.view.nodes
