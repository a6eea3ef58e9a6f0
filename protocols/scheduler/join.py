"""One join as the scheduler sees it, the states that it goes through, and the pulls of several."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.policy import Pull
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping

    from protocols.cluster.view import Member
    from protocols.wire.messages import JoinProgress


class JoinState(StrEnum):
    """Where the scheduler stands with one joiner."""

    # INTRODUCING: its neighbours have not answered. LINKING: it opens its links. LINKED: they are
    # open, and the next policy names its pull. COPYING: it copies beside the training. PULLING: the
    # others hold an update for it. CAUGHT_UP: the next policy has it in its view.
    INTRODUCING = "introducing"
    LINKING = "linking"
    LINKED = "linked"
    COPYING = "copying"
    PULLING = "pulling"
    CAUGHT_UP = "caught-up"
    ENTERED = "entered"
    ABORTED = "aborted"


_OPEN = (
    JoinState.INTRODUCING,
    JoinState.LINKING,
    JoinState.LINKED,
    JoinState.COPYING,
    JoinState.PULLING,
    JoinState.CAUGHT_UP,
)
# A joiner copies beside the training only if its links carry twice what the updates need, so it is
# to catch up in about the time that its copy took. If steps have become faster, or some of its
# links have broken, it may never do so. It is given up after so many times as long, and no sooner
# than after so many seconds: a first update may take a trainer a minute.
CATCH_UP_TIMES = 2.0
CATCH_UP_SECONDS = 90.0
# A joiner that copies beside the training is expected to have copied from one step before the
# moment that its progress foretells until so many steps after it, since it still applies updates
# then. It is expected to catch up for so many steps after it is to be sent the last updates.
STEPS_AFTER = 2
# States of a joiner that will probably be a member soon.
COMING = (JoinState.COPYING, JoinState.PULLING, JoinState.CAUGHT_UP)
JOIN_TABLE: StateTable[JoinState] = StateTable(
    "join (scheduler)",
    Row(JoinState.INTRODUCING, "introduced", (JoinState.INTRODUCING, JoinState.LINKING)),
    Row(JoinState.LINKING, "links open", (JoinState.LINKED,)),
    Row(JoinState.LINKED, "pull in force", (JoinState.COPYING, JoinState.PULLING)),
    Row(JoinState.COPYING, "copied", (JoinState.LINKED,)),
    Row(JoinState.PULLING, "caught up", (JoinState.CAUGHT_UP,)),
    Row(JoinState.PULLING, "entry in force", (JoinState.ENTERED,)),  # if the last scheduler made it
    Row(JoinState.CAUGHT_UP, "entry in force", (JoinState.ENTERED,)),
    *(Row(state, "given up", (JoinState.ABORTED,)) for state in _OPEN),
)


@dataclass(slots=True)
class Join:
    """One join as the scheduler sees it. `deadline`: when it is given up unless it makes progress;
    `stops_until`: when it is given up because it stops the others, infinite while it does not."""

    number: int
    joiner: Member
    neighbours: tuple[bytes, ...]
    deadline: float
    state: JoinState = JoinState.INTRODUCING
    asked_at: float = -math.inf  # when it asked to join, if it asked this scheduler
    introduced: dict[bytes, None] = field(default_factory=dict)
    links: tuple[bytes, ...] = ()
    sources: tuple[bytes, ...] = ()  # those of `links` that it copies from
    parent: bytes = b""
    feeds: dict[bytes, int] = field(default_factory=dict)  # source -> weight, if it has one
    are_chosen: bool = False  # these two are those for the last rounds before it enters
    progress: JoinProgress | None = None
    unmeasured: int = 0  # how often it said that no rate of its links was known
    stops_until: float = math.inf
    has_state: bool = False  # it has said that it has pulled the state
    beside: bool = False  # it copies beside the training, and has not caught up yet
    copied: bool = False  # it has done so, and lacks a few updates
    outside: str = ""  # why it only follows from outside, "" if it is to enter
    copied_at: float | None = None  # since when it has followed the others with a whole copy
    # Since when it has had the whole snapshot, and how many seconds it had copied that for.
    whole_at: float | None = None
    copy_s: float = 0.0
    # When it will have the whole snapshot, as its progress foretells, or, once it has copied, since
    # when it is sent the last updates.
    due_at: float = math.inf
    resumed: bool = False  # the last scheduler led it: it may have followed from outside
    worth: int = 0  # how often in a row it was found to be worth its place since then
    without: dict[bytes, None] = field(default_factory=dict)  # sources that have said `NoSnapshot`
    rates: dict[bytes, int] = field(default_factory=dict)  # bytes/s over each of its links
    constants: bytes = b""  # the digest of the frozen weights that it has
    waits_until: float | None = None  # until when it waits for others that are about to copy, too
    # Until when it waits even if no others are known to come; None once that is over.
    gathers_until: float | None = None
    together: int = 0  # joins with one such number copy the same state

    def lags(self, now: float, progress: JoinProgress) -> bool:
        """Whether a joiner that copies beside the training, and has the whole snapshot, as
        `progress` shows, has lacked updates since then for so long that it will not catch up."""
        if self.whole_at is None:
            self.whole_at, self.copy_s = now, progress.pull_us / 1e6
        if self.follows or self.copied_at is not None:
            return False
        return now - self.whole_at > max(CATCH_UP_SECONDS, CATCH_UP_TIMES * self.copy_s)

    def foretell(self, now: float, progress: JoinProgress, step_s: float) -> None:
        """Note when the joiner will have the whole snapshot if it goes on as it has until now. Once
        that is less than a step of `step_s` away it stays, so that it is not put off for ever."""
        missing = max(0, progress.total_bytes - progress.pulled_bytes)
        if now < self.due_at - step_s and (progress.pulled_bytes or not missing):
            pulled = max(1, progress.pulled_bytes)
            self.due_at = now + progress.pull_us / 1e6 * missing / pulled

    def is_expected(self, now: float, step_s: float) -> bool:
        """Whether a joiner that copies beside the training will probably soon say what leads to its
        next policy: that it has copied, or has caught up. A step takes `step_s` seconds."""
        copies = self.state is JoinState.COPYING and not self.follows
        catches_up = self.state is JoinState.PULLING and self.copied
        soon = -step_s <= now - self.due_at <= STEPS_AFTER * step_s
        return (copies or catches_up) and soon

    @property
    def follows(self) -> bool:
        """Whether it follows from outside for as long as it likes, or may do so."""
        return (bool(self.outside) or self.resumed) and self.state is JoinState.COPYING

    def take(self, pull: Pull) -> None:
        """Note from whom the joiner copies and is fed, as a policy has it."""
        self.together, self.sources, self.parent = pull.together, pull.sources, pull.parent
        self.feeds = {n: w for n, w in zip(pull.sources, pull.feeds, strict=False) if w}
        self.are_chosen = not pull.beside

    def choose_feeds(self, sources: tuple[bytes, ...]) -> None:
        """Choose who of `sources` forwards the rounds to the joiner, if nobody is chosen yet or one
        of them is no source any more. Others stay, since a policy with them may be on its way.

        One that has copied beside the training is fed by all sources, because it lacks only a few
        updates. One that still has to copy everything is fed by its parent alone: it fails if the
        link to whoever feeds it breaks, while other sources can be replaced during a long copy.
        """
        ends = self.copied and not self.beside
        still = self.parent in sources and all(n in sources for n in self.feeds)
        if still and (self.are_chosen or not ends):
            return
        self.feeds, self.are_chosen = feed_weights(sources, self.rates) if ends else {}, ends
        weights = self.feeds or self.rates
        self.parent = max(sources, key=lambda n: weights.get(n, 0))

    @property
    def reached(self) -> tuple[bytes, ...]:
        """The sources to which the joiner still has a link."""
        return tuple(n for n in self.sources if n in self.links)


def planned_pulls(
    joins: Collection[Join], nodes: Container[bytes], away: Container[bytes] = ()
) -> tuple[Pull, ...]:
    """Return the pulls of `joins` that are linked, copying or pulling, from those of `nodes` that
    are their sources. The state of members `away` may lack updates, so they are sources only of
    joiners that have no link to others."""
    pulls: list[Pull] = []
    begin = [j for j in joins if j.state is JoinState.LINKED and j.waits_until is None]
    for join in begin:
        join.together = min(j.number for j in begin)
    for join in joins:
        if join.state not in (JoinState.LINKED, JoinState.COPYING, JoinState.PULLING):
            continue
        if join.waits_until is not None:
            continue
        if join.state is JoinState.LINKED:
            # One that has copied beside the training goes on with the sources that know it.
            able = tuple(n for n in (join.sources if join.copied else join.links) if n in nodes)
            join.sources = tuple(n for n in able if n not in away) or able
        sources = tuple(n for n in join.reached if n in nodes)
        if not sources:
            continue
        join.choose_feeds(sources)
        feeds = tuple(join.feeds.get(n, 0) for n in sources) if join.feeds else ()
        about = (join.number, join.joiner, sources, join.parent, join.beside, join.together)
        pulls.append(Pull(*about, feeds))
    return tuple(pulls)


def feed_weights(sources: tuple[bytes, ...], rates: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return who of `sources` forwards how much of each round to a joiner: source -> its weight, in
    proportion to the `rates` of the links (bytes/s), so that all of them are done together. Whoever
    would have less than one part in `limits.MAX_FEED_WEIGHT`, or whose rate is not known, has none.
    Nothing is returned if that leaves only one: then it is the parent.
    """
    known = {n: rates[n] for n in sources if rates.get(n)}
    total = sum(known.values())
    found = {n: rate * limits.MAX_FEED_WEIGHT // total for n, rate in known.items()}
    some = {n: weight for n, weight in found.items() if weight}
    return some if len(some) > 1 else {}
