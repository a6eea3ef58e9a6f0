"""Before there is a cluster: rooms of agents that start at once, and every single decision."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.founding import (
    ASK_AGAIN_SECONDS,
    ASK_KIN_SECONDS,
    ASK_STRANGERS_SECONDS,
    GIVE_UP_SECONDS,
    LISTEN_SECONDS,
    MERGE_SECONDS,
    NAMED_PEER_SECONDS,
    SOMEBODY_HAS_FOUNDED,
    Ask,
    Found,
    Founding,
    FoundingEffect,
    FoundingState,
    GiveUp,
    Heard,
    JoinAt,
)

from .records import node

ME, ELDER, YOUNGER = node(5), node(1), node(9)
OWN = Heard(ME, False, elder=ME)
LATE = LISTEN_SECONDS + 0.1


def searcher(*named: str, mdns: bool = True) -> Founding:
    """Return the search of agent `ME`, begun at 0."""
    return Founding(ME, named, mdns, 0.0)


def asked(effects: list[FoundingEffect]) -> list[str]:
    """Return the addresses that are asked."""
    return [e.address for e in effects if isinstance(e, Ask)]


def standing(
    search: Founding, address: str, heard: Heard, *, ready: bool = True
) -> list[FoundingEffect]:
    """Let `heard` answer at `address`."""
    return search.standing(0.0, address, heard, OWN, ready=ready)


def founder(own_lineage: bytes = b"m") -> tuple[Founding, Heard]:
    """Return a search that ended in founding, and what its agent says about itself."""
    search = searcher()
    assert search.tick(LATE, 0, ready=True) == [Found()]
    return search, Heard(ME, True, 100, 1, own_lineage)


# --- alone ----------------------------------------------------------------------------------------


def test_nobody_founds_before_it_has_listened_and_is_ready() -> None:
    search = searcher()
    assert search.tick(0.0, 0, ready=True) == []
    assert search.tick(LISTEN_SECONDS - 0.01, 0, ready=True) == []
    assert search.tick(LATE, 0, ready=False) == []
    assert search.tick(LATE, 0, ready=True) == [Found()]
    assert search.state is FoundingState.FOUNDED


def test_without_mdns_there_is_nothing_to_listen_to() -> None:
    assert searcher(mdns=False).tick(0.0, 0, ready=True) == [Found()]


def test_a_named_peer_is_waited_for_until_patience_ends() -> None:
    search = searcher("a:1", mdns=False)
    assert search.tick(0.0, 0, ready=True) == [Ask("a:1")]
    assert search.tick(NAMED_PEER_SECONDS - 0.01, 0, ready=True) == [Ask("a:1")]
    assert search.tick(NAMED_PEER_SECONDS, 0, ready=True) == [Found()]


def test_a_named_peer_that_answers_is_not_waited_for() -> None:
    search = searcher("a:1", mdns=False)
    search.tick(0.0, 0, ready=True)
    standing(search, "a:1", Heard(YOUNGER, False, elder=YOUNGER))
    assert search.tick(0.1, 0, ready=True) == [Found()]


def test_addresses_are_asked_again_in_a_steady_rhythm() -> None:
    search = searcher("a:1")
    search.hint(0.0, "b:1")
    assert asked(search.tick(0.0, 0, ready=False)) == ["a:1", "b:1"]
    search.hint(0.1, "a:1")  # a known address is not asked sooner
    assert asked(search.tick(ASK_AGAIN_SECONDS - 0.01, 0, ready=False)) == []
    assert asked(search.tick(ASK_AGAIN_SECONDS, 0, ready=False)) == ["a:1", "b:1"]


# --- others ---------------------------------------------------------------------------------------


def test_the_smaller_id_is_deferred_to_and_the_larger_is_not() -> None:
    search = searcher()
    assert standing(search, "y:1", Heard(YOUNGER, False, elder=YOUNGER)) == []
    assert search.state == "listening"
    assert standing(search, "e:1", Heard(ELDER, False, elder=ELDER)) == []
    assert search.state == "deferring"
    assert search.tick(99.0, 0, ready=True) == []
    assert standing(search, "y:1", Heard(YOUNGER, False, elder=YOUNGER)) == []
    assert search.state == "deferring"
    assert standing(search, "e:1", Heard(ELDER, True, 0, 1, b"l")) == [JoinAt("e:1")]


def test_ones_own_answer_says_nothing() -> None:
    search = searcher()
    assert standing(search, "me:1", Heard(ME, False, elder=ME)) == []
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_a_cluster_is_joined_once_there_is_something_to_train() -> None:
    search = searcher()
    cluster = Heard(YOUNGER, True, 0, 3, b"l")
    assert standing(search, "y:1", cluster, ready=False) == []
    assert search.tick(LATE, 0, ready=True) == []  # another agent has founded, so this one must not
    assert standing(search, "y:1", cluster) == [JoinAt("y:1")]
    assert search.tick(LATE, 0, ready=True) == []
    assert standing(search, "z:1", cluster) == []  # one join at a time
    search.joined()
    assert search.state is FoundingState.FOUNDED


def test_whoever_waits_for_a_smaller_id_joins_any_cluster() -> None:
    search = searcher()
    standing(search, "e:1", Heard(ELDER, False, elder=ELDER))
    cluster = Heard(YOUNGER, True, 0, 3, b"l")
    assert standing(search, "y:1", cluster, ready=False) == []
    assert search.state is FoundingState.DEFERRING
    assert standing(search, "y:1", cluster) == [JoinAt("y:1")]


def test_nobody_waits_for_the_silent() -> None:
    search = searcher()
    for address, elder in (("e:1", ELDER), ("f:1", node(2))):
        standing(search, address, Heard(elder, False, elder=elder))
    search.silent("e:1")
    assert search.tick(LATE, 0, ready=True) == []
    search.silent("f:1")
    assert search.tick(LATE, 0, ready=True) == [Found()]
    search.silent("f:1")
    assert search.state is FoundingState.FOUNDED


def test_nobody_waits_for_a_cluster_that_is_silent() -> None:
    search = searcher()
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"), ready=False)
    search.silent("y:1")
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_nobody_waits_for_whom_somebody_else_answers_now() -> None:
    search = searcher()
    standing(search, "x:1", Heard(ELDER, False, elder=ELDER))
    standing(search, "x:1", Heard(YOUNGER, False, elder=YOUNGER))  # restarted with another key
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_nobody_waits_for_a_cluster_that_was_restarted() -> None:
    search = searcher()
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"), ready=False)
    standing(search, "y:1", Heard(YOUNGER, False, elder=YOUNGER), ready=False)
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_a_refused_join_begins_the_search_anew() -> None:
    search = searcher("y:1")
    search.tick(0.0, 0, ready=True)
    cluster = Heard(YOUNGER, True, 0, 3, b"l")
    standing(search, "y:1", cluster)
    search.silent("y:1")  # while joining this is only noted
    search.refused(9.0)
    assert search.tick(9.0, 0, ready=True) == []
    assert asked(search.tick(9.0 + ASK_AGAIN_SECONDS, 0, ready=True)) == ["y:1"]
    assert Found() not in search.tick(9.0 + LISTEN_SECONDS - 0.01, 0, ready=True)
    assert standing(search, "y:1", cluster) == [JoinAt("y:1")]
    search.refused(20.0)
    search.silent("y:1")
    assert Found() in search.tick(20.0 + LATE, 0, ready=True)


# --- hearsay --------------------------------------------------------------------------------------


def test_what_is_told_is_known_at_first_hand() -> None:
    search = searcher()
    assert search.elder == ME
    standing(search, "y:1", Heard(YOUNGER, False, elder=ELDER))
    assert search.state is FoundingState.DEFERRING
    assert search.elder == ME  # what another agent has told is not passed on
    standing(search, "e:1", Heard(node(2), False, elder=node(2)))
    assert search.elder == node(2)
    search.silent("e:1")
    assert search.elder == ME
    assert search.tick(LATE, 0, ready=True) == []
    standing(search, "y:1", Heard(YOUNGER, False, elder=ME))  # the elder it told us of is gone
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_a_cluster_that_is_known_comes_before_every_id() -> None:
    search = searcher()
    standing(search, "y:1", Heard(YOUNGER, True, 0, 1, b"l"), ready=False)
    assert search.elder == SOMEBODY_HAS_FOUNDED
    search.silent("y:1")
    assert search.elder == ME


# --- an agent whose state is spoilt ---------------------------------------------------------------


def test_a_spoilt_agent_only_joins() -> None:
    search = searcher("y:1")
    cluster = Heard(YOUNGER, True, 0, 3, b"l")
    standing(search, "y:1", cluster)
    search.refused(9.0, may_found=False)
    search.silent("y:1")
    assert search.elder == b""  # so that no agent waits for this one
    assert asked(search.tick(9.0 + LATE, 0, ready=True)) == ["y:1"]
    assert Found() not in search.tick(20.0, 0, ready=True)
    standing(search, "z:1", Heard(YOUNGER, False, elder=YOUNGER))
    assert search.elder == YOUNGER
    assert standing(search, "y:1", cluster) == [JoinAt("y:1")]
    search.joined()
    assert search.tick(99.0, 1, ready=True) != []


def test_a_spoilt_agent_gives_up_when_nobody_is_there() -> None:
    search = searcher()
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"))
    search.refused(9.0, may_found=False)
    search.standing(20.0, "y:1", Heard(YOUNGER, True, 0, 3, b"l"), OWN, ready=False)
    search.silent("y:1")
    assert GiveUp() not in search.tick(20.0 + GIVE_UP_SECONDS - 0.1, 0, ready=True)
    assert GiveUp() in search.tick(20.0 + GIVE_UP_SECONDS, 0, ready=True)


def test_two_spoilt_agents_do_not_wait_for_each_other() -> None:
    search = searcher()
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"))
    search.refused(9.0, may_found=False)
    spoilt = Heard(YOUNGER, False, elder=b"")
    search.standing(20.0, "y:1", spoilt, OWN, ready=True)
    assert GiveUp() in search.tick(9.0 + GIVE_UP_SECONDS, 0, ready=True)


def test_nobody_waits_for_a_spoilt_agent() -> None:
    search = searcher()
    standing(search, "e:1", Heard(ELDER, False, elder=b""))
    assert search.elder == ME
    assert search.tick(LATE, 0, ready=True) == [Found()]


def test_a_state_that_is_whole_again_may_found() -> None:
    search = searcher()
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"))
    search.refused(9.0, may_found=False)
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"))
    search.refused(10.0)
    search.silent("y:1")
    assert Found() in search.tick(10.0 + LATE, 0, ready=True)


def test_who_shall_only_join_never_founds_and_never_gives_up() -> None:
    search = Founding(ME, (), False, 0.0, join_only=True)
    assert search.must_join
    assert search.elder == b""
    assert search.tick(1e9, 0, ready=True) == []
    cluster = Heard(YOUNGER, True, 0, 3, b"l")
    assert standing(search, "y:1", cluster) == [JoinAt("y:1")]
    search.joined()
    search.refused(2e9)
    search.silent("y:1")
    assert search.tick(3e9, 0, ready=True) == []


def test_who_waits_for_its_cluster_does_not_give_up() -> None:
    search = Founding(ME, (), False, 0.0, patient=True)
    standing(search, "y:1", Heard(YOUNGER, True, 0, 3, b"l"))
    search.refused(9.0, may_found=False)
    search.silent("y:1")
    assert search.tick(1e9, 0, ready=True) == []
    search.refused(2e9)
    assert Found() in search.tick(2e9 + LATE, 0, ready=True)


def test_a_join_that_was_put_off_is_not_begun_before() -> None:
    search = searcher()
    cluster = Heard(YOUNGER, True, 0, 3, b"l")
    standing(search, "y:1", cluster)
    search.refused(9.0, may_found=False, pause_s=10.0)
    assert search.standing(18.9, "y:1", cluster, OWN, ready=True) == []
    assert search.standing(19.0, "y:1", cluster, OWN, ready=True) == [JoinAt("y:1")]


# --- founders that met too late -------------------------------------------------------------------


def test_a_founder_that_was_refused_still_gives_way_only_to_who_is_ahead() -> None:
    search, _ = founder()
    own = Heard(ME, True, 90, 1, b"m")
    assert search.standing(3.0, "y:1", Heard(YOUNGER, True, 95, 2, b"n"), own, ready=True)
    search.refused(3.5)
    assert search.state is FoundingState.LISTENING
    behind, ahead = Heard(YOUNGER, True, 10, 2, b"n"), Heard(YOUNGER, True, 95, 2, b"n")
    assert search.standing(4.0, "y:1", behind, own, ready=True) == []
    assert search.standing(5.0, "y:1", ahead, own, ready=True) == [JoinAt("y:1")]


def test_a_cluster_goes_on_without_us_while_we_look_around() -> None:
    search, _ = founder()
    search.refused(3.5)
    search.refused(3.6)
    assert search.state is FoundingState.LISTENING


def test_a_lone_founder_keeps_asking_but_slowly() -> None:
    search, _ = founder()
    search.hint(2.0, "z:1")
    assert search.tick(2.0, 1, ready=True) == [Ask("z:1")]
    assert search.tick(2.0 + ASK_STRANGERS_SECONDS - 0.01, 1, ready=True) == []
    assert search.tick(2.0 + ASK_STRANGERS_SECONDS, 1, ready=True) == [Ask("z:1")]
    later = 2.0 + ASK_STRANGERS_SECONDS + MERGE_SECONDS
    assert search.tick(later, 2, ready=True) == [Ask("z:1")]  # no longer alone: another cluster?
    assert search.tick(later + MERGE_SECONDS - 0.01, 2, ready=True) == []


def test_where_our_own_cluster_answers_is_asked_seldom() -> None:
    search, own = founder()
    search.hint(2.0, "z:1")
    assert search.tick(2.0, 2, ready=True) == [Ask("z:1")]
    kin = Heard(YOUNGER, True, 100, 2, own.lineage)
    assert search.standing(2.0, "z:1", kin, own, ready=True) == []
    asked_again = 2.0 + MERGE_SECONDS
    assert search.tick(asked_again, 2, ready=True) == [Ask("z:1")]
    assert search.tick(asked_again + ASK_KIN_SECONDS - 0.01, 2, ready=True) == []
    search.silent("z:1")
    due = asked_again + ASK_KIN_SECONDS
    assert search.tick(due, 2, ready=True) == [Ask("z:1")]
    assert search.tick(due + 2 * MERGE_SECONDS, 2, ready=True) == [Ask("z:1")]


def test_a_lone_founder_gives_way_to_the_larger_cluster_only() -> None:
    larger = (
        Heard(YOUNGER, True, 101, 1, b"a"),
        Heard(YOUNGER, True, 100, 2, b"a"),
        Heard(YOUNGER, True, 100, 1, b"n"),
    )
    for other in larger:
        search, own = founder()
        assert search.standing(0.0, "z:1", other, own, ready=True) == [JoinAt("z:1")]
    smaller = (
        Heard(YOUNGER, True, 99, 9, b"z"),
        Heard(YOUNGER, True, 100, 1, b"l"),
        Heard(YOUNGER, True, 999, 9, b"m"),  # our own lineage
        Heard(ELDER, False, elder=ELDER),
    )
    for other in smaller:
        search, own = founder()
        assert search.standing(0.0, "z:1", other, own, ready=True) == []
        assert search.state is FoundingState.FOUNDED


def test_members_of_a_cluster_give_way_to_one_that_is_ahead_but_not_to_their_own() -> None:
    search, _ = founder()
    own = Heard(ME, True, 100, 2, b"m")
    assert search.standing(0.0, "z:1", Heard(YOUNGER, True, 999, 9, b"m"), own, ready=True) == []
    assert search.standing(0.0, "z:1", Heard(YOUNGER, True, 99, 9, b"z"), own, ready=True) == []
    ahead = Heard(YOUNGER, True, 999, 9, b"z")
    assert search.standing(0.0, "z:1", ahead, own, ready=True) == [JoinAt("z:1")]


LINEAGES = st.sampled_from([b"a", b"b", b"c"])
CLAIMS = st.builds(Heard, st.just(YOUNGER), st.just(True), st.integers(0, 2), st.just(1), LINEAGES)


@given(CLAIMS, CLAIMS)
def test_of_two_lone_founders_exactly_one_gives_way(one: Heard, two: Heard) -> None:
    moves = [
        founder()[0].standing(0.0, "z:1", b, a, ready=True) for a, b in ((one, two), (two, one))
    ]
    assert sum(map(len, moves)) == (one.lineage != two.lineage)


# --- rooms ----------------------------------------------------------------------------------------


@dataclass
class Agent:
    """One agent of a room, and its present state."""

    name: bytes
    search: Founding
    ready_at: float
    founded: bool = False
    gone: bool = False
    joins: list[str] = field(default_factory=list)

    @property
    def member(self) -> bool:
        return self.founded or bool(self.joins)


@dataclass
class Room:
    """Agents that hear of and ask each other; answers are delayed and overtake each other."""

    agents: dict[str, Agent]
    chance: random.Random
    slowest: float
    now: float = 0.0
    on_the_way: list[tuple[float, str, str, Heard]] = field(default_factory=list)

    def run(self, until: float) -> None:
        while self.now < until:
            self.now += 0.1
            for agent in self.chance.sample(list(self.agents.values()), len(self.agents)):
                if agent.gone:
                    continue
                ready = self.now >= agent.ready_at
                self.perform(agent, agent.search.tick(self.now, int(agent.member), ready=ready))
            due = [x for x in self.on_the_way if x[0] <= self.now]
            self.on_the_way = [x for x in self.on_the_way if x[0] > self.now]
            self.chance.shuffle(due)
            for _, asker, address, heard in due:
                agent = self.agents[asker]
                ready = self.now >= agent.ready_at
                own = self.says(agent)
                self.perform(
                    agent, agent.search.standing(self.now, address, heard, own, ready=ready)
                )

    def says(self, agent: Agent) -> Heard:
        if agent.member:
            return Heard(agent.name, True, 0, 1, b"x")
        return Heard(agent.name, False, elder=agent.search.elder)

    def perform(self, agent: Agent, effects: list[FoundingEffect]) -> None:
        asker = next(a for a, other in self.agents.items() if other is agent)
        for effect in effects:
            match effect:
                case Ask(address):
                    due = self.now + self.chance.uniform(0.0, self.slowest)
                    if self.agents[address].gone:
                        agent.search.silent(address)
                        continue
                    self.agents[address].search.hint(self.now, asker)  # who asks is heard of
                    says = self.says(self.agents[address])
                    self.on_the_way.append((due, asker, address, says))
                case JoinAt(address):
                    agent.joins.append(address)
                    agent.search.joined()
                case Found():
                    agent.founded = True


@given(st.integers(1, 6), st.integers(0, 1 << 32))
def test_of_agents_that_hear_each_other_in_time_the_smallest_id_founds(
    count: int, seed: int
) -> None:
    chance = random.Random(seed)
    names = chance.sample(range(100), count)
    agents = {}
    for k, name in enumerate(names):
        begun = chance.uniform(0.0, 0.5)
        search = Founding(node(name), (), True, begun)
        agents[f"{k}:1"] = Agent(node(name), search, chance.uniform(1.2, 4.0))
        for other in chance.sample(range(count), count):
            search.hint(chance.uniform(0.0, 0.5), f"{other}:1")
    Room(agents, chance, 0.3).run(8.0)
    assert [a.name for a in agents.values() if a.founded] == [node(min(names))]
    assert all(len(a.joins) == (not a.founded) for a in agents.values())


def hub_room(seed: int, count: int) -> tuple[Room, Agent]:
    """Return a room of a hub that names nobody, and others that name only the hub."""
    chance = random.Random(seed)
    names = chance.sample(range(100), count + 1)
    agents = {}
    for k, name in enumerate(names):
        begun = chance.uniform(0.0, 0.3)
        search = Founding(node(name), ("0:1",) if k else (), False, begun)
        agents[f"{k}:1"] = Agent(node(name), search, chance.uniform(2.5, 4.0))
    return Room(agents, chance, 0.3), agents["0:1"]


@given(st.integers(1, 6), st.integers(0, 1 << 32))
def test_those_who_know_only_the_same_agent_do_not_found_side_by_side(
    count: int, seed: int
) -> None:
    room, _ = hub_room(seed, count)
    room.run(12.0)
    agents = room.agents.values()
    assert [a.name for a in agents if a.founded] == [min(a.name for a in agents)]
    assert all(len(a.joins) == (not a.founded) for a in agents)


@given(st.integers(1, 6), st.integers(0, 1 << 32))
def test_nobody_waits_for_an_elder_that_died_before_it_founded(count: int, seed: int) -> None:
    room, _ = hub_room(seed, count)
    dies = min(room.agents.values(), key=lambda a: a.name)
    room.run(2.0)
    dies.gone = True
    room.run(12.0)
    agents = [a for a in room.agents.values() if a is not dies]
    assert any(a.founded for a in agents)
    assert all(a.member for a in agents)


# --- hints from anybody ---------------------------------------------------------------------------


def test_hints_are_bounded_and_named_peers_are_not_among_them() -> None:
    search = searcher("named:1")
    for number in range(3 * limits.MAX_HINTS):
        search.hint(0.0, f"hint{number}:1")
    found = asked(search.tick(0.0, 0, ready=False))
    assert len(found) == 1 + limits.MAX_HINTS
    assert found[0] == "named:1"


def test_a_hint_that_was_silent_for_long_is_asked_as_often_as_others_once_it_answers() -> None:
    search = searcher()
    search.hint(0.0, "hint:1")
    now = 0.0
    for _ in range(limits.MAX_SILENCES - 1):
        while not asked(search.tick(now, 0, ready=False)):
            now += 0.1
        search.silent("hint:1")
    search.standing(now, "hint:1", Heard(ELDER, False, elder=ELDER), OWN, ready=False)
    assert asked(search.tick(now + ASK_AGAIN_SECONDS, 0, ready=False)) == ["hint:1"]


def test_a_hint_that_stays_silent_is_asked_ever_less_and_then_no_more() -> None:
    search = searcher("named:1")
    search.hint(0.0, "hint:1")
    asks: dict[str, list[int]] = {"named:1": [], "hint:1": []}
    for tenth in range(4000):
        for address in asked(search.tick(tenth / 10, 0, ready=False)):
            asks[address].append(tenth)
            search.silent(address)
    pauses = [b - a for a, b in pairwise(asks["hint:1"])]
    assert len(asks["hint:1"]) == limits.MAX_SILENCES
    assert pauses == sorted(pauses)
    assert len(asks["named:1"]) > 900
    search.hint(400.0, "hint:1")
    assert "hint:1" in asked(search.tick(400.0, 0, ready=False))


def test_who_speaks_after_a_silence_is_asked_at_once() -> None:
    search = searcher()
    search.hint(0.0, "hint:1")
    for tenth in range(20):
        for address in asked(search.tick(tenth / 10, 0, ready=False)):
            search.silent(address)
    assert asked(search.tick(2.0, 0, ready=False)) == []
    search.spoke(2.0, "hint:1")
    assert asked(search.tick(2.0, 0, ready=False)) == ["hint:1"]
    search.spoke(2.1, "hint:1")  # not silent: asked in its rhythm, or two would ask without end
    assert asked(search.tick(2.1, 0, ready=False)) == []
    search.spoke(2.1, "new:1")
    assert asked(search.tick(2.1, 0, ready=False)) == ["new:1"]


def test_an_answer_makes_up_for_silence() -> None:
    search = searcher()
    search.hint(0.0, "hint:1")
    for tenth in range(4000):
        for address in asked(search.tick(tenth / 10, 0, ready=False)):
            search.silent(address)
            standing(search, address, Heard(YOUNGER, False))
    assert "hint:1" in asked(search.tick(500.0, 0, ready=False))
