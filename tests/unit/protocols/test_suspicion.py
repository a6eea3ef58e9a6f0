"""Which members have accused each other, and which are let go because of that."""

from __future__ import annotations

import pytest

from protocols import events, limits
from protocols.cluster.view import edge
from protocols.events import Tick
from protocols.member.cycle_table import CycleState
from protocols.network.link_end import LinkEnd
from protocols.recovery.suspicion import Suspicions
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, line, node_of, policy_of
from tests.unit.protocols.records import node, view_of
from tests.unit.protocols.test_recovery import effects_of, said, sent

VIEW = view_of(5)
ONE, TWO, THREE, FOUR, FIVE = (node(k) for k in range(1, 6))


def parted(*pairs: tuple[bytes, bytes]) -> Suspicions:
    """Return the suspicions after these accusations."""
    known = Suspicions()
    for accuser, accused in pairs:
        known.accuse(VIEW, accuser, accused, "said nonsense")
    return known


def test_one_accusation_parts_a_pair_and_no_more() -> None:
    known = parted((ONE, TWO))
    assert known.pairs == (edge(ONE, TWO),)
    assert known.let_go == ()
    assert not known.accuse(VIEW, TWO, ONE, "the same pair")


def test_whom_two_members_part_from_is_let_go() -> None:
    assert parted((ONE, TWO), (THREE, TWO)).let_go == (TWO,)


def test_who_accuses_everybody_lets_itself_go() -> None:
    assert parted((ONE, TWO), (ONE, THREE), (ONE, FOUR)).let_go == (ONE,)


def test_strangers_and_oneself_are_not_accused() -> None:
    known = parted((ONE, ONE), (node(9), ONE), (ONE, node(9)))
    assert known.pairs == ()


def test_who_was_let_go_stays_out_for_a_while() -> None:
    known = parted((ONE, TWO), (THREE, TWO), (FOUR, FIVE))
    known.switched(10.0, VIEW)
    assert known.let_go == (TWO,)
    assert not known.bars(10.0, TWO)
    smaller = view_of(5, [])
    smaller = type(smaller)(
        smaller.lineage, 2, tuple(x for x in smaller.members if x.node != TWO), (), (), ()
    )
    known.switched(20.0, smaller)
    assert known.pairs == (edge(FOUR, FIVE),)
    assert known.bars(20.0 + limits.LET_GO_SECONDS - 1, TWO)
    assert not known.bars(20.0 + limits.LET_GO_SECONDS, TWO)
    assert not known.bars(20.0, THREE)


# --- in a cluster ---------------------------------------------------------------------------------


def test_a_faulty_neighbour_is_told_of_to_everybody() -> None:
    world, hosts = cluster(0)
    wanted = effects_of(world, hosts[2], events.Faulty(hosts[1].me.node, "nonsense"))
    assert m.Accused(hosts[1].me.node, "nonsense") in sent(wanted)
    assert node_of(hosts[2]).recovery.suspicions.pairs


def test_accusations_before_there_is_a_view_and_of_joiners_are_dropped() -> None:
    world, hosts = cluster(0)
    joiner = world.join(7, hosts[0])
    node_of(joiner).recovery.accused(hosts[0].me.node, hosts[1].me.node, "nonsense")
    assert not node_of(joiner).recovery.suspicions.pairs


def test_whom_two_accuse_is_let_go_and_not_let_in_again_at_once() -> None:
    world, hosts = cluster(0, 4)
    for accuser in (hosts[0], hosts[1]):
        accuser.handle(events.Faulty(hosts[2].me.node, "nonsense"))
        world.cut(accuser, hosts[2])
    rest = (hosts[0], hosts[1], hosts[3])
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in rest), 5.0)
    goal = max(h.iteration for h in rest) + 9
    world.run(lambda: all(h.iteration >= goal for h in rest), 5.0)
    request = m.JoinRequest(hosts[2].me, ())
    answer, *_ = sent(said(world, hosts[1], hosts[0], request))
    assert isinstance(answer, m.JoinAborted)
    assert "cannot be" in answer.reason


def test_a_scheduler_whom_two_accuse_is_replaced_and_ordered_by_no_more() -> None:
    world, hosts = cluster(0, 4)
    for accuser in (hosts[1], hosts[2]):
        accuser.handle(events.Faulty(hosts[0].me.node, "nonsense"))
        world.cut(accuser, hosts[0])
    rest = hosts[1:]
    world.run(lambda: all(node_of(h).recovery.suspicions.let_go for h in rest), 5.0)
    assert said(world, hosts[0], hosts[3], m.Fence(1, 9)) == []
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in rest), 5.0)
    goal = max(h.iteration for h in rest) + 9
    world.run(lambda: all(h.iteration >= goal for h in rest), 5.0)


