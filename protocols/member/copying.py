"""How a joiner that copies beside the training follows the members: one update after the other.

The members go on while the joiner copies a snapshot of their state, so it also fetches every update
since then. Its sources tell it of each (`UpdateRecord`), and it asks all of them for parts. As soon
as the snapshot is here, the joiner's trainer applies the updates in order, exactly as the trainers
of the members have done. Thus the joiner comes closer and closer to the members, unless its links
carry less than what the members produce.

- An update is applied only if each of its parts matches the digest that its sources have named, and
  the sources must agree on the digests, on the control word and on the commit id.
- The joiner fetches updates while the snapshot is still on its way, so that the sources need not
  keep many of them. How much it keeps itself is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from protocols import limits
from protocols.effects import Apply, BeginTraining
from protocols.errors import RemoteProtocolError
from protocols.member.copies import update_part_bytes, update_parts
from protocols.member.pull import (
    AskManifest,
    AskShards,
    Pull,
    PullDone,
    PullEffect,
    PullFailed,
    Spared,
    WasWrong,
)
from protocols.rounds.control_word import decode_word
from protocols.wire.messages import UpdateRecord, UpdateRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.ancestry import Past
    from protocols.events import Applied, UpdateArrived
    from protocols.member.context import Context
    from protocols.scheduler.planning import Offer
    from protocols.wire.messages import PullBegins


class Copying:
    """The updates that one joiner fetches and applies. `begins`: what the first source has said of
    the snapshot. `fail(reason)` ends the join."""

    def __init__(
        self,
        context: Context,
        begins: PullBegins,
        sources: tuple[bytes, ...],
        offer: Callable[[bytes, int], Offer],
        fail: Callable[[str], None],
    ) -> None:
        self.begins = begins
        self.next = begins.iteration  # the first update that is not in the state here
        self.commit = begins.commit  # C of the last update that the trainer was given
        self.applied_commit = begins.commit  # C(next - 1)
        self.meta = begins.meta  # the scalars of the state here
        self.has_state = False  # whether the whole snapshot is here
        self._context = context
        self._sources = sources
        self._begun: dict[bytes, None] = {}  # sources that are known to keep something
        self._offer = offer
        self._fail = fail
        self._until: int | None = None  # the iteration at which the rounds themselves take over
        # Iteration -> source -> what it says of an update that is not here whole yet.
        self._records: dict[int, dict[bytes, UpdateRecord]] = {}
        self._known_at: dict[int, float] = {}  # update that is not applied -> when it became known
        self._record_bytes = 0  # size of all these records
        # What was believed of the last updates that were fetched, and who has said the same.
        self._past: dict[int, UpdateRecord] = {}
        self._said: dict[int, dict[bytes, bool]] = {}
        self._wrong: dict[bytes, None] = {}  # sources that others have contradicted
        self._pulls: dict[int, Pull] = {}  # the updates that are being fetched, by iteration
        self._here: dict[int, UpdateRecord] = {}  # updates that are here whole, by iteration
        # Iterations of fetched updates that as many sources contradict as confirm.
        self._disputed: dict[int, None] = {}
        self.is_refuted = False  # the state here has another history than that of the others
        self._applying = False  # whether the trainer has been given the update `next`
        self._stopped = False  # whether the join has failed

    @property
    def behind(self) -> int:
        """How many updates the members have, as far as is known, that are not in the state here."""
        return max(0, max(self._known_at, default=self.next - 1) + 1 - self.next)

    @property
    def is_close(self) -> bool:
        """Whether only the last updates are missing, so that the members can be asked to hold for
        a moment until the joiner has them."""
        if not self.has_state or self.behind <= limits.COPY_CLOSE_UPDATES:
            return self.has_state
        since = self._known_at.get(self.next)
        return since is not None and self._context.now - since < limits.COPY_CLOSE_SECONDS

    @property
    def is_done(self) -> bool:
        """Whether the state here is that at the start of the iteration that `stop_at` has named."""
        return self.has_state and self.next == self._until and not self._applying

    @property
    def awaited(self) -> dict[bytes, int]:
        """Source -> how often it has answered so far, for the sources that owe an answer."""
        owing: dict[bytes, int] = {}
        for iteration, pull in self._pulls.items():
            for source, answers in pull.awaited.items():
                owing[source] = owing.get(source, 0) + answers + iteration
        return owing

    def stop_at(self, iteration: int) -> None:
        """Apply no update of `iteration` or of a later one: this node follows the rounds then."""
        self._until = iteration
        for later in [i for i in self._pulls if i >= iteration]:
            del self._pulls[later]
        self._fetch()

    def began(self, source: bytes) -> None:
        """Note that `source` keeps the snapshot, too. Others may have too little memory for it, and
        say so to the scheduler alone."""
        self._begun[source] = None

    def remind(self) -> None:
        """Ask the sources for what they may have said of the next update when this node could not
        hear it yet. That also shows them that this node still needs what they keep."""
        wanted = self._first_missing
        if wanted in self._pulls or wanted == self._until:
            return
        for source in self._sources:
            request = UpdateRequest(self.begins.join, wanted, wanted, (), self.has_state)
            self._context.send(source, request)

    def expects(self, source: bytes, iteration: int, part: int) -> bool:
        """Whether `source` was asked for a part of an update and has not delivered it."""
        return iteration in self._pulls and self._pulls[iteration].expects(source, part)

    def record(self, source: bytes, record: UpdateRecord) -> None:
        """Take what `source` says of an update. Raises `RemoteProtocolError` if it can be none."""
        if len(record.leaves) != update_parts(self._context.config.update_bytes):
            raise RemoteProtocolError("an update with the wrong number of parts")
        decode_word(record.word)
        at = record.iteration
        if source not in self._sources:
            return
        if at in self._past:
            self._judge_past(source, record)
        is_applied = at < self.next or (at == self.next and self._applying)
        if is_applied or at in self._here or at in self._past:
            return
        if at >= self.next + limits.MOST_UPDATES_BEHIND:
            return  # no source can be so far ahead, and the bound on records is not for one
        self._begun[source] = None
        known = self._records.setdefault(at, {})
        if source in known:
            return
        self._record_bytes += _size(record)
        if self._record_bytes > limits.MOST_RECORD_BYTES:
            self._fail("the others are too far ahead to be followed")
            return
        known[source] = record
        self._known_at.setdefault(at, self._context.now)
        if not self._agree(at) or source not in self._right_sources:
            return
        if (pull := self._pulls.get(at)) is not None:
            self._follow(at, pull, pull.began(source))
        self._fetch()

    def _agree(self, at: int) -> bool:
        """Whether what the sources say of the update of `at` can be believed. If they differ, it is
        not fetched before more of them say the same than say anything else; who has said something
        else is asked for nothing more. If all have told, and it is a tie, the join fails."""
        said: dict[UpdateRecord, list[bytes]] = {}
        known = self._records.get(at, {})
        for source, record in known.items():
            # A source that has applied it after a fence has counted other members.
            said.setdefault(replace(record, members=0), []).append(source)
        if len(said) <= 1:
            return True
        self._pulls.pop(at, None)
        *wrong, believed = sorted(said.values(), key=len)
        if len(believed) > len(wrong[-1]):
            for source in [source for sources in wrong for source in sources]:
                self._was_wrong(source)
            return True
        if all(s in known for s in self._sources if s in self._begun):
            self._fail(f"its sources hold different updates of iteration {at}")
        return False

    def _judge_past(self, source: bytes, record: UpdateRecord) -> None:
        """Compare what `source` says of an update with what was fetched."""
        at = record.iteration
        self._said[at][source] = replace(record, members=0) == self._past[at]
        self._settle(at)
        self._replay()

    def _settle(self, at: int) -> None:
        """Judge the update of `at` that was fetched by what the sources have said of it. After a
        loss the others may have made an iteration again that a lost source had shipped; then the
        state here has another history, and the join fails. In a tie no further update is applied
        before all have told; if it is one still, the join fails, too."""
        said = self._said[at]
        agree = [s for s, same in said.items() if same and s in self._sources]
        differ = [s for s, same in said.items() if not same and s in self._sources]
        self._disputed.pop(at, None)
        if len(differ) > len(agree):
            for wrong in agree:
                self._tell_wrong(wrong)
            self._refute(f"the others have made iteration {at} again")
        elif len(agree) > len(differ):
            for wrong in differ:
                self._was_wrong(wrong)
        elif differ and all(s in said for s in self._sources if s in self._begun):
            self._refute(f"its sources hold different updates of iteration {at}")
        elif differ:
            self._disputed[at] = None

    def _refute(self, reason: str) -> None:
        """Fail the join; nobody may go on from the state that is here."""
        self.has_state, self.is_refuted = False, True
        self._fail(reason)

    def _note_past(self, at: int, known: dict[bytes, UpdateRecord]) -> None:
        """Remember what was believed of an update that is here, and who has said so."""
        self._past[at] = replace(next(iter(known.values())), members=0)
        self._said[at] = dict.fromkeys(known, True)
        for old in list(self._past)[: -limits.MOST_PAST_RECORDS]:
            del self._past[old], self._said[old]
            self._disputed.pop(old, None)

    def _was_wrong(self, source: bytes) -> None:
        """Ask `source` for nothing any more, and believe nothing of what it has said before."""
        if source not in self._sources:
            return
        self._tell_wrong(source)
        self.lost(source)

    def _tell_wrong(self, source: bytes) -> None:
        if source not in self._wrong:
            self._wrong[source] = None
            self._context.report("wrong_source", node=self._context.name(source))

    def arrived(self, event: UpdateArrived) -> None:
        """Take a part that has arrived. Raises `RemoteProtocolError` if it was not asked for."""
        at = event.iteration
        if not self.expects(event.source, at, event.part):
            raise RemoteProtocolError("a part of an update that was not asked for")
        pull = self._pulls[at]
        self._follow(at, pull, pull.shard(event.source, event.part, event.digest))

    def lost(self, source: bytes) -> None:
        """Ask the other sources for what `source` owed, because the link to it is gone, or because
        it keeps nothing any more."""
        self._sources = tuple(s for s in self._sources if s != source)
        if not any(s in self._begun for s in self._sources) and not self.is_done:
            self._fail("every source of the updates was lost")
            return
        for at, known in list(self._records.items()):
            if (record := known.pop(source, None)) is not None:
                self._record_bytes -= _size(record)
            if not known:  # nobody who is left has told of this one
                del self._records[at], self._known_at[at]
                self._pulls.pop(at, None)
        for at, pull in list(self._pulls.items()):
            self._follow(at, pull, pull.lost(source))
        for at in list(self._records):
            self._agree(at)  # those that are left may agree now, or it is a tie
        for at in list(self._past):
            self._settle(at)
        self._fetch()
        self._replay()

    @property
    def drains(self) -> bool:
        """Whether an update is here that the trainer has not applied yet, and will."""
        ready = self.next in self._here and self.next != self._until
        return self.has_state and not self._stopped and (self._applying or ready)

    @property
    def own(self) -> tuple[Past, bytes, bytes]:
        """The history of the state here, its scalars and its commit id. In the last part of the
        join it may lack updates that the others have; after that it is the context's."""
        context = self._context
        if self.is_done:
            return context.past, context.meta, context.commit
        return replace(context.past, iteration=self.next), self.meta, self.applied_commit

    def stop(self) -> None:
        """The join has failed: give the trainer no update any more."""
        self._stopped = True

    def complete(self) -> None:
        """The whole snapshot is here: the trainer begins with it, and applies the updates."""
        self.has_state = True
        steps = self._context.steps
        self._context.do(BeginTraining(self.next, True, self.begins.meta, steps))
        self._replay()

    def applied(self, event: Applied) -> bool:
        """Take the trainer's answer to an update; return whether it belongs to one given here."""
        if not self._applying or event.iteration != self.next:
            return False
        context = self._context
        self._applying, self.applied_commit = False, self.commit
        self.meta = event.meta or self.meta
        self._known_at.pop(self.next, None)
        self.next += 1
        if self._until is None:
            context.iteration, context.commit, context.meta = self.next, self.commit, self.meta
            context.samples += context.config.samples_per_iteration
        self._fetch()
        self._replay()
        return True

    @property
    def _first_missing(self) -> int:
        """The first update that is not here whole."""
        at = self.next
        while at in self._here or (at == self.next and self._applying):
            at += 1
        return at

    def owes(self, source: bytes) -> int:
        """How many parts of updates `source` was asked for that have not come."""
        return sum(pull.owes(source) for pull in self._pulls.values())

    def _fetch(self) -> None:
        """Begin to fetch the next updates of which a source has told, if there is room for them."""
        config = self._context.config
        size, missing = config.update_bytes, self._first_missing
        room = limits.MOST_COPY_LOG_STATES * config.state_bytes // max(1, size) + 1
        for at in range(missing, min(missing + limits.MOST_UPDATE_FETCHES, self.next + room)):
            if at == self._until:
                return  # this one comes with the rounds
            if at in self._pulls or at in self._here or not self._can_fetch(at):
                continue
            assign = self._context.planner.assign
            parts, part_bytes = update_parts(size), update_part_bytes(size)
            sources = self._right_sources
            # Nothing is asked of two: what the slower one still sends, and nobody expects any more,
            # would pile up there from update to update.
            pull = Pull(parts, part_bytes, sources, self._offer, assign, twice=False)
            self._pulls[at] = pull
            for source in [s for s in self._records[at] if s in sources]:
                self._follow(at, pull, pull.began(source))
        if missing not in self._pulls and missing not in self._records and self._records:
            self.remind()  # a later one is known, so this one was missed

    def _can_fetch(self, at: int) -> bool:
        """Whether the sources that have told of the update of `at` agree on it."""
        known = self._records.get(at, {})
        told = {replace(r, members=0): None for r in known.values()}
        return len(told) == 1 and any(s in known for s in self._right_sources)

    @property
    def _right_sources(self) -> tuple[bytes, ...]:
        """The sources, without those that have sent something wrong unless there are no others."""
        return tuple(s for s in self._sources if s not in self._wrong) or self._sources

    def _follow(self, at: int, pull: Pull, effects: list[PullEffect]) -> None:
        for effect in effects:
            if self._pulls.get(at) is not pull:
                return
            match effect:
                case AskManifest(source):
                    self._follow(at, pull, pull.manifest(source, self._records[at][source].leaves))
                case AskShards(source, parts):
                    needs = self._first_missing
                    request = UpdateRequest(self.begins.join, at, needs, parts, self.has_state)
                    self._context.send(source, request)
                case WasWrong(source):
                    self._tell_wrong(source)
                case Spared():
                    raise AssertionError("no part of an update is here before it is fetched")
                case PullDone():
                    self._fetched(at)
                case PullFailed(reason):
                    self._fail(f"the update of iteration {at}: {reason}")
                case _:
                    assert_never(effect)

    def _fetched(self, at: int) -> None:
        """An update is here whole: fetch the next ones, and have this one applied in its turn."""
        del self._pulls[at]
        self._note_past(at, self._records[at])
        for record in self._records.pop(at).values():
            self._record_bytes -= _size(record)
            self._here[at] = record
        self._replay()
        self._fetch()

    def _replay(self) -> None:
        """Give the trainer the next update, if it is here and the trainer is done with the last."""
        idle = self.has_state and not (self._applying or self._stopped or self._disputed)
        ready = idle and self.next in self._here
        if not ready or self.next == self._until:
            return
        record = self._here.pop(self.next)
        self._applying = True
        self.commit = record.commit
        word = decode_word(record.word)
        self._context.do(Apply(self.next, word, record.members))
        if word.stop:  # the others end after this iteration
            self._context.steps = min(self._context.steps, self.next + 1)


def _size(record: UpdateRecord) -> int:
    return len(record.word) + sum(map(len, record.leaves))
