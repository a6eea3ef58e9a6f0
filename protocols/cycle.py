"""One node's iterations: compute, reduce, hold if a joiner copies, apply, switch policy, again.

Law: an update is applied only when the round is reduced here and contains every micro-batch exactly
once; the policy named in that round's control word holds from the next iteration on. A round that
lacks micro-batches (a node handed its own back) is run again as a new attempt, in which the others,
by a rule that needs no message, compute what is missing.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import control_word, limits
from protocols.control_word import ControlWord
from protocols.effects import (
    Applied,
    Apply,
    BeginTraining,
    Contribute,
    Contributed,
    Depart,
    GiveWork,
    RoundReduced,
    StartRound,
    TakeDigest,
)
from protocols.messages import PolicyFetch, PullBegins
from protocols.round import RoundSpec
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.context import Context
    from protocols.policy import Policy

DIGEST_EVERY = 10
_NEVER = -1  # a subscriber holds for nobody


class CycleState(StrEnum):
    """Where this node stands in its iteration."""

    IDLE = "idle"
    COMPUTING = "computing"
    REDUCING = "reducing"
    HOLDING = "holding"
    APPLYING = "applying"
    FETCHING = "fetching"
    OVER = "over"


_NEXT = (CycleState.COMPUTING, CycleState.REDUCING, CycleState.FETCHING, CycleState.OVER)
CYCLE_TABLE: StateTable[CycleState] = StateTable(
    "cycle",
    Row(CycleState.IDLE, "start", (CycleState.COMPUTING, CycleState.REDUCING, CycleState.OVER)),
    Row(CycleState.COMPUTING, "contributed", (CycleState.REDUCING,)),
    Row(
        CycleState.REDUCING,
        "reduced",
        (CycleState.COMPUTING, CycleState.REDUCING, CycleState.HOLDING, CycleState.APPLYING),
    ),
    Row(CycleState.HOLDING, "released", (CycleState.HOLDING, CycleState.APPLYING)),
    Row(CycleState.APPLYING, "applied", _NEXT),
    Row(CycleState.FETCHING, "body", _NEXT),
    *(
        Row(state, "left", (CycleState.OVER,))
        for state in CycleState
        if state is not CycleState.OVER
    ),
)


class Cycle:
    """The training loop of a member, or of a subscriber that is on its way in.

    `offered` says which policy this node's control word names; `switched` is called with (old, new)
    when a policy comes into force.
    """

    def __init__(
        self,
        context: Context,
        offered: Callable[[], tuple[int, int]],
        switched: Callable[[Policy, Policy], None],
    ) -> None:
        self.state = CYCLE_TABLE.initial
        self._context = context
        self._offered = offered
        self._switched = switched
        self._word: ControlWord | None = None  # reduced, of the running iteration
        self._named: tuple[int, int] = (0, 0)
        self._done: tuple[int, ...] = ()  # micro-batches in P
        self._extra: tuple[int, ...] = ()  # dealt to this node in a later attempt
        self._held: dict[int, int] = {}  # join -> iteration whose update waits for it
        self._released: dict[int, None] = {}
        self._state_ready = True  # False: the state of `iteration` is still being pulled

    @property
    def holding_for(self) -> tuple[int, ...]:
        """Joins for which this node keeps the state of the running iteration unchanged."""
        at = self._context.iteration
        return tuple(j for j, i in self._held.items() if i == at and j not in self._released)

    @property
    def round_is_here(self) -> bool:
        """Whether the running iteration's round is complete here, and so decided what follows."""
        return self.state in (CycleState.HOLDING, CycleState.APPLYING)

    def start(self, *, state_ready: bool) -> None:
        """Begin at the context's iteration and policy, with its state here or still to come."""
        self._state_ready = state_ready
        if state_ready:
            self._begin(adopt=False)
        self._enter("start")

    def adopted(self) -> None:
        """The state of the running iteration has been pulled: the trainer may begin."""
        self._state_ready = True
        self._begin(adopt=True)
        self._context.do(GiveWork(self._context.iteration, ()))
        if self.state is CycleState.HOLDING:
            self._release()

    def contributed(self, event: Contributed) -> None:
        """The trainer has computed what it was given, or hands the rest back."""
        context = self._context
        if self.state is not CycleState.COMPUTING or event.iteration != context.iteration:
            return  # a subscriber's empty word, or an answer that a leave overtook
        policy = self._policy
        me = policy.view.nodes.index(context.node)
        refuses = any(m not in event.micro_batches for m in self._expected)
        self._done = event.micro_batches
        self.state = CYCLE_TABLE.step(self.state, "contributed", CycleState.REDUCING)
        word = ControlWord(
            *self._offered(),
            control_word.bits(event.micro_batches),
            control_word.bits((me,)) if refuses or context.leaving else b"",
            event.loss_sum,
            event.gradient_bitmap,
            event.integer_buffers,
            event.agree,
        )
        context.do(Contribute(word))

    def reduced(self, event: RoundReduced) -> None:
        """The round is complete here."""
        context = self._context
        word = event.word
        total = context.config.micro_batches
        missing = control_word.numbers(word.done, total, unset=True)
        if missing:
            self._again(word, missing)
            return
        self._word = word
        self._named = max(self._policy.key, (word.term, word.policy))
        then = CycleState.APPLYING if self._may_apply else CycleState.HOLDING
        self.state = CYCLE_TABLE.step(self.state, "reduced", then)
        if then is CycleState.APPLYING:
            context.do(Apply(context.iteration, word, len(self._policy.view.members)))

    def released(self, join: int) -> None:
        """The joiner has its copy, or the join was given up."""
        self._released[join] = None
        for old in list(self._released)[: -limits.MAX_OPEN_JOINS]:
            del self._released[old]
        if self.state is CycleState.HOLDING:
            self._release()

    def applied(self, event: Applied) -> None:
        """The trainer has the update in the state."""
        context, word = self._context, self._word
        late = self.state is not CycleState.APPLYING or event.iteration != context.iteration
        if late or word is None:
            return
        attempt_id = f"{context.attempt}:{self._policy.view.number}".encode()
        number = event.iteration.to_bytes(8, "little")
        context.commit = hashlib.sha256(context.commit + number + attempt_id).digest()
        context.meta = event.meta
        context.samples += context.config.samples_per_iteration
        context.iteration = event.iteration + 1
        context.attempt = 0
        self._done = ()
        at_end = context.iteration >= context.steps
        if context.iteration % DIGEST_EVERY == 0 or at_end:
            context.do(TakeDigest(context.iteration, context.commit))
        self._word = None
        self._next("applied")

    def stored(self) -> None:
        """A policy's body came in."""
        if self.state is CycleState.FETCHING:
            self._next("body")

    def fetch(self) -> None:
        """Ask the neighbours for the body that is missing."""
        for neighbour in sorted(self._context.links):
            self._context.send(neighbour, PolicyFetch(*self._named))

    def leave(self, why: str, message: str) -> None:
        """This node's part is over."""
        if self.state is not CycleState.OVER:
            self.state = CYCLE_TABLE.step(self.state, "left", CycleState.OVER)
            self._context.do(Depart(why, message))

    @property
    def _policy(self) -> Policy:
        policy = self._context.policy
        if policy is None:
            raise AssertionError("a cycle without a policy")
        return policy

    @property
    def _expected(self) -> tuple[int, ...]:
        """The micro-batches that P shall hold in the running attempt."""
        own = self._policy.micro_batches(self._context.node)
        return tuple(sorted(dict.fromkeys((*self._done, *self._extra, *own))))

    @property
    def _may_apply(self) -> bool:
        return self._state_ready and not self.holding_for

    def _begin(self, *, adopt: bool) -> None:
        c = self._context
        c.do(BeginTraining(c.iteration, adopt, c.meta, c.steps))

    def _release(self) -> None:
        context, word = self._context, self._word
        then = CycleState.APPLYING if self._may_apply else CycleState.HOLDING
        self.state = CYCLE_TABLE.step(self.state, "released", then)
        if then is CycleState.APPLYING and word is not None:
            context.do(Apply(context.iteration, word, len(self._policy.view.members)))

    def _again(self, word: ControlWord, missing: tuple[int, ...]) -> None:
        """Run the round again with what is missing dealt out to those who still compute."""
        context, policy = self._context, self._policy
        nodes = policy.view.nodes
        able = control_word.numbers(word.refusing, len(nodes), unset=True)
        if not able:
            self.leave("left", "every device left at once")
            return
        context.attempt += 1
        mine = nodes.index(context.node) if context.is_member else -1
        dealt = [m for k, m in enumerate(missing) if able[k % len(able)] == mine]
        self._extra = tuple(dealt)
        contributes = context.is_member
        then = CycleState.COMPUTING if contributes else CycleState.REDUCING
        self.state = CYCLE_TABLE.step(self.state, "reduced", then)
        self._start_round()
        if contributes:
            context.do(GiveWork(context.iteration, self._extra))

    def _next(self, event: str) -> None:
        """Go to the next iteration under the policy that the last round named."""
        context = self._context
        policy = self._policy
        if context.iteration >= context.steps:
            self.state = CYCLE_TABLE.step(self.state, event, CycleState.OVER)
            context.do(Depart("steps", ""))
            return
        if self._named > policy.key:
            body = context.policies.get(self._named)
            if body is None:
                self.state = CYCLE_TABLE.step(self.state, event, CycleState.FETCHING)
                return
            was_member = context.is_member
            context.policy = body
            self._switched(policy, body)
            if self.state is CycleState.OVER:
                return
            if was_member and not context.is_member:
                self.state = CYCLE_TABLE.step(self.state, event, CycleState.OVER)
                context.do(Depart("left", ""))
                return
        elif policy.view.nodes == (context.node,) and (context.leaving or context.yielding):
            self.state = CYCLE_TABLE.step(self.state, event, CycleState.OVER)
            context.do(Depart("left" if context.leaving else "yielded", ""))
            return
        self._enter(event)

    def _enter(self, event: str) -> None:
        context = self._context
        policy = self._policy
        if context.iteration >= context.steps:
            self.state = CYCLE_TABLE.step(self.state, event, CycleState.OVER)
            context.do(Depart("steps", ""))
            return
        self._extra = ()
        contributes = context.is_member
        then = CycleState.COMPUTING if contributes else CycleState.REDUCING
        self.state = CYCLE_TABLE.step(self.state, event, then)
        self._serve()
        self._start_round()
        if contributes:
            context.do(GiveWork(context.iteration, policy.micro_batches(context.node)))
        elif self._state_ready:
            context.do(GiveWork(context.iteration, ()))

    def _serve(self) -> None:
        """Hold the state for joiners whose pull begins with this iteration."""
        context, policy = self._context, self._policy
        named = [p.join for p in policy.pulls]
        self._held = {j: i for j, i in self._held.items() if j in named}
        for pull in policy.pulls:
            if pull.join in self._held:
                continue
            self._held[pull.join] = context.iteration if context.is_member else _NEVER
            if context.node in pull.sources and pull.join not in self._released:
                message = PullBegins(
                    pull.join,
                    context.iteration,
                    *policy.key,
                    context.commit,
                    context.samples,
                    context.meta,
                )
                context.send(pull.joiner.node, message)

    def _start_round(self) -> None:
        context, policy = self._context, self._policy
        node = context.node
        member = context.is_member
        pull = policy.pull_of(node)
        parent = policy.parent(node) if member else (pull.parent if pull else None)
        spec = RoundSpec(
            context.lineage,
            policy.view.number,
            policy.version,
            context.iteration,
            context.attempt,
            parent,
            policy.children(node) if member else (),
            policy.subscribers(node) if member else (),
            context.config.chunks,
            member,
        )
        context.do(StartRound(spec))
