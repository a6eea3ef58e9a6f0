"""The life of an agent: what follows the end of a membership, and that nothing trained is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from protocols import limits
from protocols.cluster import standby
from protocols.cluster.ancestry import NOTHING, Ancestor, Past
from protocols.cluster.life import (
    DIVERGED_AGAIN_STEPS,
    KEEP_AGAIN_SECONDS,
    REJOIN_SECONDS,
    BeginJoin,
    DropNode,
    End,
    FoundCluster,
    GiveWay,
    KeepState,
    LeaveNode,
    Life,
    LifeEffect,
    LookAround,
    Note,
    Say,
)

OLD, NEW = (bytes([k]) * limits.LINEAGE_BYTES for k in (1, 2))
APART = Past(80, NEW, (Ancestor(OLD, 30),))  # lacks the last 20 updates of TRAINED
AHEAD = Past(80, NEW, (Ancestor(OLD, 50),))  # contains all updates of TRAINED
LEFT = [End("left")]


@dataclass
class State:
    """A trainer's state."""

    past: Past
    trained: bool = False


NEWCOMER, TRAINED = State(NOTHING), State(Past(50, OLD), trained=True)


class Agent:
    """An agent whose trainer has the state `own`."""

    def __init__(self, own: State | None = NEWCOMER, *, goes_on: bool = True) -> None:
        self.own = own
        self.life = Life(lambda: self.own, goes_on=goes_on)

    @property
    def state(self) -> str:
        """Where it stands."""
        return self.life.state.value

    def member(self) -> Agent:
        """Let it become a member by joining."""
        assert self.life.admitted(AHEAD)
        assert self.life.saved(0.0, "", "")
        self.life.entered(0.0)
        assert self.state == "member"
        return self

    def looks_around(self, now: float, pause_s: float = 0.0) -> None:
        """Check that it looks for a cluster again in a moment, and no sooner."""
        assert self.state == "rejoining"
        assert self.life.deadline == now + REJOIN_SECONDS
        assert self.life.tick(now) == []
        assert self.life.tick(now + REJOIN_SECONDS) == [LookAround(pause_s)]
        assert self.state == "searching"
        assert self.life.deadline is None


def joining(own: State | None = NEWCOMER) -> Agent:
    """Return an agent whose node is on its way in."""
    agent = Agent(own)
    agent.life.admitted(AHEAD)
    agent.life.saved(0.0, "", "")
    return agent


def yielding() -> Agent:
    """Return a member that gives way."""
    agent = Agent(TRAINED).member()
    assert agent.life.admitted(APART) == [Say(Note.AHEAD), GiveWay()]
    return agent


def hung() -> Agent:
    """Return an agent that was let go because its trainer did not answer."""
    agent = Agent(TRAINED).member()
    told = [Say(Note.HUNG), DropNode(), KeepState(False)]
    assert agent.life.departed(1.0, "stalled") == told
    return agent


# --- the ways in ----------------------------------------------------------------------------------


def test_it_founds_and_is_a_member() -> None:
    agent = Agent()
    assert agent.life.may_found
    nodes = [agent.life.has_node]
    assert agent.life.found() == [FoundCluster()]
    assert agent.state == "member"
    nodes.append(agent.life.has_node)
    assert nodes == [False, True]
    assert agent.life.may_found
    assert agent.life.found() == []


def test_it_founds_nothing_from_half_a_state() -> None:
    agent = Agent(None)
    assert agent.life.found() == []
    assert agent.state == "searching"


def test_it_joins_when_its_trainer_is_idle() -> None:
    agent = Agent()
    assert agent.life.admitted(AHEAD) == [KeepState(False)]
    assert agent.life.admitted(AHEAD) == []
    assert agent.life.saved(0.0, "", "") == [DropNode(), BeginJoin()]
    assert agent.state == "joining"
    agent.life.entered(0.0)
    agent.life.entered(0.0)
    assert agent.state == "member"
    assert agent.life.saved(0.0, "", "") == []


