"""Wishes, tokens and expulsions: how their machines react to strange and late messages."""

from __future__ import annotations

from functools import partial

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.view import View, edge
from protocols.effects import UseToken
from protocols.events import ExpelWanted, LinkWanted, TokenWanted
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of
from tests.unit.protocols.records import member, node, star_policy, view_of
from tests.unit.protocols.test_recovery import effects_of, said, sent

ONE, TWO, THREE, STRANGER = node(1), node(2), node(3), node(9)


def negotiator(size: int = 3) -> Negotiator:
    return Negotiator(ONE, 1, star_policy(size), 2 * size, StandardPlanner())


# --- the scheduler's part -------------------------------------------------------------------------


def test_a_link_that_is_there_is_no_news() -> None:
    assert negotiator().link_wish(TWO, THREE, wanted=True) == []


@pytest.mark.parametrize(("sender", "peer"), [(STRANGER, TWO), (TWO, STRANGER), (TWO, TWO)])
def test_only_members_are_linked(sender: bytes, peer: bytes) -> None:
    ((to, answer),) = negotiator().link_wish(sender, peer, wanted=True)
    assert to == sender
    assert isinstance(answer, m.Refused)


def test_a_wish_that_is_said_again_changes_nothing() -> None:
    scheduler = negotiator()
    for _ in range(3):
        assert scheduler.link_wish(TWO, THREE, wanted=False) == []
    scheduler.tick(0.0)
    assert scheduler.switch is not None
    assert scheduler.switch.policy.view.apart == (edge(TWO, THREE),)


def test_a_wish_that_is_refused_leaves_the_one_before() -> None:
    scheduler = negotiator()
    assert scheduler.link_wish(TWO, THREE, wanted=False) == []
    ((_, answer),) = scheduler.link_wish(ONE, TWO, wanted=False)
    assert isinstance(answer, m.Refused)
    scheduler.tick(0.0)
    assert scheduler.switch is not None
    assert scheduler.switch.policy.view.apart == (edge(TWO, THREE),)


def test_strangers_expel_nobody() -> None:
    scheduler = negotiator()
    assert scheduler.expel(STRANGER, TWO, known=True) == []
    ((_, answer),) = scheduler.expel(TWO, STRANGER, known=False)
    assert isinstance(answer, m.Refused)
    for _ in range(2):
        assert scheduler.expel(TWO, THREE, known=True) == []
    scheduler.tick(0.0)
    assert scheduler.switch is not None
    assert scheduler.switch.policy.view.expelled == (THREE,)


def test_an_expulsion_that_parts_the_rest_has_a_link_opened_first() -> None:
    policy = star_policy(3)
    view = view_of(3, [(1, 2), (1, 3)])
    scheduler = Negotiator(
        ONE,
        1,
        type(policy)(1, 1, view, policy.parents, policy.shares, (), ""),
        6,
        StandardPlanner(),
    )
    scheduler.link_wish(TWO, THREE, wanted=False)
    scheduler.expel(TWO, ONE, known=True)
    mail = [(to, x) for to, x in scheduler.tick(0.0) if isinstance(x, m.OpenLinks)]
    assert mail == [(TWO, m.OpenLinks(0, (member(3),)))], "though they are to be kept apart"


# --- views ----------------------------------------------------------------------------------------


def test_a_view_has_no_link_between_those_apart_and_no_expelled_member() -> None:
    view = view_of(2)
    with pytest.raises(ValueError, match="kept apart"):
        View(view.lineage, 1, view.members, view.edges, view.edges, ())
    with pytest.raises(ValueError, match="expelled"):
        View(view.lineage, 1, view.members, view.edges, (), (TWO,))


# --- the node's part ------------------------------------------------------------------------------


def test_only_the_scheduler_refuses() -> None:
    world, hosts = cluster(0)
    wish = LinkWanted(hosts[2].me.node, False)
    effects_of(world, hosts[1], wish)
    refusal = m.Refused(hosts[2].me.node, False, "no")
    said(world, hosts[2], hosts[1], refusal)
    assert node_of(hosts[1]).wishes.answer(wish) is None
    said(world, hosts[0], hosts[1], refusal)
    assert node_of(hosts[1]).wishes.answer(wish) == "no"


