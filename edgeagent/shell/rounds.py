"""The rounds: sums along the tree, and what is forwarded of them to a joiner that copies the state.

This module implements the reducer's `Wire`: bulk frames are sent over the links of `Peers`.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, assert_never

from edgeagent.dataplane.forwarding import Forwarding
from edgeagent.dataplane.held_chunks import HeldChunks
from edgeagent.dataplane.integer_format import Integers
from edgeagent.dataplane.reduce import Reducer
from edgeagent.dataplane.weight_chunks import WeightChunks
from edgeagent.dataplane.wire_format import Formats
from edgeagent.held_memory import HeldLayout
from edgeagent.integer_blocks import BLOCK_WORDS
from protocols import effects, events, limits
from protocols.network.link_end import LinkEnd
from protocols.rounds.word_check import WordShape
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent import handover
    from edgeagent.dataplane.gauges import Gauges
    from edgeagent.observer import Observer
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.hub import Hub
    from edgeagent.shell.peers import Peers
    from protocols.rounds.control_word import ControlWord
    from protocols.rounds.round import RoundSpec

# In the round in which a joiner has copied the state, the update waits until at most this many
# bytes of the round are unsent to it, because all members would wait for the rest of them later.
AHEAD_BYTES = 1 << 20
# In all other rounds that a joiner follows, the update waits until at most the bytes of this many
# rounds are unsent to it from here, because what is unsent takes memory.
AHEAD_ROUNDS = 3
FOLLOW_SECONDS = 0.01  # pause before checking this again
# A joiner to which no byte has been sent for so long is cut off. Usually the scheduler gives up its
# join before, which ends its link, too.
FOLLOW_STILL_SECONDS = limits.JOIN_PROGRESS_SECONDS
FOLLOW_TELL_SECONDS = 1.0  # while they take bytes in, the node is told so this often


@dataclass(slots=True)
class _Delay:
    """An update of `node` that waits for joiners, and what hands it over. `sent`: the bytes that
    had been sent to those who are behind at the time `since`, which is when they changed last; -1
    before the first look. `told_at`: when the node was told last."""

    node: object
    iteration: int
    then: Callable[[], None]
    sent: int = -1
    since: float = 0.0
    told_at: float = -math.inf


class Rounds:
    """The rounds of one agent. `contribution` is the vector P in shared memory."""

    def __init__(
        self,
        hub: Hub,
        peers: Peers,
        hello: handover.Hello,
        memory: SharedMemory,
        observer: Observer,
        gauges: Gauges,
    ) -> None:
        self._hub = hub
        self._peers = peers
        self._observer = observer
        self._gauges = gauges
        self._loop = asyncio.get_running_loop()
        self._forwarding = Forwarding()
        self.contribution = memory.contribution.array(hello.accumulate)
        integers = None
        if hello.wide_bytes:
            blocks = hello.chunk_elements // BLOCK_WORDS
            integers = Integers(memory.wide.array("int64"), blocks)
        self.formats = Formats(hello.rounded_chunks, integers)
        buffers = dict(hello.exact_buffers)
        self.held: HeldChunks | None = None
        weights: WeightChunks | None = None
        if hello.slots:
            layout = HeldLayout(hello.slots, hello.elements, hello.chunk_elements)
            self.held = HeldChunks(memory.held, layout)
            weights = WeightChunks(hello, memory)
        chunks = self.held.layout.chunks if self.held is not None else 0
        self.shape = WordShape(hello.micro_batches, hello.parameters, buffers, chunks)
        even, odd = memory.reduced
        self.reducer = Reducer(
            self.contribution,
            (even.array(hello.accumulate), odd.array(hello.accumulate)),
            hello.chunk_elements,
            self,
            self._reduced,
            self.shape,
            lambda: hub.node.context.policies if hub.node is not None else {},
            self._loop.call_soon,
            self._loop.time,
            self.formats,
            self.held,
            self._decided,
            weights,
        )

    def perform(self, effect: effects.RoundEffect) -> None:
        """Perform `effect`."""
        match effect:
            case effects.StartRound(spec):
                self.reducer.start(spec)
            case effects.ServeRound(spec):
                self.reducer.serve(spec)
            case effects.FreezeRound():
                have = self.reducer.freeze()
                # The attempt that follows writes to the memory of sums that are still queued. A
                # neighbour that has not heard of the fence must not get a mixture of both.
                for link in self._peers.links.values():
                    link.drop_sums()
                self._hub.handle(events.Frozen(have))
            case effects.ContributeChunks(chunks):
                self.reducer.contribute_chunks(chunks)
            case effects.Contribute(word):
                self.reducer.contribute(word)
            case effects.HoldWord():
                self.reducer.hold_word()
            case effects.NamePolicy(policy):
                self.reducer.name_policy(policy)
            case effects.PublishChunks():
                self.reducer.publish()
            case _:
                assert_never(effect)

    def arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        """Return where the payload of a frame belongs, None if it is not wanted."""
        return self.reducer.arriving(source, header) if self._hub.node is not None else None

    def forget(self, peer: bytes) -> None:
        """Drop the state of `peer`, the link with which has ended."""
        self.reducer.forget(peer)
        self._forwarding.forget(peer)

    def _reduced(self, spec: RoundSpec, word: ControlWord) -> None:
        """Report to observer, gauges and node that the reducer has completed a round."""
        self._observer.reduced()
        self._gauges.reduced()
        self._hub.handle(events.RoundReduced(spec.iteration, spec.attempt, word))

    def _decided(self, spec: RoundSpec, word: ControlWord) -> None:
        """Report to the node that the reduced control word of a round is here."""
        self._hub.handle(events.RoundDecided(spec.iteration, spec.attempt, word))

    # --- Wire (of the reducer) --------------------------------------------------------------------

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        """Queue a frame of a round. A joiner that does not take in what it follows is cut off,
        because what waits for it takes memory."""
        link = self._peers.links.get(to)
        if link is None:
            return
        if header.kind is not BulkKind.DOWN or self._is_member(to):
            link.send_bulk(header, payload)
        elif self._has_failed(to):
            return  # it would read nothing of this
        elif self._forwarding.waiting(link) + len(payload) > self._most_waiting:
            self._peers.cut(link, "it reads too slowly what is sent to it", LinkEnd.CUT)
        else:
            self._forwarding.send(link, header, payload, hold=self._pulls(to))

    def accuse(self, peer: bytes, reason: str) -> None:
        """End the link to `peer`, which has broken the protocol, and tell the others."""
        self._peers.accuse(peer, reason)

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        """Stop (`hold`) or resume reading bulk frames from `peer`."""
        if (link := self._peers.links.get(peer)) is not None:
            (link.pause_bulk if hold else link.resume_bulk)()

    def discard_bulk(self, peer: bytes) -> None:
        """Stop writing into the buffer of the payload that `peer` is sending."""
        if (link := self._peers.links.get(peer)) is not None:
            link.discard_bulk()

    # --- joiners that follow ------------------------------------------------------------------

    def release(self) -> None:
        """Forward what was held back for joiners that have copied the state by now."""
        self._forwarding.release(self._pulls, self._peers.links)

    def when_followed(self, iteration: int, then: Callable[[], None]) -> None:
        """Call `then`, which hands the update of `iteration` over, once enough of this round is on
        its way to the joiners that follow it. While they take it in, the node is told so, because
        the trainer does not owe an answer before it has been asked.

        After the update they could not get it any more, since its memory is used again. A joiner
        that takes in nothing for long is cut off. `then` is not called if the node has been
        replaced by then.
        """
        self._look_whether_followed(_Delay(self._hub.node, iteration, then))

    def _look_whether_followed(self, delay: _Delay) -> None:
        current, now = self._hub.node, self._loop.time()
        if current is not delay.node:
            return
        self.release()
        copied = current is not None and current.cycle.holds.was_copied
        most = AHEAD_BYTES if copied else AHEAD_ROUNDS * self.contribution.nbytes
        behind = self._forwarding.behind(self._peers.links, most, self._has_failed)
        if not behind:
            delay.then()
            if delay.sent >= 0:
                self._hub.handle(events.UpdateDelayed(delay.iteration))
            return
        sent = sum(link.bulk_bytes_sent for link in behind)
        if sent != delay.sent:
            delay.sent, delay.since = sent, now
            if now - delay.told_at >= FOLLOW_TELL_SECONDS:
                delay.told_at = now
                self._hub.handle(events.UpdateDelayed(delay.iteration))
        elif now - delay.since > FOLLOW_STILL_SECONDS:
            for link in behind:
                self._peers.cut(link, "it reads nothing of what is sent to it", LinkEnd.CUT)
        self._loop.call_later(FOLLOW_SECONDS, partial(self._look_whether_followed, delay))

    def _pulls(self, node: bytes) -> bool:
        """Whether joiner `node` is copying the state from members, this one among them."""
        return self._hub.node is not None and self._hub.node.cycle.holds.is_for(node)

    def _has_failed(self, joiner: bytes) -> bool:
        """Whether the join of `joiner` that the policy names has failed."""
        return self._hub.node is not None and self._hub.node.followers.has_failed(joiner)

    def _is_member(self, node: bytes) -> bool:
        policy = self._hub.node.context.policy if self._hub.node is not None else None
        return policy is not None and policy.view.member(node) is not None

    @property
    def _most_waiting(self) -> int:
        """How many bytes may wait for a joiner that follows the rounds. Updates wait for it before
        that is reached, with one round more on its way."""
        rounds = (AHEAD_ROUNDS + 1) * self.contribution.nbytes
        return max(limits.MAX_SUBSCRIBER_QUEUE_BYTES, rounds)