@pytest.mark.parametrize(("past", "keeps"), [(APART, True), (AHEAD, False)])
def test_what_the_cluster_has_not_is_kept_first(past: Past, keeps: bool) -> None:
    agent = Agent(TRAINED)
    assert agent.life.admitted(past) == [KeepState(keeps)]
    told = [Say(Note.KEPT, "x.safetensors", (50,))] if keeps else []
    then = [*told, DropNode(), BeginJoin()]
    assert agent.life.saved(0.0, "x.safetensors" if keeps else "", "") == then


def test_an_update_that_is_applied_after_the_question_is_kept_too() -> None:
    agent = Agent(TRAINED)
    assert agent.life.admitted(AHEAD) == [KeepState(False)]
    agent.own = State(Past(52, OLD), trained=True)  # AHEAD has the first 50, and may redo one
    assert agent.life.saved(0.0, "", "") == [KeepState(True)]
    assert agent.state == "saving"
    told = [Say(Note.KEPT, "x.safetensors", (52,)), DropNode(), BeginJoin()]
    assert agent.life.saved(0.0, "x.safetensors", "") == told


def test_half_a_state_is_not_kept() -> None:
    agent = Agent(None)
    assert agent.life.admitted(APART) == [KeepState(False)]
    assert agent.life.saved(0.0, "", "") == [DropNode(), BeginJoin()]


def test_what_cannot_be_kept_is_not_replaced() -> None:
    agent = Agent(TRAINED)
    for told in ([Say(Note.NOT_KEPT, "no space left")], []):  # said once
        agent.life.admitted(APART)
        assert agent.life.saved(3.0, "", "no space left") == [*told, DropNode()]
        agent.looks_around(3.0, KEEP_AGAIN_SECONDS)


def test_who_gives_way_keeps_what_it_has_then() -> None:
    agent = yielding()
    assert agent.life.admitted(APART) == []  # found again meanwhile
    assert agent.life.departed(1.0, "yielded") == [DropNode(), KeepState(True)]
    assert agent.state == "saving"


# --- who founds -----------------------------------------------------------------------------------


def test_who_may_found() -> None:
    assert Agent(TRAINED).life.may_found
    assert not Agent(TRAINED, goes_on=False).life.may_found  # it waits for the others
    assert not Agent(None).life.may_found
    agent = joining()
    assert not agent.life.may_found  # it was let in, so there is a cluster
    agent.own = TRAINED
    assert agent.life.may_found


def test_who_finds_nobody_ends() -> None:
    agent = Agent()
    assert agent.life.given_up() == [End("error", Say(Note.NOBODY), failed=True)]
    assert agent.life.over
    assert agent.life.given_up() == []


def test_who_ends_with_half_a_state_says_where_the_whole_one_lies() -> None:
    agent = Agent(TRAINED)
    agent.life.admitted(APART)
    agent.life.saved(0.0, "x.safetensors", "")
    agent.own = None
    agent.life.join_failed(0.0, "the link broke", 0.0)
    agent.looks_around(0.0)
    say = Say(Note.BROKEN_OFF, "x.safetensors")
    assert agent.life.given_up() == [End("error", say, failed=True)]


# --- the ends of a membership ---------------------------------------------------------------------


def test_a_join_that_failed_is_tried_again() -> None:
    agent = joining()
    told = [Say(Note.JOIN_FAILED, "too slow", pause_s=15.0), DropNode()]
    assert agent.life.join_failed(2.0, "too slow", 15.0) == told
    assert agent.life.join_failed(2.0, "too slow", 15.0) == []
    agent.looks_around(2.0, 15.0)


def test_who_is_not_let_in_because_of_its_links_stands_by_until_it_is() -> None:
    agent = joining()
    told = [Say(Note.STANDBY, "slow links"), DropNode()]
    assert agent.life.join_failed(2.0, "slow links", 6.0, stands_by=True) == told
    assert agent.life.standby == "slow links"
    agent.looks_around(2.0, 6.0)
    agent.life.admitted(AHEAD)
    agent.life.saved(10.0, "", "")
    assert agent.life.join_failed(10.0, "slower links", 6.0, stands_by=True) == [DropNode()]
    assert agent.life.standby == "slower links"
    agent.looks_around(10.0, 6.0)
    agent.member()
    assert agent.life.standby == ""