def test_who_is_let_go_and_never_told_so_leaves() -> None:
    world, hosts = cluster(0)
    for accuser in hosts[1:]:
        said(world, accuser, hosts[0], m.Accused(hosts[0].me.node, "nonsense"))
    node = node_of(hosts[0])
    node.handle(world.now, events.Tick())
    node.handle(world.now + limits.LEAVE_SECONDS / 2, events.Tick())
    assert not node.over
    node.handle(world.now + limits.LEAVE_SECONDS, events.Tick())
    assert node.over


def test_a_pair_is_not_linked_again_unless_that_divides_the_rest() -> None:
    _, hosts = cluster(0, 4)
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    negotiator.part(edge(hosts[1].me.node, hosts[2].me.node))
    assert edge(hosts[1].me.node, hosts[2].me.node) in negotiator._next_view().apart
    _world, hosts = line(0, 3)
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    negotiator.part(edge(hosts[1].me.node, hosts[2].me.node))
    assert not negotiator._next_view().apart


def test_what_is_relayed_is_nobodys_fault_here() -> None:
    world, hosts = cluster(0)
    wrong = m.ManifestRequest(1, 3)
    assert said(world, hosts[1], hosts[2], wrong, via=hosts[0]) == []


# --- patience -------------------------------------------------------------------------------------


def test_a_scheduler_that_never_decides_is_blamed() -> None:
    world, hosts = cluster(0, 4)
    for host in hosts[1:]:  # as if the scheduler had frozen them and gone back to its work
        world.say(hosts[0], host, m.Fence(1, 9))
    rest = hosts[1:]
    world.lose = lambda sender, _receiver, message: (
        sender is hosts[0] and isinstance(message, m.FENCE_MESSAGES)
    )
    assert all(node_of(h).context.freeze.holds for h in rest)
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in rest), 30.0)
    assert all(hosts[0].me.node not in policy_of(h).view.nodes for h in rest)
    goal = max(h.iteration for h in rest) + 9
    world.run(lambda: all(h.iteration >= goal for h in rest), 5.0)


def test_nobody_is_blamed_for_a_fence_that_no_quorum_can_decide() -> None:
    world, hosts = cluster(0)
    recovery = node_of(hosts[1]).recovery
    said(world, hosts[0], hosts[1], m.Fence(1, 9))
    effects_of(world, hosts[1], events.LinkDown(hosts[2].me.node, LinkEnd.SILENT))
    effects_of(world, hosts[1], events.LinkDown(hosts[0].me.node, LinkEnd.SILENT))
    world.now += limits.FENCE_PATIENCE_SECONDS + 1
    effects_of(world, hosts[1], events.Tick())
    assert not recovery.suspicions.pairs


def test_the_root_is_blamed_for_a_policy_that_nobody_has() -> None:
    world, hosts = cluster(0)
    host = next(h for h in hosts if policy_of(h).tree.root != h.me.node)
    cycle = node_of(host).cycle
    cycle.state = CycleState.FETCHING
    cycle._named = (1, 900)
    effects_of(world, host, events.Tick())
    assert not node_of(host).recovery.suspicions.pairs
    world.now += limits.FETCH_PATIENCE_SECONDS + 0.1
    wanted = effects_of(world, host, events.Tick())
    root = policy_of(host).tree.root
    assert m.Accused(root, "it has named a policy that nobody has") in sent(wanted)


@pytest.mark.parametrize("who", ["itself", "nobody"])
def test_nobody_blames_itself(who: str) -> None:
    world, hosts = cluster(0)
    node = node_of(hosts[0])
    node.neighbours.blame(world.now, hosts[0].me.node, who)
    node.handle(world.now, Tick())
    assert not node.recovery.suspicions.pairs


def test_the_first_reason_against_a_member_is_kept() -> None:
    known = parted((ONE, TWO))
    known.accuse(VIEW, THREE, TWO, "later")
    assert known.reason(TWO) == known.reason(ONE) == "said nonsense"
    assert known.reason(THREE) == "later"
    assert known.reason(FOUR) == ""


def test_only_so_many_are_remembered_as_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EXPELLED", 1)
    known = parted((ONE, TWO), (THREE, TWO), (ONE, FOUR), (THREE, FOUR))
    gone = known.let_go
    assert gone == tuple(sorted((ONE, TWO, THREE, FOUR)))
    rest = tuple(x for x in VIEW.members if x.node == FIVE)
    known.switched(0.0, type(VIEW)(VIEW.lineage, 2, rest, (), (), ()))
    assert [n for n in gone if known.bars(1.0, n)] == [gone[-1]]
