"""The trainer's side of every round: does what the agent's messages say.

The script's thread is the only thread. It works on the agent's messages inside `update()`, the
loader's `next()`, `request_node_exit()` and `close()` alone; the agent keeps the cluster alive. The
training state changes between `Reduced` and `Applied`, and with a `Begin` that has `adopt`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING

from edgeagent.errors import AgentLost, EdgeAgentError
from edgeagent.handover import (
    Begin,
    Costs,
    End,
    EndHeard,
    ExitRequested,
    Finished,
    Progressed,
    Publish,
    Reduced,
    SaveAside,
    Saved,
    Settle,
    Stepped,
    Work,
)
from edgeagent.trainer import endings

if TYPE_CHECKING:
    from edgeagent.handover import Message
    from edgeagent.trainer.client import AgentClient
    from edgeagent.trainer.interrupts import Interrupts
    from edgeagent.trainer.own_threads import OwnThreads
    from edgeagent.trainer.process import AgentConnection
    from edgeagent.trainer.saving import Saving
    from edgeagent.trainer.state import TrainingState


# How often the agent is told how far a round of local steps is: often beside any deadline.
TELL_EVERY_S = 1.0
# Half-way through a round that has taken so long it is told in any case, so that the plan of the
# next round can follow this round's speed.
WORTH_TELLING_S = 0.2


class Service:
    """What the agent wants of this trainer, and what the trainer tells it.

    `pending` has the numbers of the micro-batches that are still to be computed, with subnets those
    of the steps. `steps` is the iteration at which training ends, 0 for never. `loss` is the
    cluster's mean loss in the last
    iteration that was applied here, NaN before that.
    """

    def __init__(self, state: TrainingState, saving: Saving, steps: int) -> None:
        self.steps = steps
        self.loss = math.nan
        self.pending: deque[int] = deque()
        self.began = False
        self.ended: End | None = None
        self.exit_sent = False
        self.failure = ""  # why nothing can be served any more
        self.client: AgentClient | None = None
        self.agent: AgentConnection | None = None
        self.interrupts: Interrupts | None = None
        self.threads: OwnThreads | None = None
        self._state = state
        self._saving = saving
        self._leaving = False  # handing back all work until the agent says End
        self._round = -1  # the iteration that this node's sum belongs to; -1: none yet
        self._turn = 0  # grows when the agent takes back what was computed of an iteration
        self._told = (
            0  # micro-batches of this round of which the agent knows that they are computed
        )
        self._told_at = 0.0  # when it was told, or given its work, on the monotonic clock
        self._told_half = False  # whether it was told since half of the work is done
        self._share = 0  # micro-batches of this round that were dealt to this node to be computed
        self._parts = 0  # in how many equal parts they are computed: steps, or themselves
        if state.shards is not None:
            state.shards.owed.done = lambda: self.tell(Stepped(state.iteration - 1))

    # --- where the trainer stands -----------------------------------------------------------------

    @property
    def was_stepped(self) -> bool:
        """Whether the last thing that was decided is a step, and no new beginning."""
        return self._round == -1

    @property
    def has_computed(self) -> bool:
        """Whether this trainer has computed a part of the running iteration."""
        return self._round >= 0 and bool(self._state.micro_batches)

    def is_undecided(self, before: int) -> bool:
        """Return whether `update()` has still to wait for the round of iteration `before`."""
        same = self._state.iteration == before and self._round == before
        return same and not self.pending and self.ended is None

    def gets_on(self) -> None:
        """Tell the agent about once a second, and half-way, how far this trainer is in a round of
        local steps: so that a long round is not taken for a hung trainer, and so that the next
        round can be planned by this one's speed."""
        if self._state.outer is None or not self._parts:
            return
        self.tell_cost()
        done, now, seconds = self._state.progress, time.monotonic(), self._state.compute_seconds
        part = 1 - len(self.pending) / self._parts
        half = part >= 0.5 and not self._told_half and seconds >= WORTH_TELLING_S
        if now < self._told_at + TELL_EVERY_S and not half:
            return
        fresh = done - self._told
        self.tell(Progressed(self._round, fresh, self._turn, self._share, part, seconds))
        self._told, self._told_at, self._told_half = done, now, self._told_half or part >= 0.5

    def tell_cost(self) -> None:
        """Tell the agent what parts of the model cost, once a step has shown it."""
        subnets = self._state.subnets
        if subnets is not None and (cost := subnets.new_cost()) is not None:
            self.tell(Costs(cost.fixed, cost.square))

    @property
    def agent_speaks(self) -> bool:
        """Whether the agent is what the user started, and shows what ends the training."""
        return self.agent is not None and not self.agent.plain

    # --- the agent's messages ---------------------------------------------------------------------

    def advance(self) -> None:
        """Wait for one message and do what it says.

        Raises `EdgeAgentError` if nothing can be served any more: `AgentLost` without an agent,
        `AgentRefused` if the agent has ended with an error.
        """
        client = self.client
        if client is None:
            raise AgentLost("the trainer has no agent")
        self.pass_interrupt_on()
        self._step_slots_while_waiting(client)
        message = client.receive()
        try:
            # Computing need not wait for slots, and who ends hears of it first.
            if not isinstance(message, Work | End):
                self.settle_slots()
            self._act_on(client, message)
        except EdgeAgentError as error:
            self.failure = str(error)
            raise

    def settle_slots(self) -> None:
        """Make the step of divided slots that was put off, if there is one."""
        if (shards := self._state.shards) is not None:
            shards.owed.all()

    def _step_slots_while_waiting(self, client: AgentClient) -> None:
        """Make that step for as long as the agent says nothing."""
        shards = self._state.shards
        while shards is not None and shards.owed.owed is not None:
            client.poll()
            if client.waiting():
                return
            shards.owed.some()

    def settle_early(self) -> bool:
        """Apply the round if it was completed without this node's help; return whether it was."""
        client = self.client
        if client is None:
            return False
        client.poll()
        if self.threads is not None:  # here, as no micro-batch is being computed
            self.threads.divide_among(client.agents_here)
        if any(isinstance(message, Settle) for message in client.waiting()):
            self.settle_slots()
        if not any(self._decides(message) for message in client.waiting()):
            return False
        before = self._state.iteration
        self.pending.clear()
        while self.is_undecided(before) and client.waiting():
            self.advance()
        return True

    def _decides(self, message: Message) -> bool:
        """Return whether what this trainer still has to compute is of no use after `message`."""
        if isinstance(message, Work):
            return message.turn != self._turn
        if isinstance(message, Settle):
            return message.decides
        return isinstance(message, Publish | Reduced | Begin | End)

    def _act_on(self, client: AgentClient, message: Message) -> None:
        if isinstance(message, Begin):
            self._on_begin(message)
        elif isinstance(message, Work):
            self._on_work(client, message)
        elif isinstance(message, Reduced):
            self.pending.clear()
            applied = self._state.apply(message)
            self.loss = applied.loss
            if self._state.subnets is not None and math.isfinite(applied.loss):
                self._state.subnets.last_loss = applied.loss
            self._round = -1
            client.send(applied)
            self._saving.applied(applied.meta)
        elif isinstance(message, Publish):
            self.pending.clear()
            client.send(self._state.publish(message))
        elif isinstance(message, Settle):
            if message.decides:
                self.pending.clear()
        elif isinstance(message, SaveAside):
            client.send(self._saving.aside(message.keep))
        elif isinstance(message, End):
            self._on_end(message)
        else:
            raise EdgeAgentError(f"the agent sent {type(message).__name__}, which it never should")

    def _on_begin(self, begin: Begin) -> None:
        if begin.adopt:
            self._state.adopt(begin.iteration, begin.meta)
            self._saving.changed(begin.meta)
            self.loss = math.nan  # that of the last iteration is not known here
        elif begin.iteration != self._state.iteration:
            raise EdgeAgentError("the agent began at another iteration than the trainer's")
        self.began = True
        self.steps = begin.steps
        self.pending.clear()
        self._round = -2  # nothing was stepped: update() must not take this for a step

    def _on_work(self, client: AgentClient, work: Work) -> None:
        if not self.began or work.iteration != self._state.iteration:
            raise EdgeAgentError("the agent gave work of another iteration than the trainer's")
        if (self._round, self._turn) != (work.iteration, work.turn):
            self._state.start_iteration(work.turn)
            self._round, self._turn = work.iteration, work.turn
            self.pending.clear()
            self._share, self._parts, self._told_half = 0, 0, False
        self._told, self._told_at = self._state.progress, time.monotonic()
        if not self._leaving and (dealt := self._state.deal(work.micro_batches)):
            self.pending.extend(dealt)
            self._share += len(work.micro_batches)
            self._parts += len(dealt)
        if not self.pending:
            client.send(self._state.contribution())

    def _on_end(self, end: End) -> None:
        self.ended = end
        self.tell(EndHeard())
        self.pending.clear()
        self._state.end()
        endings.agent_speaks(False)
        if self.interrupts is not None:
            self.interrupts.restore()
        self._saving.finish()
        if self.began and end.whole:
            self._state.buffers.restore()  # a micro-batch that was handed back has changed them
            self._saving.at_end()
        self.tell(Saved(self._saving.saved, self._saving.error))
        if end.why == "error":
            raise endings.AgentRefused(end.message, end.exit_status, shown=True)
        if end.exit_status and not self.agent_speaks:  # expelled: the loader ends, the model stays
            endings.fail_at_exit(end.exit_status)

    # --- what the trainer says --------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Send `message`, unless there is no agent or its end of the socket is closed."""
        open_still = self.agent is not None and self.agent.connection.fileno() >= 0
        if self.client is not None and open_still:
            self.client.send(message)

    def ask_exit(self) -> None:
        """Tell the agent, once, that this device shall leave."""
        if not self.exit_sent:
            self.exit_sent = True
            self.tell(ExitRequested())

    def pass_interrupt_on(self) -> None:
        """Have the device leave if the user has pressed Ctrl+C in a plain script."""
        if self.interrupts is not None and self.interrupts.asked:
            self.interrupts.drain()
            self.ask_exit()

    def leave(self) -> None:
        """Hand back all work, and serve until the agent says that the others go on without."""
        self._leaving = True
        self.pending.clear()
        self._state.guards.script_ran()
        if self._round >= 0 and self.client is not None:
            self.client.send(self._state.contribution())
        while self.ended is None:
            self.advance()

    def hang_up(self, error: str) -> None:
        """Say the last word, with what went wrong, and end the agent's service."""
        if self.client is not None and self.agent is not None:
            self.client.send(Finished(error, self._saving.saved, self._saving.newest))
            self.client.close()
            self.agent.finish()
        if self.interrupts is not None:
            self.interrupts.restore()
