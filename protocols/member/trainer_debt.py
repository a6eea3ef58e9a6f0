"""What this device's own trainer owes, until when, and how the node goes on without it.

    PROMPT       Work and updates go to the trainer. Each has a deadline, which follows from how
                 long the trainer took before.
    LATE         A deadline has passed, or the script asked to be away. The node hands the work of
                 the iteration back and goes on with the others; it keeps updates for the trainer.
    CATCHING_UP  The trainer answers again. The kept updates are replayed to it, one by one.

- The other members wait for this trainer no longer than one deadline.
- No update is lost: the node of a late trainer counts an update as applied once it is kept, and has
  the trainer apply all of them, in order, before it takes part again.
- What the trainer computes of an iteration that was handed back counts for nothing, because others
  compute it, too. Each such hand-back begins a new `turn`, and answers of another turn are ignored.
- A trainer that stays late, or for which too much is kept, is let go: the node leaves the cluster,
  and the agent joins again once the trainer answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import Apply, GiveWork, KeepUpdate, Publish, TakeDigest
from protocols.events import Applied
from protocols.network.measures import KeepingUp
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.events import Contributed, Progressed, Published, UpdateDelayed
    from protocols.member.context import Context


class DebtState(StrEnum):
    """How the trainer keeps up."""

    PROMPT = "prompt"
    LATE = "late"
    CATCHING_UP = "catching-up"


_BEHIND = (DebtState.LATE, DebtState.CATCHING_UP)
DEBT_TABLE: StateTable[DebtState] = StateTable(
    "trainer debt",
    Row(DebtState.PROMPT, "overdue", (DebtState.LATE,)),
    Row(DebtState.PROMPT, "away", (DebtState.LATE,)),
    Row(DebtState.PROMPT, "diverged", (DebtState.LATE,)),
    Row(DebtState.CATCHING_UP, "overdue", (DebtState.LATE,)),
    Row(DebtState.LATE, "answered", (DebtState.CATCHING_UP, DebtState.PROMPT)),
    Row(DebtState.CATCHING_UP, "answered", (DebtState.CATCHING_UP, DebtState.PROMPT)),
    Row(DebtState.LATE, "nobody else can", (DebtState.LATE, DebtState.PROMPT)),
    Row(DebtState.CATCHING_UP, "nobody else can", (DebtState.CATCHING_UP, DebtState.PROMPT)),
)


class TrainerDebt:
    """The part of one node that knows what its trainer owes.

    `wish(away)` asks the scheduler for share 0, or for a share again. `hand_back()` contributes
    nothing to the running iteration, so that the others compute this node's share.
    """

    def __init__(
        self, context: Context, wish: Callable[[bool], None], hand_back: Callable[[], None]
    ) -> None:
        self.state = DEBT_TABLE.initial
        self.turn = 0
        self.is_away = False
        self.is_gone = False  # the trainer's process has ended
        self._excused = False  # the scheduler was asked for no share, and not for one again
        self._context = context
        self._wish = wish
        self._hand_back = hand_back
        self._given_at: float | None = None  # since when the trainer has owed an answer to work
        self._got_on_at = 0.0  # when it last said that it gets on with it
        self._given = 0  # number of micro-batches in that work
        self._computed = 0  # how many of these the trainer has told to be done
        self._patience = 1.0  # by how much longer than usual the running work may take
        self._applying: Apply | None = None  # sent to a prompt trainer and not answered
        self._applying_at = 0.0
        self._publishing: Publish | None = None  # results that the trainer has to make
        self._is_told = False  # whether it was told so; it is not while it lacks updates
        self._publish_by: float | None = None  # the time by which it should have made them
        self.is_late_publisher = False  # whether that time is over, which the others are told
        self.is_overdue_publisher = False  # whether they have had time to say the same of theirs
        self._kept: deque[Apply] = deque()  # updates to replay; the first one is with the trainer
        self._no_room: Apply | None = None  # an update for which there was no room among these
        self._later: GiveWork | None = None  # work that waits until all updates are replayed
        self._later_at = 0.0  # since when that work waits
        self._behind_since = 0.0  # when the node last began to go on without the trainer
        self._late_since = 0.0  # the same, but reset when the script says that it is back
        self._answered_at = 0.0  # when a trainer that catches up last applied an update
        self._has_begun = False  # a trainer owes nothing before its state is in place
        self._iterations = 0  # since the trainer began: the first ones take longer
        self._paces: deque[float] = deque(maxlen=limits.TRAINER_SAMPLES)  # seconds/micro-batch
        self._updates: deque[float] = deque(maxlen=limits.TRAINER_SAMPLES)  # seconds/update
        self._results: deque[float] = deque(maxlen=limits.TRAINER_SAMPLES)  # seconds/results
        self._results_allowed = 0.0  # how long the results may take that it makes
        self._published_from = 0.0  # since when the results are made that the trainer has to make

    @property
    def is_behind(self) -> bool:
        """Whether the node goes on without its trainer."""
        return self.state in _BEHIND

    def is_at(self, turn: int) -> bool:
        """Whether what the trainer computes in this turn counts at present."""
        return turn == self.turn and not self.is_behind

    @property
    def is_stale(self) -> bool:
        """Whether the trainer's state lacks updates that the node counts as applied."""
        return bool(self._kept) or self._no_room is not None or self._context.diverged

    @property
    def has_old_slots(self) -> bool:
        """Whether the optimizer's slots here may lack updates that the node counts as applied: the
        trainer lacks them, or its process has ended, so that updates pass it by."""
        return self.is_stale or self.is_gone

    @property
    def kept(self) -> tuple[int, ...]:
        """The iterations whose updates wait to be replayed; the trainer has been told the first."""
        return tuple(effect.iteration for effect in self._kept)

    @property
    def waiting_since(self) -> float | None:
        """Since when the trainer has owed an answer (node time, s); None if it owes none."""
        if self.is_behind:
            return self._late_since
        if self._applying is not None:
            return self._applying_at
        return self._given_at

    @property
    def standing(self) -> tuple[KeepingUp, float]:
        """How the trainer keeps up, and for how many seconds it has not answered; 0.0 unless that
        is clearly longer than usual."""
        since = self.waiting_since
        if self.is_late_publisher:
            return KeepingUp.LATE, 0.0
        if since is None:
            return KeepingUp.PROMPT, 0.0
        seconds = self._context.now - since
        if self.is_behind:
            return (KeepingUp.AWAY if self.is_away else KeepingUp.LATE), seconds
        if self._applying is not None:
            usual = _usual(self._updates)
        else:
            usual = _usual(self._paces) * max(1, self._given)
        slow = seconds > max(limits.TRAINER_NOTICE_SECONDS, 2 * self._patience * usual)
        return (KeepingUp.SLOW, seconds) if slow else (KeepingUp.PROMPT, 0.0)

    # --- what the node wants ------------------------------------------------------------------

    def began(self) -> None:
        """The trainer begins with a state that is in place, so it owes nothing any more."""
        if self.is_behind:
            self.state = DEBT_TABLE.step(self.state, "answered", DebtState.PROMPT)
        self._excused = False
        self._has_begun = True
        self._kept.clear()
        self._end_publishing()
        self._applying = self._no_room = self._later = self._given_at = None
        self._iterations = 0

    def give(self, iteration: int, micro_batches: tuple[int, ...]) -> bool:
        """Give these micro-batches to the trainer. Return False if it is behind; the caller then
        contributes nothing."""
        if self.is_behind:
            self._later = None  # work that waited is handed back with the rest
            return False
        self._send(GiveWork(iteration, micro_batches, self.turn))
        return True

    def give_anyway(self, iteration: int, micro_batches: tuple[int, ...]) -> None:
        """Give micro-batches to the trainer even if it is late, because those of all other members
        are late, too. Each time it may take twice as long as before; then the work is handed back
        again, because by then another member's trainer may answer."""
        self._patience = min(2 * self._patience, limits.TRAINER_MOST_PATIENCE)
        work = GiveWork(iteration, micro_batches, self.turn)
        if self.is_stale:
            self._later, self._later_at = work, self._context.now
            self.state = DEBT_TABLE.step(self.state, "nobody else can", self.state)
            return
        if self.is_behind:
            self.state = DEBT_TABLE.step(self.state, "nobody else can", DebtState.PROMPT)
            self._given_at = None  # the work that it had before was handed back
        self._send(work)

    def diverge(self) -> None:
        """Go on without the trainer, because its state was found to differ from that of the others.
        Nothing that it computes counts any more, and no update can repair its state. When the
        others have let this node go, it pulls their state."""
        self._context.diverged = True
        if not self.is_behind:
            self.state = DEBT_TABLE.step(self.state, "diverged", DebtState.LATE)
        self._behind_since = self._late_since = self._context.now
        self.turn += 1
        self._wish(True)

    def publish(self, effect: Publish) -> None:
        """Have results made, now or when the trainer has caught up. Nobody can go on without them,
        so a trainer that is late is asked, too."""
        self._publishing = effect
        self._expect_results()
        self._is_told = not self.is_stale
        if self._is_told:
            self._context.do(effect)

    def _expect_results(self) -> None:
        """From now on the trainer makes results, which may take as long as the last ones, and as
        an update."""
        self.is_late_publisher = self.is_overdue_publisher = False
        self._published_from = self._context.now
        self._results_allowed = self._allowed(max(_usual(self._results), _usual(self._updates)))
        self._publish_by = self._published_from + self._results_allowed

    def _end_publishing(self) -> None:
        self._publishing = self._publish_by = None
        self.is_late_publisher = self.is_overdue_publisher = False

    def apply(self, effect: Apply) -> None:
        """Have an update applied, now or when the trainer has caught up."""
        self._end_publishing()
        if self._context.diverged:
            self._context.own.append(Applied(effect.iteration, b""))
        elif not self.is_behind:
            self._applying, self._applying_at = effect, self._context.now
            self._context.do(effect)
        elif self._kept_bytes < limits.MOST_KEPT_UPDATE_BYTES:
            self._keep(effect)
        else:
            self._no_room = effect  # not counted as applied: the others wait until we are let go

    def delayed(self, event: UpdateDelayed) -> None:
        """The trainer gets an update, or hears of results that it shall make, later than it was
        asked for them, so its time begins only then."""
        if self._applying is not None and event.iteration == self._applying.iteration:
            self._applying_at = self._context.now
        elif event.iteration in self.kept[:1]:
            self._answered_at = self._context.now
        elif self._publishing is not None and event.iteration == self._publishing.iteration:
            self._expect_results()

    def _send(self, work: GiveWork) -> None:
        if self._given_at is None:
            self._given_at, self._given = self._context.now, 0
            self._computed = 0
        self._given += len(work.micro_batches)
        self._context.do(work)

    def _keep(self, effect: Apply) -> None:
        """Keep an update for the trainer; the node counts it as applied now."""
        self._context.do(KeepUpdate(effect.iteration, effect.stripes))
        self._kept.append(effect)
        if len(self._kept) == 1:
            self._context.do(effect)
        self._context.own.append(Applied(effect.iteration, b""))

    @property
    def _kept_bytes(self) -> int:
        return len(self._kept) * self._context.config.vector_bytes

    # --- what the trainer says ----------------------------------------------------------------

    def progressed(self, event: Progressed) -> None:
        """The trainer gets on with a long round of local steps: from now on it may be silent for as
        long as it has computed, because so much would be thrown away if others took its work. One
        that has few cells of a model may get on for long before it has computed another of them."""
        current = self.is_at(event.turn) and event.iteration == self._context.iteration
        if not current or self._given_at is None:
            return
        if event.micro_batches < self._given:
            self._got_on_at = self._context.now
        if 0 < event.micro_batches < self._given:
            self._paces.append((self._context.now - self._given_at) / event.micro_batches)
            self._given -= event.micro_batches
            self._computed += event.micro_batches
            self._given_at = self._context.now

    def contributed(self, event: Contributed) -> bool:
        """Take an answer to work; return whether it counts."""
        counts = self.is_at(event.turn)
        # An answer to no work, as from a device with share 0, says nothing of how long work takes.
        if not counts:
            self._note_late()
        elif self._given_at is not None and self._given:
            self._paces.append((self._context.now - self._given_at) / self._given)
        if event.turn == self.turn or self.is_behind:
            self._given_at = None  # an older answer says nothing of work that was given since
        if counts and self._excused and not self.is_away:  # `give_anyway` was answered in time
            self._is_back()
        if self.is_behind and not self.is_away and not self.is_stale:
            self._answered()
        return counts

    def _note_late(self) -> None:
        """A trainer that is late answers. Its answer counts for no work, and it may even have
        dropped the work for an update that waits for it. But it shows that the trainer has become
        slower, or that it has hung: so it says at most that twice the time was needed."""
        due = self._work_due
        if self.state is not DebtState.LATE or self._given_at is None or due is None:
            return
        if self._given:
            most = 2 * (due - self._given_at) / (self._given + self._computed)
            self._paces.append(min((self._context.now - self._given_at) / self._given, most))

    def published(self, event: Published) -> None:
        """Take the answer to `publish`."""
        now = self._publishing
        if now is not None and (event.iteration, event.attempt) == (now.iteration, now.attempt):
            took = self._context.now - self._published_from
            # A trainer that hung is not allowed as long again (H33).
            self._results.append(min(took, 2 * self._results_allowed))
            self._end_publishing()

    def applied(self, event: Applied) -> bool:
        """Take an answer to an update; return whether the node has waited for it. It has not if the
        update was kept, since the node counted it as applied at that time."""
        self._note_late()
        self._given_at = None
        if not self.is_behind:
            if self._applying is not None:
                self._updates.append(self._context.now - self._applying_at)
            self._applying = None
            self._iterations += 1
            self._patience = 1.0
            return True
        if self._kept and self._kept[0].iteration == event.iteration:
            self._kept.popleft()
            self._context.meta = event.meta or self._context.meta
            if self._kept:
                self._context.do(self._kept[0])
            self._answered()
        return False

    def _answered(self) -> None:
        """The trainer answers again: it takes part again once no update is left to replay."""
        if self._kept:
            self._answered_at = self._context.now
            self.state = DEBT_TABLE.step(self.state, "answered", DebtState.CATCHING_UP)
            return
        if self._publishing is not None and not self._is_told:
            self._is_told = True
            self._expect_results()
            self._context.do(self._publishing)
        effect, self._no_room = self._no_room, None
        if self.is_away and effect is None:
            return
        self.state = DEBT_TABLE.step(self.state, "answered", DebtState.PROMPT)
        self._is_back()
        context = self._context
        # The digest at the end was not taken while the trainer's state lacked updates.
        if effect is None and context.is_at_end:
            context.do(TakeDigest(context.iteration, context.commit))
        if effect is not None:
            self.apply(effect)
        elif (work := self._later) is not None and work.iteration == self._context.iteration:
            self._send(replace(work, turn=self.turn))
        self._later = None

    def _is_back(self) -> None:
        """Ask for a share again, and report that the trainer keeps up again."""
        self._excused = False
        name, seconds = self._context.config.me.name, self._context.now - self._behind_since
        self._context.report("member_back", node=name, seconds=round(seconds, 6))
        self._wish(False)

    # --- time ---------------------------------------------------------------------------------

    def away(self, away: bool) -> None:
        """Note that the script says that it is away for a while, or that it is back."""
        self.is_away = away
        if not away and self.is_behind:
            self._late_since = self._context.now
            if self._given_at is None and not self.is_stale:
                self._answered()

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        context = self._context
        if not self._has_begun or not context.is_awaited:
            return None
        behind = self.is_behind
        due = (self._behind_due, self.later_due) if behind else (self._due, None)
        return min((t for t in (*due, self._publish_by) if t is not None), default=None)

    @property
    def _due(self) -> float | None:
        """When a trainer that keeps up has taken too long."""
        due = (self._work_due, self._update_due)
        return min((t for t in due if t is not None), default=None)

    @property
    def _behind_due(self) -> float | None:
        """When a trainer that is behind has taken too long: with the update that it replays if it
        is catching up, otherwise with any answer at all."""
        context = self._context
        if self.state is DebtState.CATCHING_UP:
            return self._answered_at + self._allowed(_usual(self._updates))
        waits = self.is_away or context.stalled or context.diverged
        return None if waits else self._let_go_at

    @property
    def later_due(self) -> float | None:
        """When work that waits for the replay of updates is handed back. The first iterations get
        no more time than later ones: another trainer that was late, too, may answer meanwhile, and
        if none does, the work comes back with twice the patience."""
        if self._later is None:
            return None
        usual = _usual(self._paces) * max(1, len(self._later.micro_batches))
        allowed = max(limits.TRAINER_LEAST_SECONDS, limits.TRAINER_FACTOR * usual)
        return self._later_at + self._patience * allowed

    @property
    def _work_due(self) -> float | None:
        if self._given_at is None:
            return None
        usual = _usual(self._paces)
        if self._computed:
            silent = self._allowed(usual, usual * self._computed)
        else:
            silent = self._allowed(usual * max(1, self._given))
        return max(self._given_at, self._got_on_at) + self._patience * silent

    @property
    def _update_due(self) -> float | None:
        if self._applying is None:
            return None
        return self._applying_at + self._patience * self._allowed(_usual(self._updates))

    def _allowed(self, usual: float, otherwise: float = 0.0) -> float:
        """Return how many seconds the trainer may take for what usually takes `usual` seconds, 0 if
        it has not done that yet; at least `otherwise`. That of a joiner may have applied many
        updates when it is given work for the first time."""
        first = self._iterations < limits.TRAINER_FIRST_ITERATIONS or not usual
        least = limits.TRAINER_FIRST_SECONDS if first else limits.TRAINER_LEAST_SECONDS
        return max(least, otherwise, limits.TRAINER_FACTOR * usual)

    @property
    def _let_go_at(self) -> float:
        return self._late_since + limits.TRAINER_LET_GO_SECONDS

    def tick(self) -> None:
        """Act on deadlines that have passed. A trainer for which nobody waits has none."""
        context = self._context
        if not self._has_begun or not context.is_awaited:
            return
        if self._publish_by is not None and context.now >= self._publish_by:
            self.is_overdue_publisher = self.is_late_publisher
            self.is_late_publisher = True
            told = context.now + limits.PUBLISHERS_TOLD_SECONDS
            self._publish_by = None if self.is_overdue_publisher else told
        due = self._behind_due if self.is_behind else self._due
        overdue = due is not None and context.now >= due
        if self.is_behind:
            self._hand_back_later()
            many = len(self._kept) > limits.LEAST_KEPT_UPDATES
            much = many and self._kept_bytes > limits.MAX_KEPT_UPDATE_BYTES
            full = much or self._no_room is not None
            if self.state is DebtState.CATCHING_UP and overdue:
                self.state = DEBT_TABLE.step(self.state, "overdue", DebtState.LATE)
                self._late_since = context.now
            elif overdue or full:
                context.stalled = True
        elif self.is_away and self._applying is None and self._patience == 1.0:
            self._fall_behind("away")
        elif overdue:
            self._fall_behind("overdue")

    def _hand_back_later(self) -> None:
        """Hand work back that has waited for too long for the replay of updates."""
        if (due := self.later_due) is not None and self._context.now >= due:
            self._later = None
            self._hand_back()

    def _fall_behind(self, event: str) -> None:
        """Go on without the trainer: hand its work back, or keep the update that it is applying."""
        if event == "away":
            self._given = 0  # when it comes back says nothing of its speed
        self.state = DEBT_TABLE.step(self.state, event, DebtState.LATE)
        self._behind_since = self._late_since = self._context.now
        name = self._context.config.me.name
        self._context.report("member_late", node=name, away=self.is_away)
        self.turn += 1
        self._excused = True
        self._wish(True)
        applying, self._applying = self._applying, None
        if applying is None:
            self._hand_back()
        else:
            # The trainer is told of this update already, or will be once the agent may send it, as
            # when the state before it is still being hashed. By then R may be that of a later one.
            self._context.do(KeepUpdate(applying.iteration, applying.stripes))
            self._kept.append(applying)
            self._context.own.append(Applied(applying.iteration, b""))


def _usual(samples: deque[float]) -> float:
    """Return how long something takes at most, in seconds: the second longest of the last samples.

    The longest may be the time for which the trainer hung, because work that is not handed back
    (`give_anyway`) is answered late and yet counts. A trainer that has become slower shows that in
    two samples.
    """
    longest = sorted(samples)[-2:]
    return longest[0] if longest else 0.0
