"""Planted bugs of clusters in which no member keeps all of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from protocols.cluster.stripes import Stripe, owned_by, renumbered
from protocols.effects import Publish
from protocols.member import cycle
from protocols.member.learning import Learning
from protocols.member.trainer_debt import TrainerDebt
from protocols.rounds.control_word import EMPTY
from protocols.rounds.divergence import is_final
from protocols.rounds.round import KeepSum, Round
from protocols.scheduler import fence
from tests.simulation import host
from tests.simulation.host import Host

if TYPE_CHECKING:
    from protocols.rounds.control_word import ControlWord
    from protocols.wire import messages as m


@contextmanager
def word_without_the_sums() -> Iterator[None]:
    """A member gives its part of the control word before it has the sums that it is to keep."""
    with patch.object(Round, "_count_sums", lambda _round: 0):
        yield


@contextmanager
def publish_before_the_verdict() -> Iterator[None]:
    """An owner has results made, and sends them, once it has all sums that it is to keep, although
    the round may still have to be done again."""
    real = Host.drive

    def publish(this: Round) -> list[Any]:
        return [x for chunk in this.owned if not this._reduced[chunk] for x in this._settle(chunk)]

    def drive(this: Host, wanted: list[Any]) -> None:
        real(this, wanted)
        reduce = this.reduce
        if reduce is None or not any(isinstance(effect, KeepSum) for effect in wanted):
            return
        spec = reduce.round.spec
        if reduce.round._awaited or spec.iteration != this.iteration or this.node is None:
            return
        policy = this.node.context.policy
        owned = owned_by(policy.stripes, policy.view.nodes.index(this.me.node)) if policy else ()
        this.slots._make(Publish(spec.iteration, spec.attempt, EMPTY, 1, owned))
        this.publish()

    with patch.object(Host, "drive", drive), patch.object(Round, "publish", publish):
        yield


@contextmanager
def promote_who_has_not_learned() -> Iterator[None]:
    """A fence counts members that are still to learn a stripe as its holders."""
    real = fence._held

    def held(base: Any, reports: Any, nodes: Any) -> tuple[Stripe, ...]:
        numbers = {node: k for k, node in enumerate(nodes)}
        found = []
        for stripe, before in zip(real(base, reports, nodes), base.stripes, strict=True):
            learners = (numbers.get(base.view.nodes[k]) for k in before.learners)
            new = bytes(k for k in learners if k is not None and k not in stripe.holders)
            found.append(replace(stripe, holders=stripe.holders + new))
        return tuple(found)

    with patch.object(fence, "_held", held):
        yield


@contextmanager
def wait_for_parts_that_nobody_needs() -> Iterator[None]:
    """After the last update members wait without limit for parts that are lost."""

    real = fence.FenceLeader._gives_up

    def gives_up(leader: Any, now: float, base: Any, here: Any) -> bool:
        return bool(leader._parts.begin_anew and real(leader, now, base, here))

    with patch.object(fence.FenceLeader, "_gives_up", gives_up):
        yield


@contextmanager
def lend_what_was_changed() -> Iterator[None]:
    """A holder lends slots without holding its update until it has copied them."""
    real = Learning.asked

    def asked(learning: Learning, learner: bytes, message: m.StripesWanted) -> None:
        for stripe in message.stripes:
            learning._owed[stripe, learner] = None
        late = type(message)(learning._context.iteration, message.stripes)
        real(learning, learner, late)

    with (
        patch.object(Learning, "is_busy", property(lambda learning: bool(learning._wanted))),
        patch.object(Learning, "asked", asked),
    ):
        yield


@contextmanager
def redo_what_was_decided() -> Iterator[None]:
    """A fence has a round done again although its control word is known, unless somebody has all
    results."""
    real = fence.decide

    def decide(*args: Any, **rest: Any) -> Any:
        with patch.object(fence, "_held", _forgetting(fence._held)):
            return real(*args, **rest)

    with patch.object(fence, "decide", decide):
        yield


class _Shy(tuple[Stripe, ...]):
    """Stripes that count as none where it is asked whether there are any."""

    def __bool__(self) -> bool:
        return False


def _forgetting(held: Callable[..., tuple[Stripe, ...]]) -> Callable[..., tuple[Stripe, ...]]:
    return lambda *args: _Shy(held(*args))


@contextmanager
def incomplete_side_goes_on() -> Iterator[None]:
    """A side that lacks stripes goes on, and the first of its members counts as their holder."""

    def held(base: Any, _reports: Any, nodes: Any) -> tuple[Stripe, ...]:
        found = renumbered(base.stripes, base.view.nodes, nodes)
        return tuple(s if s.holders else replace(s, holders=b"\0") for s in found)

    with patch.object(fence, "_held", held):
        yield


@contextmanager
def copies_miss_sums() -> Iterator[None]:
    """The sums are not passed on to learners."""

    def keepers(stripe: Stripe) -> bytes:
        return stripe.holders[1:]

    with patch.object(Stripe, "keepers", property(keepers)):
        yield


@contextmanager
def redo_what_was_published() -> Iterator[None]:
    """A fence has sums made again in which a member took no part because its trainer was late."""

    def is_shy(word: ControlWord, micro_batches: int) -> bool:
        return is_final(word, micro_batches) and not any(word.late)

    with patch.object(host, "is_final", is_shy):
        yield


@contextmanager
def name_an_update_without_sums_like_the_whole_one() -> Iterator[None]:
    """An update of which sums are lost has the same commit id as the one with these sums, which
    somebody may have."""
    with patch.object(fence, "_lacks_sums", lambda *_: False):
        yield


@contextmanager
def go_on_with_slots_that_nobody_has() -> Iterator[None]:
    """Who takes over lost stripes does not begin them anew."""
    with patch.object(cycle, "begun_anew", lambda *_: ()):
        yield


@contextmanager
def carry_joins_over_a_loss() -> Iterator[None]:
    """A joiner that copies beside the training goes on although stripes begin anew."""
    real = fence._carried

    def carried(base: Any, stay: Any, _stripes: Any) -> Any:
        return real(base, stay, ())

    with patch.object(fence, "_carried", carried):
        yield


@contextmanager
def lend_slots_of_an_ended_trainer() -> Iterator[None]:
    """A holder whose trainer has ended lends slots, which lack the updates since then."""
    with patch.object(TrainerDebt, "has_old_slots", TrainerDebt.is_stale):
        yield


DIVIDED_MUTATIONS: tuple[Callable[[], AbstractContextManager[None]], ...] = (
    word_without_the_sums,
    publish_before_the_verdict,
    promote_who_has_not_learned,
    lend_what_was_changed,
    redo_what_was_decided,
    incomplete_side_goes_on,
    copies_miss_sums,
    redo_what_was_published,
    name_an_update_without_sums_like_the_whole_one,
    go_on_with_slots_that_nobody_has,
    carry_joins_over_a_loss,
    wait_for_parts_that_nobody_needs,
    lend_slots_of_an_ended_trainer,
)