def test_a_wish_of_a_joiner_waits_until_it_is_a_member() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    wish = LinkWanted(hosts[1].me.node, False)
    assert sent(effects_of(world, joiner, wish)) == []
    wishes = node_of(joiner).wishes
    assert wishes.deadline is None
    world.run(lambda: wishes.answer(wish) is not None)
    assert wishes.answer(wish) == ""


def test_old_answers_are_forgotten() -> None:
    world, hosts = cluster(0)
    wishes = node_of(hosts[1]).wishes

    def answered(wish: ExpelWanted) -> bool:
        return wishes.answer(wish) is not None

    strangers = [bytes([k]) * 32 for k in range(1, limits.MAX_OPEN_JOINS + 3)]
    for wish in map(ExpelWanted, strangers):
        hosts[1].handle(wish)
        world.run(partial(answered, wish))
    assert wishes.answer(ExpelWanted(strangers[0])) is None
    assert wishes.answer(ExpelWanted(strangers[-1])) is not None


def test_a_wish_about_oneself_is_refused() -> None:
    world, hosts = cluster(0)
    wish = LinkWanted(hosts[1].me.node, True)
    hosts[1].handle(wish)
    world.run(lambda: node_of(hosts[1]).wishes.answer(wish) is not None)
    assert "no such member" in str(node_of(hosts[1]).wishes.answer(wish))


def test_a_token_before_its_policy_is_kept_until_then() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    token = m.NewToken(b"t" * 16, policy.term, policy.version + 1, 1, ())
    assert said(world, hosts[0], hosts[1], token) == []
    hosts[2].handle(LinkWanted(hosts[0].me.node, False))  # leads to a new policy
    world.run(lambda: hosts[1].token == b"t" * 16)
    assert said(world, hosts[0], hosts[1], token) == [], "known"
    go_on(world)


def test_a_token_that_is_made_beside_one_of_a_newer_policy_is_the_newer_token() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    theirs = m.NewToken(b"t" * 16, policy.term, policy.version + 1, 1, ())
    said(world, hosts[0], hosts[1], theirs)
    hosts[1].handle(TokenWanted(b"o" * 16))
    hosts[2].handle(LinkWanted(hosts[0].me.node, False))  # leads to a new policy
    world.run(lambda: all(host.token == b"o" * 16 for host in hosts))


def test_tokens_of_strangers_and_before_there_is_a_cluster() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    wanted = effects_of(world, joiner, TokenWanted(b"t" * 16))
    assert not any(isinstance(e, UseToken) for e in wanted)
    world.run(lambda: joiner.me.node in hosts[0].links)
    token = m.NewToken(b"s" * 16, 1, 1, 1, ())
    assert said(world, joiner, hosts[0], token) == [], "no member"


def test_a_token_that_is_passed_on_in_anothers_name_is_no_token() -> None:
    world, hosts = cluster(0)
    token = m.NewToken(b"t" * 16, *policy_of(hosts[1]).key, 1, ())
    assert said(world, hosts[0], hosts[1], token, via=hosts[2]) == []
    assert UseToken(b"t" * 16) in said(world, hosts[0], hosts[1], token)


def test_a_token_of_a_term_to_come_blocks_no_other() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    ahead = m.NewToken(b"s" * 16, policy.term + 5, 1, 1, ())
    assert said(world, hosts[2], hosts[1], ahead) == []
    token = m.NewToken(b"t" * 16, *policy.key, 1, ())
    assert UseToken(b"t" * 16) in said(world, hosts[0], hosts[1], token)


def test_a_token_is_forgotten_if_whom_it_must_not_reach_is_among_us() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    token = m.NewToken(b"t" * 16, *policy.key, 1, (hosts[2].me.node,))
    assert said(world, hosts[0], hosts[1], token) == []
    again = m.NewToken(b"t" * 16, *policy.key, 1, ())
    assert UseToken(b"t" * 16) in said(world, hosts[0], hosts[1], again)


def test_a_refused_link_refuses_no_expulsion() -> None:
    world, hosts = cluster(0)
    wish = ExpelWanted(hosts[2].me.node)
    effects_of(world, hosts[1], wish)
    said(world, hosts[0], hosts[1], m.Refused(hosts[2].me.node, False, "no"))
    assert node_of(hosts[1]).wishes.answer(wish) is None
    said(world, hosts[0], hosts[1], m.Refused(hosts[2].me.node, True, "no"))
    assert node_of(hosts[1]).wishes.answer(wish) == "no"