def test_a_member_that_stands_by_asks_again_after_a_while() -> None:
    agent = Agent(TRAINED).member()
    told = [Say(Note.STANDBY, "slow links"), DropNode()]
    assert agent.life.departed(2.0, "standby", "slow links") == told
    assert agent.life.standby == "slow links"
    agent.looks_around(2.0, standby.AGAIN_SECONDS)


def test_who_has_to_stand_by_again_soon_after_it_was_let_in_waits_longer_each_time() -> None:
    agent = Agent(TRAINED)
    now, pauses = 0.0, []
    for _ in range(8):
        agent.life.admitted(AHEAD)
        agent.life.saved(now, "", "")
        agent.life.entered(now)
        now += standby.STEADY_SECONDS - 1.0
        agent.life.departed(now, "standby", "slow links")
        now += REJOIN_SECONDS
        (look,) = agent.life.tick(now)
        assert isinstance(look, LookAround)
        pauses.append(look.pause_s)
    assert pauses == [6.0, 12.0, 24.0, 48.0, 96.0, 192.0, 192.0, 192.0]


def test_whoever_was_a_member_for_long_asks_again_as_soon_as_ever() -> None:
    agent = Agent(TRAINED).member()
    agent.life.departed(1.0, "standby", "slow links")
    agent.looks_around(1.0, standby.AGAIN_SECONDS)
    agent.member()
    agent.life.departed(2.0, "standby", "slow links")
    agent.looks_around(2.0, 2 * standby.AGAIN_SECONDS)
    agent.life.admitted(AHEAD)
    agent.life.saved(20.0, "", "")
    assert agent.life.join_failed(21.0, "slow links", standby.AGAIN_SECONDS, stands_by=True)
    agent.looks_around(21.0, 2 * standby.AGAIN_SECONDS)
    agent.life.admitted(AHEAD)
    agent.life.saved(40.0, "", "")
    agent.life.entered(40.0)
    agent.life.departed(40.0 + standby.STEADY_SECONDS, "standby", "slow links")
    agent.looks_around(40.0 + standby.STEADY_SECONDS, standby.AGAIN_SECONDS)


def test_who_stands_by_and_finds_the_others_gone_founds_with_what_it_has() -> None:
    agent = Agent(TRAINED).member()
    agent.life.departed(2.0, "standby", "slow links")
    agent.looks_around(2.0, standby.AGAIN_SECONDS)
    assert agent.life.may_found
    assert agent.life.found() == [FoundCluster()]
    assert agent.life.standby == ""


@pytest.mark.parametrize("agent", [joining, yielding])
@pytest.mark.parametrize(
    ("why", "then"), [("expelled", "rejoining"), ("stalled", "hung"), ("steps", "ended")]
)
def test_a_membership_may_end_at_any_moment(agent: type[Agent], why: str, then: str) -> None:
    somebody = agent()
    assert somebody.life.departed(0.0, why)
    assert somebody.state == then


def test_who_is_expelled_joins_again() -> None:
    agent = Agent(TRAINED).member()
    assert agent.life.departed(2.0, "expelled") == [Say(Note.EXPELLED), DropNode()]
    assert agent.life.departed(2.0, "expelled") == []
    agent.looks_around(2.0)


def test_who_hangs_joins_again_when_its_trainer_answers() -> None:
    agent = hung()
    assert agent.life.admitted(AHEAD) == []  # not before
    assert agent.life.saved(9.0, "", "") == [Say(Note.ANSWERS), DropNode()]
    agent.looks_around(9.0)


