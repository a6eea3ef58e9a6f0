"""One node's training loop: compute, reduce, hold while a joiner copies, apply, switch the policy.

- An update is applied only when the round is complete here and contains every micro-batch exactly
  once. The policy that the round's control word names is in force from the next iteration on.
- A round that lacks micro-batches, because a node handed its own back, is run again as a new
  attempt. The others compute what is missing, dealt out by a rule that needs no message.
- Between a fence and its decision nothing is accepted, sent or applied (`freeze.py`), so that what
  this node has reported stays true.
- After the last iteration, which is `steps` or the first whose word says `stop`, a node leaves only
  when a farewell round has shown that all others have applied it, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.ancestry import Past
from protocols.cluster.stripes import begun_anew, owned_by
from protocols.effects import (
    Apply,
    BeginTraining,
    Contribute,
    ContributeChunks,
    Depart,
    Publish,
    PublishChunks,
    ServeRound,
    StartRound,
    TakeDigest,
)
from protocols.events import Applied, ChunksReady, Contributed, RoundReduced
from protocols.member.cycle_table import CYCLE_TABLE, CycleState
from protocols.member.holds import Holds
from protocols.member.learning import Learning
from protocols.member.round_specs import Lanes, finishing_spec, kept_chunks, round_spec
from protocols.rounds import control_word, divergence
from protocols.rounds.claims import claim
from protocols.rounds.control_word import EMPTY, ControlWord
from protocols.scheduler.fence import attempt_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from protocols.events import Published, RoundDecided
    from protocols.member.context import Context
    from protocols.member.copies import Copies
    from protocols.member.mail import Mail
    from protocols.member.trainer_debt import TrainerDebt
    from protocols.rounds.round import Spread
    from protocols.wire.messages import Restart

# After every so many iterations a digest is taken of the whole state, if that is small: of a large
# one as much more seldom as it is larger than `limits.DIGEST_BYTES`.
DIGEST_EVERY = 10
_WRONG_END = (
    "after the last step the training state of this device differed from that of the others: use "
    "the model that another device has saved"
)


def digest_every(state_bytes: int) -> int:
    """Return after every how many iterations a digest of a state of this size is taken.

    A digest of a gigabyte takes seconds of a core on a small device, which then does not train.
    """
    return DIGEST_EVERY * max(1, -(-state_bytes // limits.DIGEST_BYTES))


class Cycle:
    """The training loop of a member, or of a joiner that follows the rounds (a subscriber).

    `offered()` returns the key of the policy that this node's control word names. `switched(old,
    new, why)` is called when a policy comes into force; `why` is the reason for which members that
    it lacks have left. `diverged(nodes)` is called with members whose state was found to differ.
    """

    def __init__(
        self,
        context: Context,
        offered: Callable[[], tuple[int, int]],
        switched: Callable[[Policy, Policy, str], None],
        trainer: TrainerDebt,
        diverged: Callable[[tuple[bytes, ...]], None],
        copies: Copies,
        mail: Mail,
    ) -> None:
        self.state = CYCLE_TABLE.initial
        self._context = context
        self._offered = offered
        self._switched = switched
        self._trainer = trainer
        self._diverged = diverged
        self._copies = copies
        self.holds = Holds(context, copies)
        self.learning = Learning(context, mail, self.was_read, lambda: trainer.has_old_slots)
        self._claim = b""  # digest of the state of the running iteration
        self._lanes = Lanes()
        self._silent: tuple[int, ...] = ()  # members whose state differs in this iteration
        self._anew: tuple[int, ...] = ()  # stripes that begin anew in it, by policies before
        self._word: ControlWord | None = None  # reduced, of the running iteration
        self._named: tuple[int, int] = (0, 0)  # key of the next iteration's policy
        self._given: tuple[int, ...] = ()  # micro-batches the trainer was given ...
        self._given_turn = 0  # ... in this turn of `TrainerDebt`
        self._owed = 0  # answers that the trainer owes
        self._answer: Contributed | None = None  # the trainer's last answer in this iteration
        self._refuses = False  # the trainer has handed back some of this iteration
        self._state_ready = True  # False: the state of `iteration` is still being pulled
        self._restart: Restart | None = None  # the fence's decision that was acted on last
        self._attempt_id = bytes(32)  # of the running attempt
        self._before_id = bytes(32)  # of the attempt that was applied last

    @property
    def over(self) -> bool:
        """Whether this node takes no more part."""
        return self.state is CycleState.OVER

    @property
    def is_finishing(self) -> bool:
        """Whether the running round only finishes what a fence has found begun."""
        decision, at = self._restart, self._context.iteration
        if decision is None or decision.policy.key != self._policy.key:
            return False
        return bool(decision.applied) and decision.iteration == at

    @property
    def round_is_here(self) -> bool:
        """Whether the running iteration's round is complete here, and so decided what follows."""
        return self.state in (CycleState.HOLDING, CycleState.APPLYING)

    def reads_state(self, iteration: int) -> bool:
        """Whether the agent may read the state after the update of `iteration`, so that it must be
        in shared memory: it is hashed, or a joiner may copy it. If the policy does not change and
        has no pulls, no joiner copies."""
        context, after = self._context, iteration + 1
        stops = self._word is not None and self._word.stop  # so this iteration is the last
        hashed = after % DIGEST_EVERY == 0 or after >= context.steps or stops
        policy = context.policy
        if hashed or policy is None or not context.is_member or self._trainer.is_behind:
            return True
        return self.holds.reads(policy) or self._named > policy.key

    def start(self, *, state_ready: bool) -> None:
        """Begin at the context's iteration and policy. `state_ready`: the state of that iteration
        is here, and is not still to be pulled."""
        self._state_ready = state_ready
        if state_ready:
            self._begin(adopt=False)
        self._enter("start")

    def adopted(self, *, has_begun: bool = False) -> None:
        """The state of the running iteration is here: the trainer may begin, unless it `has_begun`
        with a snapshot and has applied the updates since then."""
        self._state_ready = True
        if has_begun:
            self._claim = b""
            self._trainer.began()
        else:
            self._begin(adopt=True)
        self._trainer.give(self._context.iteration, ())
        if self.state is CycleState.HOLDING:
            self._release()

    def ready(self, event: ChunksReady) -> None:
        """Contribute chunks that are ready while the trainer computes the rest of its work, so that
        they travel meanwhile. What their sums contain is only said by the word, which follows when
        the trainer has answered. So they must contain exactly what the trainer is to answer in this
        attempt: if it answers less, the attempt lacks micro-batches and counts for nothing, but if
        it was given more meanwhile, the word would promise what these sums do not have."""
        context = self._context
        if self.state is not CycleState.COMPUTING or context.freeze.holds or self._owed == 0:
            return
        if event.iteration != context.iteration or not self._trainer.is_at(event.turn):
            return
        found = control_word.numbers(event.chunks, context.config.chunks)
        if found and found[0] > 0 and event.micro_batches == self._given != ():
            context.do(ContributeChunks(found))

    def contributed(self, event: Contributed) -> None:
        """The trainer has computed what it was given, or hands the rest back."""
        if event.iteration != self._context.iteration or self._owed == 0:
            return  # a late answer, about work that was handed back or decided otherwise meanwhile
        whole = all(m in event.micro_batches for m in self._given)  # one answer to several requests
        self._owed = 0 if whole else self._owed - 1
        self._answer = event
        self._offer()

    @property
    def owed(self) -> int:
        """How many answers the trainer owes for work of this iteration."""
        return self._owed

    def hand_back(self) -> None:
        """Contribute an empty sum, because the trainer is late: the others do its work."""
        if self.state is CycleState.COMPUTING:
            self._nothing_done()
            self._offer()

    def reduced(self, event: RoundReduced) -> None:
        """The round is complete here: run it again, hold the update, or have it applied."""
        context, word = self._context, event.word
        if context.freeze.holds or not CYCLE_TABLE.allows(self.state, "reduced"):
            return
        if (event.iteration, event.attempt) != (context.iteration, context.attempt):
            return
        if self.state is CycleState.FAREWELL:
            if differing := divergence.differing(word):
                self._found_differing(differing)
            self.state = CYCLE_TABLE.step(self.state, "reduced", CycleState.OVER)
            context.do(Depart("error", _WRONG_END) if context.diverged else Depart("steps", ""))
            return
        if self._is_again("reduced", word):
            return
        self._word = word
        self._named = max(self._policy.key, (word.term, word.policy))
        then = CycleState.APPLYING if self._may_apply else CycleState.HOLDING
        self.state = CYCLE_TABLE.step(self.state, "reduced", then)
        if then is CycleState.APPLYING:
            self._apply(word)

    def decided(self, event: RoundDecided) -> None:
        """Each sum lies at its holders: have the results made of those that this node owns, or run
        the round again if micro-batches are missing in it."""
        context, word = self._context, event.word
        if context.freeze.holds or not CYCLE_TABLE.allows(self.state, "decided"):
            return
        if (event.iteration, event.attempt) != (context.iteration, context.attempt):
            return
        if self._is_again("decided", word) or not context.is_member:
            return
        policy = self._policy
        owned = owned_by(policy.stripes, policy.view.nodes.index(context.node))
        if owned:
            self.state = CYCLE_TABLE.step(self.state, "decided", CycleState.PUBLISHING)
            at, members = (context.iteration, context.attempt), len(policy.view.members)
            anew = begun_anew(policy.stripes, context.iteration)
            lost = tuple(s for s in begun_anew(policy.stripes, context.iteration + 1) if s in owned)
            self._trainer.publish(Publish(*at, word, members, owned, anew, lost))

    def published(self, event: Published) -> None:
        """The trainer has made the results: send them to everyone."""
        context = self._context
        self._trainer.published(event)
        if context.freeze.holds or self.state is not CycleState.PUBLISHING:
            return
        if (event.iteration, event.attempt) == (context.iteration, context.attempt):
            self.state = CYCLE_TABLE.step(self.state, "published", CycleState.REDUCING)
            context.do(PublishChunks())

    def was_read(self) -> None:
        """The state, or the R of the iteration before, need not stay as it is for a copy."""
        if self.state is CycleState.HOLDING and not self._context.freeze.holds:
            self._release()

    def released(self, join: int) -> None:
        """Hold the state for join `join` no longer: the joiner has its copy, or gave up."""
        self.holds.release(join)
        self.was_read()

    def applied(self, event: Applied) -> None:
        """The update is in the state (or is kept for a late trainer): go to the next iteration."""
        context, word = self._context, self._word
        late = self.state is not CycleState.APPLYING or event.iteration != context.iteration
        if late or word is None:
            return
        context.commit = self._next_commit
        context.meta = event.meta or context.meta  # a late trainer tells its own when it catches up
        context.samples += context.config.samples_per_iteration
        context.iteration = event.iteration + 1
        context.attempt = 0
        self._claim, self._silent, self._anew = event.claim, (), ()
        if word.stop:
            context.steps = min(context.steps, context.iteration)
        self._before_id, self._attempt_id = self._attempt_id, bytes(32)
        self._given, self._answer, self._owed, self._refuses = (), None, 0, False
        every = digest_every(context.config.state_bytes)
        hashed = context.iteration % every == 0 or context.is_at_end
        if hashed and not self._trainer.is_stale:
            context.do(TakeDigest(context.iteration, context.commit))
        self._word = None
        self._next("applied")

    def stored(self) -> None:
        """A policy's body came in: go on if this node has waited for it."""
        if self.state is CycleState.FETCHING and not self._context.freeze.holds:
            self._next("body")

    @property
    def lacks_policy(self) -> bool:
        """Whether the policy of the next iteration is still to be fetched. A fence does not end
        that: who lacks it can win no election, and does not know which links it names."""
        waits = self.state in (CycleState.FETCHING, CycleState.FROZEN)
        return (
            waits and self._named > self._policy.key and self._named not in self._context.policies
        )

    def fetch(self) -> None:
        """Ask the neighbours for the body that is missing."""
        self._context.fetch(self._named)

    def leave(self, why: str, message: str) -> None:
        """End this node's part at once, for the reason `why` and with `message` for the user."""
        if self.state is not CycleState.OVER:
            self.state = CYCLE_TABLE.step(self.state, "left", CycleState.OVER)
            self._context.do(Depart(why, message))

    # --- fences -----------------------------------------------------------------------------------

    @property
    def working(self) -> bytes:
        """Bitmap of the micro-batches that are in P, or will be once the trainer has answered."""
        settled = self._owed == 0 and self._answer is not None
        known = self._answer.micro_batches if settled and self._answer else self._given
        return control_word.bits(known)

    @property
    def attempt_ids(self) -> tuple[bytes, bytes]:
        """The names of the running attempt and of the one that was applied last."""
        return self._attempt_id, self._before_id

    def restart(self, decision: Restart) -> None:
        """Go on as a fence has decided; this node is among the members that stay."""
        context = self._context
        old = self._policy
        context.freeze.decided()
        context.policy = decision.policy
        common = Past(decision.iteration + decision.applied, context.lineage, context.ancestors)
        context.lineage = decision.policy.view.lineage
        context.ancestors = common.in_lineage(context.lineage).ancestors
        context.store(decision.policy)
        self._restart = decision
        self.holds.drop()
        self.learning.forget()
        self._named, self._word = decision.policy.key, None
        self._silent = ()
        self._switched(old, decision.policy, "failure")
        # If the decision finishes this iteration, others may have made its update by the policy
        # before. Stripes that begin anew by that do so here, even if they are lost again by now.
        anew, self._anew = (*self._anew, *begun_anew(old.stripes, context.iteration)), ()
        if context.iteration == decision.iteration and decision.applied:
            self._anew = anew
            context.attempt = decision.finish
            self._attempt_id = decision.attempt_id
            self.state = CYCLE_TABLE.step(self.state, "restart", CycleState.REDUCING)
            context.do(StartRound(finishing_spec(context, decision, self._lanes)))
            return
        if decision.applied:
            context.do(ServeRound(finishing_spec(context, decision)))
        self._enter("restart")

    # --- steps ------------------------------------------------------------------------------------

    @property
    def _policy(self) -> Policy:
        policy = self._context.policy
        if policy is None:
            raise AssertionError("a cycle without a policy")
        return policy

    @property
    def _alone(self) -> bool:
        """Whether nobody waits for this node: it is the only member, or reaches no other."""
        return self._policy.view.nodes == (self._context.node,) or self._context.is_isolated

    @property
    def _hands_back(self) -> bool:
        """Whether this node is to be dealt no work, because it is about to go."""
        c = self._context
        return c.leaving or ((c.yielding or c.departs == "standby") and not self._alone)

    @property
    def _may_apply(self) -> bool:
        copied = self.holds.joins or self._copies.is_reading or self.learning.is_busy
        return self._state_ready and not copied

    @property
    def _next_commit(self) -> bytes:
        """The commit id after the update of the running attempt."""
        number = self._context.iteration.to_bytes(8, "little")
        return hashlib.sha256(self._context.commit + number + self._attempt_id).digest()

    def _begin(self, *, adopt: bool) -> None:
        self._claim = b""
        c = self._context
        c.do(BeginTraining(c.iteration, adopt, c.meta, c.steps))
        self._trainer.began()

    def _give(self, micro_batches: tuple[int, ...]) -> None:
        if not self._trainer.give(self._context.iteration, micro_batches):
            self._nothing_done()
            return
        if self._given_turn != self._trainer.turn:
            # The trainer fell behind after it had contributed and begins this iteration anew. Its
            # answer will lack what it computed before, and that is dealt out again, not refused.
            self._given_turn, self._given = self._trainer.turn, ()
        self._given = tuple(sorted(dict.fromkeys((*self._given, *micro_batches))))
        self._owed += 1

    def _nothing_done(self) -> None:
        """Count nothing of this iteration as done here, not even what is computed already."""
        self._given, self._owed = (), 0
        self._answer = Contributed(self._context.iteration, (), 0.0, b"", b"", True)

    def _offer(self) -> None:
        """Contribute P, if the trainer has answered everything and no fence forbids it."""
        context, event = self._context, self._answer
        if self.state is not CycleState.COMPUTING or context.freeze.holds:
            return
        if event is None or self._owed > 0:
            return
        policy = self._policy
        me = policy.view.nodes.index(context.node)
        self._refuses |= any(m not in event.micro_batches for m in self._given)
        self.state = CYCLE_TABLE.step(self.state, "contributed", CycleState.REDUCING)
        word = ControlWord(
            *self._offered(),
            control_word.bits(event.micro_batches),
            control_word.bits((me,)) if self._refuses or self._hands_back else b"",
            event.loss_sum,
            event.gradient_bitmap,
            event.integer_buffers,
            event.agree,
            control_word.bits((me,)) if self._trainer.is_behind else b"",
            event.settings,
            event.other_settings,
            self._own_claim,
            stop=event.stop,
        )
        context.do(Contribute(word))

    @property
    def _own_claim(self) -> bytes:
        """The digest of its state that this node's control word carries, b"" if it claims none."""
        me = self._policy.view.nodes.index(self._context.node)
        return b"" if self._trainer.is_behind else claim(self._claim, me)

    def _found_differing(self, differing: tuple[int, ...]) -> None:
        """Exclude members whose state differs from that of most from this iteration's work."""
        nodes = self._policy.view.nodes
        self._silent = tuple(sorted(dict.fromkeys((*self._silent, *differing))))
        found = tuple(nodes[n] for n in differing if n < len(nodes))
        self._diverged(found)
        if self._context.node in found:
            self._nothing_done()

    def _release(self) -> None:
        word = self._word
        then = CycleState.APPLYING if self._may_apply else CycleState.HOLDING
        self.state = CYCLE_TABLE.step(self.state, "released", then)
        if then is CycleState.APPLYING and word is not None:
            self._apply(word)

    def _apply(self, word: ControlWord) -> None:
        """Have the update of the running iteration applied, and kept for joiners that copy."""
        iteration, policy = self._context.iteration, self._policy
        members = len(policy.view.members)
        self._copies.applying(iteration, word.encode(), members, self._next_commit)
        stripes = self.learning.stripes(policy) if self._context.is_member else ()
        anew = tuple(sorted({*self._anew, *begun_anew(policy.stripes, iteration)}))
        now = self.learning.goes_on(policy, word)
        self._trainer.apply(Apply(iteration, word, members, stripes, anew, now))

    def _is_again(self, event: str, word: ControlWord) -> bool:
        """Run the round again if its word lacks micro-batches or shows that states differ; return
        whether it does."""
        differing = divergence.differing(word)
        if differing:
            self._found_differing(differing)
        total = self._context.config.micro_batches
        missing = control_word.numbers(word.done, total, unset=True)
        if missing or differing:
            self._again(event, word, missing)
        return bool(missing or differing)

    def _again(self, event: str, word: ControlWord, missing: tuple[int, ...]) -> None:
        """Run the round again, with what is missing dealt out to those that can still compute."""
        context, policy = self._context, self._policy
        nodes = policy.view.nodes
        willing = control_word.numbers(word.refusing, len(nodes), unset=True)
        late = control_word.numbers(word.late, len(nodes))
        able = tuple(n for n in willing if n not in (*late, *self._silent)) or willing
        if not able:
            self.leave(context.departs or "left", "every device left at once")
            return
        context.attempt += 1
        if not context.is_member:
            self.state = CYCLE_TABLE.step(self.state, event, CycleState.REDUCING)
            self._start_round(())
            return
        mine = nodes.index(context.node)
        dealt = tuple(m for k, m in enumerate(missing) if able[k % len(able)] == mine)
        # The trainer no longer owes what was handed back, since others compute it now.
        self._given = self._answer.micro_batches if self._answer else self._given
        self.state = CYCLE_TABLE.step(self.state, event, CycleState.COMPUTING)
        self._start_round(())
        if dealt and context.diverged:  # nobody else can compute it, and this node must not
            self.leave("diverged", "")
            return
        if dealt and mine in late:  # all who could compute are late, so the late ones are asked
            self._given, self._owed, self._answer = dealt, 1, None
            self._given_turn = self._trainer.turn
            self._trainer.give_anyway(context.iteration, dealt)
        elif dealt:
            self._give(dealt)
        self._offer()

    def _next(self, event: str) -> None:
        """Go to the next iteration under the policy that the last round named."""
        context = self._context
        policy = self._policy
        if self._named > policy.key:
            body = context.policies.get(self._named)
            if body is None:
                then = CycleState.FROZEN if self._context.freeze.holds else CycleState.FETCHING
                self.state = CYCLE_TABLE.step(self.state, event, then)
                return
            was_member = context.is_member
            context.policy = body
            self._switched(policy, body, "leave")
            if was_member and not context.is_member:
                expelled = context.node in body.view.expelled
                self._end(event, "removed" if expelled else context.parts_for)
                return
        elif context.departs in ("left", "yielded") and self._alone:
            self._end(event, context.departs)
            return
        if self._context.freeze.holds:
            self.state = CYCLE_TABLE.step(self.state, event, CycleState.FROZEN)
        else:
            self._enter(event)

    def _end(self, event: str, why: str) -> None:
        self.state = CYCLE_TABLE.step(self.state, event, CycleState.OVER)
        self._context.do(Depart(why, self._context.parting_words(why)))

    def _enter(self, event: str) -> None:
        """Begin the context's iteration, or go on with it as the last fence has decided."""
        context, policy, decision = self._context, self._policy, self._restart
        work = policy.micro_batches(context.node) if context.is_member else ()
        spread: tuple[Spread, ...] = ()
        if decision is not None and decision.policy.key == policy.key:
            at = decision.iteration + decision.applied
            if context.iteration == at:
                context.attempt = decision.redo
                mine = decision.work[policy.view.nodes.index(context.node)]
                work = control_word.numbers(mine, context.config.micro_batches)
                spread = () if decision.applied else kept_chunks(context, decision)
        if context.is_at_end and context.is_member:
            self.state = CYCLE_TABLE.step(self.state, event, CycleState.FAREWELL)
            self._start_round(())
            offered = self._offered()
            word = replace(EMPTY, term=offered[0], policy=offered[1], claims=self._own_claim)
            context.do(Contribute(word))
            return
        contributes = context.is_member
        then = CycleState.COMPUTING if contributes else CycleState.REDUCING
        self.state = CYCLE_TABLE.step(self.state, event, then)
        self.holds.begin(policy, is_whole=not self._trainer.is_stale)
        if contributes:
            self.learning.begin(policy)
        self._start_round(spread)
        if not contributes:
            if self._state_ready:
                self._trainer.give(context.iteration, ())
            return
        fresh = tuple(m for m in work if m not in self._given)
        if fresh or (self._answer is None and self._owed == 0):
            self._give(fresh)
        self._offer()

    def _start_round(self, spread: tuple[Spread, ...]) -> None:
        context = self._context
        self._attempt_id = attempt_id(context.lineage, self._policy.key, context.attempt)
        spec = round_spec(
            context,
            self._policy,
            self._restart,
            context.iteration,
            context.attempt,
            contributes=context.is_member,
            spread=spread,
            silent=self._silent,
            lanes=self._lanes,
        )
        context.do(StartRound(spec))
