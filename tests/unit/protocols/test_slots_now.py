"""When the trainer has to step its slots before it says that an update is applied: while somebody
learns slots, since those that are lent must have the update."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.cluster.stripes import Stripe
from protocols.member.trainer_debt import TrainerDebt
from protocols.rounds.control_word import EMPTY
from tests.unit.protocols.clusters import cluster, enter, node_of
from tests.unit.protocols.divided_clusters import divided, is_level, policy_of

if TYPE_CHECKING:
    import pytest

    from protocols.effects import Apply


def test_somebody_learns_under_this_policy_or_the_next_one() -> None:
    node = node_of(cluster(0)[1][0])
    learning, policy = node.cycle.learning, node.context.policy
    assert policy is not None
    assert not learning.goes_on(policy, EMPTY)
    learns = replace(policy, stripes=(Stripe(b"\0", b"\1"),), version=policy.version + 1)
    named = replace(EMPTY, term=learns.key[0], policy=learns.key[1])
    assert learning.goes_on(policy, named), "that policy is not here yet"
    node.context.policies[learns.key] = replace(learns, stripes=(Stripe(b"\0"),))
    assert not learning.goes_on(policy, named)
    node.context.policies[learns.key] = learns
    assert learning.goes_on(policy, named)
    assert learning.goes_on(learns, EMPTY)


def test_slots_wait_for_the_next_round_except_while_somebody_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[Apply] = []
    apply = TrainerDebt.apply

    def recorded(debt: TrainerDebt, update: Apply) -> None:
        applied.append(update)
        apply(debt, update)

    monkeypatch.setattr(TrainerDebt, "apply", recorded)
    world, hosts = divided(16, 2, 1, steps=400)
    applied.clear()
    world.run(lambda: len(applied) > 4)
    assert not any(update.slots_now for update in applied)
    hosts.append(world.join(2, hosts[0]))
    enter(world, hosts[-1])
    world.run(lambda: any(s.learners for s in policy_of(hosts[0]).stripes))
    assert applied[-1].slots_now, "the last update before somebody learns"
    world.run(lambda: is_level(world, 1))
    applied.clear()
    world.run(lambda: len(applied) > 8)
    assert not applied[-1].slots_now