def test_a_state_that_differs_once_is_pulled_anew_and_one_that_differs_again_ends_it() -> None:
    agent = Agent(TRAINED).member()
    assert agent.life.departed(0.0, "diverged") == [DropNode()]
    agent.looks_around(0.0)
    agent.own = State(Past(50 + DIVERGED_AGAIN_STEPS, OLD), trained=True)
    assert agent.member().life.departed(0.0, "diverged") == [DropNode()]
    agent.looks_around(0.0)
    agent.own = None
    assert agent.member().life.departed(0.0, "diverged") == [
        End(
            "error",
            Say(Note.DIVERGED_AGAIN, iterations=(50 + DIVERGED_AGAIN_STEPS, 0)),
            failed=True,
        )
    ]


@pytest.mark.parametrize(
    ("why", "end"),
    [
        ("steps", End("steps")),
        ("left", End("left")),
        ("removed", End("left", message="m", failed=True)),
        ("error", End("error", message="m", failed=True)),
    ],
)
def test_some_ends_of_a_membership_end_the_agent(why: str, end: End) -> None:
    agent = Agent().member()
    assert agent.life.departed(0.0, why, "m") == [end]
    assert agent.life.over
    assert not agent.life.leaving


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [Agent, hung])
def test_who_has_no_node_leaves_at_once(agent: type[Agent]) -> None:
    life = agent().life
    assert life.leave() == LEFT
    assert life.leaving
    assert life.over
    assert life.leave() == []


def test_who_waits_for_a_file_or_for_the_next_try_leaves_at_once() -> None:
    saving, again = Agent(TRAINED), joining()
    saving.life.admitted(APART)
    again.life.join_failed(0.0, "", 0.0)
    assert saving.life.leave() == again.life.leave() == LEFT
    assert saving.life.saved(0.0, "", "") == again.life.tick(10.0) == []


@pytest.mark.parametrize("agent", [joining, yielding])
def test_a_node_leaves_gracefully(agent: type[Agent]) -> None:
    life = agent().life
    assert life.leave() == [LeaveNode(False)]
    assert str(life.state) == "leaving"
    assert life.leave() == []
    assert life.admitted(AHEAD) == []
    assert life.departed(0.0, "left") == LEFT


@pytest.mark.parametrize("why", ["expelled", "stalled", "yielded"])
def test_who_leaves_is_gone_for_whatever_reason_its_node_goes(why: str) -> None:
    agent = Agent(TRAINED).member()
    agent.life.leave()
    assert agent.life.departed(0.0, why) == LEFT


def test_who_leaves_with_a_state_that_differs_is_told() -> None:
    agent = Agent(TRAINED).member()
    agent.life.leave()
    end = End("error", Say(Note.DIVERGED_LEAVER), failed=True)
    assert agent.life.departed(0.0, "diverged") == [end]


def test_a_join_that_fails_is_the_end_of_who_leaves() -> None:
    agent = joining()
    agent.life.leave()
    assert agent.life.join_failed(0.0, "the link broke", 0.0) == LEFT


def test_who_has_lost_its_trainer_hands_its_work_back_once() -> None:
    agent, leaver = Agent().member(), Agent().member()
    assert agent.life.leave(trainer_gone=True) == [LeaveNode(True)]
    assert agent.life.leave(trainer_gone=True) == []
    leaver.life.leave()
    assert leaver.life.leave(trainer_gone=True) == [LeaveNode(True)]
    assert agent.life.trainer_gone
    assert leaver.life.trainer_gone


def test_nothing_begins_after_the_end() -> None:
    agent = Agent(TRAINED)
    agent.life.ended()
    agent.life.ended()
    happens: list[list[LifeEffect]] = [
        agent.life.found(),
        agent.life.admitted(AHEAD),
        agent.life.saved(0.0, "", ""),
        agent.life.join_failed(0.0, "", 0.0),
        agent.life.departed(0.0, "left"),
        agent.life.given_up(),
        agent.life.leave(),
        agent.life.tick(0.0),
    ]
    assert not any(happens)
    agent.life.entered(0.0)
    assert agent.life.over
