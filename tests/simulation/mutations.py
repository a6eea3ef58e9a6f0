"""Planted bugs: each breaks one rule of the protocol, and the simulator has to find it.

A rule whose absence nobody notices is either not needed or not tested. A mutation patches the real
classes from outside while its context lasts, and changes no more than its rule needs. `MUTATIONS`
names them; `scripts/storm --mutations` says how many seeds each takes to be found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from protocols import limits
from protocols.cluster.ancestry import Past
from protocols.cluster.election import Election
from protocols.cluster.founding import Founding, Heard
from protocols.effects import Send
from protocols.member.context import Context
from protocols.member.copies import Copies
from protocols.member.copying import Copying
from protocols.member.cycle import Cycle
from protocols.member.ended_trainer import EndedTrainer
from protocols.member.followers import Followers
from protocols.member.holds import Holds
from protocols.member.joining import Joining
from protocols.member.pull import Pull
from protocols.member.round_specs import Lanes
from protocols.member.trainer_debt import TrainerDebt
from protocols.network.progress import Progress
from protocols.recovery.fenced import Fenced
from protocols.recovery.recovery import Recovery
from protocols.recovery.standstill import Standstill
from protocols.rounds import control_word
from protocols.scheduler import fence
from protocols.scheduler.asked_links import AskedLinks
from protocols.scheduler.fence import FenceLeader
from protocols.scheduler.negotiator import Negotiator
from protocols.wire.messages import PullBegins
from tests.simulation.divided_mutations import DIVIDED_MUTATIONS
from tests.simulation.host import Host
from tests.simulation.rounds_mutations import ROUNDS_MUTATIONS
from tests.simulation.seeker import Seeker

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import Member
    from protocols.effects import Effect
    from protocols.events import Applied, ChunksReady, Contributed, RoundReduced
    from protocols.member.pull import PullEffect
    from protocols.wire import messages as m


@contextmanager
def no_freeze() -> Iterator[None]:
    """A member goes on with its round after it has reported what it has of it (protocol.md, I6)."""
    freeze, frozen = Host.freeze, Fenced.frozen

    def report(fenced: Fenced, have: bytes) -> None:
        frozen(fenced, have)
        fenced._context.freeze.decided()

    def melt(host: Host) -> bytes:
        have = freeze(host)
        assert host.reduce is not None
        host.reduce.frozen = False
        return have

    with patch.object(Fenced, "frozen", report), patch.object(Host, "freeze", melt):
        yield


@contextmanager
def two_votes() -> Iterator[None]:
    """A voter forgets that it has voted in this term (protocol.md, 7.1)."""
    real = Election.vote_wanted

    def vote(election: Election, sender: bytes, message: m.VoteRequest, *a: Any, **k: Any) -> Any:
        election.voted_term = min(election.voted_term, message.next_term - 1)
        return real(election, sender, message, *a, **k)

    with patch.object(Election, "vote_wanted", vote):
        yield


@contextmanager
def keep_sums_that_lack_work() -> Iterator[None]:
    """A fence keeps chunks of any attempt, and of rounds that lack work that was handed back.

    See protocol.md, I8."""

    def has(report: m.FenceReport, first: int, _newest: int, everything: bytes) -> bytes:
        return everything if report.iteration > first else report.have

    def freeze(host: Host) -> bytes:
        assert host.reduce is not None
        host.reduce.frozen = True
        return host.reduce.round.have

    with patch.object(fence, "_has", has), patch.object(Host, "freeze", freeze):
        yield


@contextmanager
def forget_reassigned() -> Iterator[None]:
    """A member claims to have done the work that a fence has dealt to it, but has not done it.

    See protocol.md, I1."""
    give, offer = Cycle._give, Cycle._offer

    def forget(cycle: Cycle, micro_batches: tuple[int, ...]) -> None:
        restart, policy = cycle._restart, cycle._context.policy
        again = restart is not None and policy is not None and restart.policy.key == policy.key
        if again and cycle._answer is not None:
            cycle._given = tuple(sorted({*cycle._given, *micro_batches}))
        else:
            give(cycle, micro_batches)

    def claim(cycle: Cycle) -> None:
        if cycle._answer is not None and cycle._owed == 0 and cycle._restart is not None:
            done = tuple(sorted({*cycle._given, *cycle._answer.micro_batches}))
            cycle._answer = replace(cycle._answer, micro_batches=done)
        offer(cycle)

    with patch.object(Cycle, "_give", forget), patch.object(Cycle, "_offer", claim):
        yield


@contextmanager
def accept_older_lineage() -> Iterator[None]:
    """A device gives way to a cluster that is behind it (protocol.md, I13)."""
    with patch.object(Heard, "rank", property(lambda heard: (-heard.samples, -heard.members))):
        yield


@contextmanager
def apply_without_all() -> Iterator[None]:
    """An update is applied although micro-batches were handed back."""
    real = Cycle.reduced

    def reduced(cycle: Cycle, event: RoundReduced) -> None:
        everything = control_word.bits(tuple(range(cycle._context.config.micro_batches)))
        real(cycle, replace(event, word=replace(event.word, done=everything)))

    with patch.object(Cycle, "reduced", reduced):
        yield


@contextmanager
def minority_goes_on() -> Iterator[None]:
    """Any members that are left after a loss count as a quorum (protocol.md, I7)."""
    with patch.object(fence, "is_quorum", lambda *_: True):
        yield


@contextmanager
def redo_what_was_applied() -> Iterator[None]:
    """A result that a member has applied is not kept (protocol.md, I8)."""

    def has(_report: m.FenceReport, _first: int, _newest: int, _everything: bytes) -> bytes:
        return b""

    with patch.object(fence, "_has", has):
        yield


@contextmanager
def copy_what_moves() -> Iterator[None]:
    """A source applies updates while a joiner copies, and serves shards of different iterations,
    which the joiner does not notice."""
    moving = property(lambda holds: tuple(holds._held))
    ready = property(lambda cycle: cycle._state_ready)

    def expects(joining: Joining, source: bytes, shard: int, _iteration: int) -> bool:
        return joining.pull is not None and joining.pull.expects(source, shard)

    with (
        patch.object(Holds, "joins", moving),
        patch.object(Cycle, "_may_apply", ready),
        patch.object(Joining, "expects", expects),
    ):
        yield


@contextmanager
def trust_own_weights() -> Iterator[None]:
    """A joiner keeps frozen weights of its own that differ from those of the cluster."""
    real = Pull.own_shards

    def own_shards(pull: Pull, digests: tuple[bytes, ...]) -> list[PullEffect]:
        return real(pull, pull._leaves[: len(digests)] if pull._leaves is not None else digests)

    with patch.object(Pull, "own_shards", own_shards):
        yield


@contextmanager
def offer_what_nobody_stores() -> Iterator[None]:
    """A policy is offered before a majority has stored its body."""
    with patch.object(Negotiator, "_enough", lambda *_: True):
        yield


@contextmanager
def count_old_incarnations() -> Iterator[None]:
    """A link to a new incarnation of a device counts as one to the old incarnation.

    See protocol.md, 2.1."""

    def near(context: Context) -> tuple[bytes, ...]:
        nodes = context.policy.view.nodes if context.policy is not None else ()
        return tuple(n for n in nodes if n in context.links)

    def link_up(recovery: Recovery, _now: float, peer: Member) -> None:
        recovery.losses.renewed(recovery._context.node, peer.node)
        recovery._gone.pop(peer.node, None)

    with (
        patch.object(Context, "near", property(near)),
        patch.object(
            Context, "unlinked", property(lambda c: [n for n in c.neighbours if n not in c.links])
        ),
        patch.object(Recovery, "link_up", link_up),
    ):
        yield


@contextmanager
def forget_to_put_aside() -> Iterator[None]:
    """What was trained apart from the cluster that is joined is not saved before it is replaced."""
    with patch.object(Past, "contains", lambda *_: True):
        yield


@contextmanager
def join_who_is_behind() -> Iterator[None]:
    """A device that was left behind joins whichever cluster answers, even if it has fewer
    samples."""
    real = Founding.standing

    def standing(
        search: Founding, now: float, address: str, heard: Heard, own: Heard, **k: Any
    ) -> Any:
        own = own if own.member else replace(own, samples=0)
        return real(search, now, address, heard, own, **k)

    with patch.object(Founding, "standing", standing):
        yield


@contextmanager
def found_after_admission() -> Iterator[None]:
    """A newcomer whose pull broke off founds a cluster of its own."""
    real = Founding.refused

    def refused(search: Founding, now: float, **_: Any) -> None:
        real(search, now)

    with patch.object(Founding, "refused", refused):
        yield


@contextmanager
def count_what_was_handed_back() -> Iterator[None]:
    """The work of a late trainer counts, although others have done it meanwhile."""
    real = TrainerDebt.contributed

    def contributed(debt: TrainerDebt, event: Contributed) -> bool:
        return real(debt, replace(event, turn=debt.turn))

    with patch.object(TrainerDebt, "contributed", contributed):
        yield


@contextmanager
def stream_sums_of_older_work() -> Iterator[None]:
    """Chunks leave although the trainer has been given more than what is in them."""
    real = Cycle.ready

    def ready(cycle: Cycle, event: ChunksReady) -> None:
        real(cycle, replace(event, micro_batches=cycle._given))

    with patch.object(Cycle, "ready", ready):
        yield


@contextmanager
def lose_a_kept_update() -> Iterator[None]:
    """Of several updates that a trainer missed, one is not replayed."""
    real = TrainerDebt.applied

    def applied(debt: TrainerDebt, event: Applied) -> bool:
        if len(debt._kept) > 2:
            del debt._kept[1]
        return real(debt, event)

    with patch.object(TrainerDebt, "applied", applied):
        yield


@contextmanager
def offer_a_stale_state() -> Iterator[None]:
    """A member whose trainer lacks updates offers its state to joiners."""
    real = Holds.begin

    def begin(holds: Holds, policy: Policy, *, is_whole: bool) -> None:
        del is_whole
        real(holds, policy, is_whole=True)

    with patch.object(Holds, "begin", begin):
        yield


@contextmanager
def notice_no_swallowed_frames() -> Iterator[None]:
    """A link over which only small frames arrive is never ended."""
    with patch.object(Progress, "beat", lambda *_: ()):
        yield


@contextmanager
def keep_a_link_that_stands_still() -> Iterator[None]:
    """A link that was given up counts again as soon as its other end opens it anew."""
    near = property(lambda standstill: standstill._context.near)
    with patch.object(Standstill, "near", near):
        yield


@contextmanager
def blame_no_segments_for_silence() -> Iterator[None]:
    """If the other end notices first that frames are swallowed, segments are not shortened."""

    def gone(progress: Progress, _now: float, node: bytes) -> None:
        progress._senders.pop(node, None)

    with patch.object(Progress, "gone", gone):
        yield


@contextmanager
def wait_for_a_trainer_for_ever() -> Iterator[None]:
    """The deadline of a late trainer never comes."""
    never = property(lambda _debt: None)
    with patch.object(TrainerDebt, "_work_due", never):
        yield


@contextmanager
def wait_for_reports_for_ever() -> Iterator[None]:
    """A fence waits without limit for reports of all members that are not known to be lost."""
    real = FenceLeader._try

    def attempt(leader: FenceLeader, now: float, event: str) -> list[Any]:
        leader._deadline = math.inf
        return real(leader, now, event)

    with patch.object(FenceLeader, "_try", attempt):
        yield


@contextmanager
def take_another_way() -> Iterator[None]:
    """Some members send the chunks of each way along the next one."""
    real = Lanes.of

    def of(lanes: Lanes, policy: Policy, node: bytes) -> Any:
        places, turn = real(lanes, policy, node)
        return places, turn[node[0] % 2 :] + turn[: node[0] % 2]

    with patch.object(Lanes, "of", of):
        yield


@contextmanager
def wait_for_an_answer_for_ever() -> Iterator[None]:
    """A joiner waits without limit for a scheduler to say which links to open."""
    with patch.object(limits, "JOIN_ANSWER_SECONDS", math.inf):
        yield


@contextmanager
def ask_for_links_that_break() -> Iterator[None]:
    """The scheduler asks for a link again as often as it breaks."""
    with patch.object(AskedLinks, "spare", lambda *_: None):
        yield


@contextmanager
def forget_what_was_trained() -> Iterator[None]:
    """A device that was left behind looks for a cluster as if it had trained nothing."""
    real = Seeker.own

    def own(seeker: Seeker) -> Heard:
        heard = real(seeker)
        return heard if heard.member else replace(heard, samples=0, past=Past())

    with patch.object(Seeker, "own", own), patch.object(Past, "contains", lambda *_: True):
        yield


@contextmanager
def change_a_snapshot_while_it_is_taken() -> Iterator[None]:
    """A source applies its update although a snapshot of its state is being taken."""
    with patch.object(Copies, "is_reading", False):
        yield


@contextmanager
def use_the_memory_of_r_while_it_is_copied() -> Iterator[None]:
    """A source applies its update although the R of an earlier iteration is still being copied, the
    memory of which is used again then."""
    is_reading = property(lambda copies: copies._context.iteration in copies._taking)
    with patch.object(Copies, "is_reading", is_reading):
        yield


@contextmanager
def skip_a_record() -> Iterator[None]:
    """A joiner that copies beside the training leaves out every fifth update."""
    real = Copying._replay

    def replay(copying: Copying) -> None:
        if copying.next % 5 == 0 and copying.next in copying._here:
            copying.commit = copying._here.pop(copying.next).commit
            copying.next += 1
        real(copying)

    with patch.object(Copying, "_replay", replay):
        yield


@contextmanager
def enter_while_behind() -> Iterator[None]:
    """A joiner follows the rounds before it has applied all updates since its snapshot."""

    def stop_at(copying: Copying, iteration: int) -> None:
        copying._until = copying.next = iteration

    def done(copying: Copying) -> bool:
        copying.commit = copying._context.commit
        return copying.has_state and copying._until is not None

    is_done = property(done)
    with patch.object(Copying, "stop_at", stop_at), patch.object(Copying, "is_done", is_done):
        yield


@contextmanager
def ship_before_completion() -> Iterator[None]:
    """A source keeps and tells of the sum of a round that lacks work, not of the one that is
    applied after it."""
    again, applying = Cycle._again, Copies.applying

    def too_early(
        cycle: Cycle, event: str, word: control_word.ControlWord, missing: tuple[int, ...]
    ) -> None:
        at, members = cycle._context.iteration, len(cycle._policy.view.members)
        cycle._copies.applying(at, word.encode(), members, cycle._next_commit)
        again(cycle, event, word, missing)

    def once(copies: Copies, iteration: int, *rest: Any) -> None:
        if iteration not in copies._logged:
            applying(copies, iteration, *rest)

    with patch.object(Cycle, "_again", too_early), patch.object(Copies, "applying", once):
        yield


@contextmanager
def offer_the_state_of_an_ended_trainer() -> Iterator[None]:
    """A source whose trainer has ended offers its state, which lacks the updates since then."""
    real = EndedTrainer.stand_in

    def stand_in(own: EndedTrainer, effects: list[Effect]) -> list[Effect]:
        offers = [e for e in effects if type(e) is Send and type(e.envelope.message) is PullBegins]
        return [*offers, *real(own, [e for e in effects if e not in offers])]

    with patch.object(EndedTrainer, "stand_in", stand_in):
        yield


@contextmanager
def forward_to_whose_join_has_failed() -> Iterator[None]:
    """A member forwards the running round to a joiner although its join has failed, because the old
    link has ended. The joiner reads nothing of it, and the member waits until it does."""
    with patch.object(Followers, "_note_failed", lambda *_: None):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    mutation.__name__: mutation
    for mutation in (
        no_freeze,
        forget_reassigned,
        accept_older_lineage,
        apply_without_all,
        minority_goes_on,
        redo_what_was_applied,
        copy_what_moves,
        count_old_incarnations,
        forget_to_put_aside,
        join_who_is_behind,
        found_after_admission,
        count_what_was_handed_back,
        lose_a_kept_update,
        stream_sums_of_older_work,
        offer_a_stale_state,
        notice_no_swallowed_frames,
        keep_a_link_that_stands_still,
        blame_no_segments_for_silence,
        wait_for_a_trainer_for_ever,
        wait_for_reports_for_ever,
        take_another_way,
        wait_for_an_answer_for_ever,
        forget_what_was_trained,
        trust_own_weights,
        change_a_snapshot_while_it_is_taken,
        use_the_memory_of_r_while_it_is_copied,
        skip_a_record,
        enter_while_behind,
        ship_before_completion,
        *DIVIDED_MUTATIONS,
        *ROUNDS_MUTATIONS,
        offer_the_state_of_an_ended_trainer,
        # Found by histories of their own (`rare.py`), since other rules nearly always hide them.
        ask_for_links_that_break,
        two_votes,
        keep_sums_that_lack_work,
        offer_what_nobody_stores,
        forward_to_whose_join_has_failed,
    )
}
