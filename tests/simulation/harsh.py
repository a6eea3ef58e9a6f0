"""The small world with faults: a network that fails in every known way, devices that die or sleep.

- The control frames and the bulk frames of one direction of a link are two streams: they arrive in
  order, and nothing is lost while the link lasts, except for the faults that `faults.py` draws.
- While a direction is blocked its frames wait and dials fail. A host that has heard nothing for the
  silence time-out is told so, as the agent's shell does.
- What is on its way when a link ends is lost.
- A device that sleeps takes nothing. When it wakes, it takes in order what came meanwhile.
- Each device has a clock of its own, which drifts by up to 1e-3 and may jump ahead (but never back,
  because nodes see a monotonic clock).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from protocols import events
from protocols.cluster.founding import GIVE_UP_SECONDS
from protocols.errors import RemoteProtocolError
from protocols.member.node import Node
from protocols.network.link_end import LinkEnd
from protocols.rounds import control_word
from protocols.wire import codec
from protocols.wire.messages import EVERYONE, Message
from tests.simulation.faults import HITTING_KINDS, KINDS, Intensities, stream
from tests.simulation.gathering import Gathering
from tests.simulation.host import Host
from tests.simulation.narrow import LARGE_FRAME, SMALL_FRAME, Narrow
from tests.simulation.seeker import Seeker
from tests.simulation.training import KINDS as KINDS_OF_TRAINING
from tests.simulation.truth import Truth
from tests.simulation.waits import Waits
from tests.simulation.world import World, decoded, member

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.cluster.view import Member
    from protocols.rounds.round import RoundSpec
    from tests.simulation.host import Reduce

SILENCE_SECONDS = (1.5, 3.0)  # a random time-out between these, as real ones follow the delay
LATE_SECONDS = 1.5  # by how much a frame comes late at most
DIAL_SECONDS = (0.5, 3.0)  # after how long a dial fails if nobody answers
RESET_SECONDS = 0.5  # within this time old connections of a device that came back are reset
REJOIN_SECONDS = 0.5
UNREAD = 0.2  # how likely a process dies with bytes unread, so that its system sends resets

Pair = tuple[bytes, bytes]


@dataclass
class Ambush:
    """A fault at a certain message: `strike(sender, receiver)` is called when the `left`th message
    of this kind is on its way."""

    kind: type[Message]
    left: int
    strike: Callable[[Host, Host], None]


class HarshWorld(World):
    """Hosts that look for each other, over a network with faults."""

    def __init__(
        self, seed: int, intensities: Intensities, *, micro_batches: int, steps: int
    ) -> None:
        super().__init__(seed, micro_batches=micro_batches, steps=steps)
        self.intensities = intensities
        self.fired: dict[str, int] = {}
        self.truth = Truth(self)
        self.seekers: dict[bytes, Seeker] = {}
        self.dice = {kind: stream(seed, kind) for kind in KINDS}
        self._unread = stream(seed, "unread")
        self.log: list[str] | None = None  # every event, if histories are to be compared
        self.deserted: list[str] = []  # hosts that gave up finding others that were there
        self._links = 0  # number of links opened so far; the last one's number
        self._blocked: dict[Pair, int] = {}  # direction -> how many faults block it
        self._held: dict[Pair, list[Callable[[], None]]] = {}  # frames of blocked directions
        self._opened: dict[Pair, float] = {}  # when a direction was last unblocked
        # (sender, number of the link) -> when the last frame that was sent arrives
        self._control: dict[tuple[bytes, int], float] = {}
        self._bulk: dict[tuple[bytes, int], float] = {}
        self.ambushes: list[Ambush] = []
        self.narrow = Narrow(self)
        self.waits = Waits(self)
        self._frame_kinds = any(getattr(intensities, k) for k in ("loss", "delay", "reorder"))
        self._frame_kinds |= bool(intensities.duplicate or intensities.truncate)

    def fire(self, kind: str) -> None:
        """Note that a fault of this kind has happened."""
        self.fired[kind] = self.fired.get(kind, 0) + 1
        if kind in HITTING_KINDS:
            self.waits.disturb()

    def happens(self, kind: str) -> bool:
        """Whether a fault of this kind happens to the frame at hand."""
        chance = getattr(self.intensities, kind)
        if chance and self.dice[kind].random() < chance:
            self.fire(kind)
            return True
        return False

    # --- frames -------------------------------------------------------------------------------

    def post(self, sender: Host, to: bytes, frame: bytes) -> None:
        """Send a control frame, with the faults that happen to it."""
        link = sender.ends.get(to)
        if link is None:
            return
        if self.ambushes:
            self._ambushed(sender, sender.links[to], frame)
        what: Callable[[Host], None] = partial(self._hears, sender.me.node, frame)
        late = 0.0
        copies = 1
        if self._frame_kinds:
            if decoded(frame).tags.destination != EVERYONE and self.happens("loss"):
                return
            late = self.dice["delay"].uniform(0.1, LATE_SECONDS) if self.happens("delay") else 0.0
            copies = 2 if self.happens("duplicate") else 1
            if self.happens("truncate"):
                cut = frame[: self.dice["truncate"].randrange(1, len(frame))]
                what = partial(self._hears_half, sender.me.node, cut)
            if self.happens("reorder"):
                extra = self.dice["reorder"].uniform(0.0, LATE_SECONDS)
                arrive = partial(self._pass, sender, to, link, what)
                self.later(self.delay() + extra, arrive)
                copies -= 1
        for _ in range(copies):
            self._queue_up(self._control, sender, to, link, late, len(frame), what)

    def _ambushed(self, sender: Host, host: Host, frame: bytes) -> None:
        message = decoded(frame).message
        for ambush in list(self.ambushes):
            if isinstance(message, ambush.kind):
                ambush.left -= 1
                if ambush.left == 0:
                    self.ambushes.remove(ambush)
                    self.later(0.0, partial(ambush.strike, sender, host))

    def stream(
        self, sender: Host, to: bytes, what: Callable[[Host], None], size: int = LARGE_FRAME
    ) -> None:
        """Send a bulk frame."""
        link = sender.ends.get(to)
        if link is not None:
            self._queue_up(self._bulk, sender, to, link, 0.0, size, what)

    def probe(self, host: Host, node: bytes) -> None:
        """Probe a link; if paths may swallow large frames, with a large one, so that it is
        noticed."""
        if self.narrow.active:
            self.stream(host, node, partial(self._probed, host))
        else:
            super().probe(host, node)

    def _probed(self, sender: Host, host: Host) -> None:
        host.probed(sender)

    def _queue_up(
        self,
        streams: dict[tuple[bytes, int], float],
        sender: Host,
        to: bytes,
        link: int,
        late: float,
        size: int,
        what: Callable[[Host], None],
    ) -> None:
        key = (sender.me.node, link)
        at = max(streams.get(key, 0.0), self.now + self.delay() + late)
        streams[key] = at
        is_bulk = streams is self._bulk
        self.narrow.sent((*key, is_bulk), size)
        self.later(at - self.now, partial(self._arrive, sender, to, link, is_bulk, size, what))

    def _arrive(
        self,
        sender: Host,
        to: bytes,
        link: int,
        is_bulk: bool,
        size: int,
        what: Callable[[Host], None],
    ) -> None:
        """Deliver a frame, unless the direction is blocked, or the link has ended or swallows
        it."""
        pair = (sender.me.node, to)
        again = partial(self._arrive, sender, to, link, is_bulk, size, what)
        if self._blocked and pair in self._blocked:
            self._held.setdefault(pair, []).append(again)
            return
        host = self.hosts[to]
        if host.gone is not None or host.ends.get(sender.me.node) != link:
            return
        if not self.narrow.keeps((sender.me.node, link, is_bulk), to, size, again):
            self.arrives()
            what(host)

    def _pass(self, sender: Host, to: bytes, link: int, what: Callable[[Host], None]) -> None:
        """Deliver something small that is not part of a stream's order, such as a reset."""
        pair = (sender.me.node, to)
        if pair in self._blocked:
            again = partial(self._pass, sender, to, link, what)
            self._held.setdefault(pair, []).append(again)
            return
        host = self.hosts[to]
        if host.gone is None and host.ends.get(sender.me.node) == link:
            self.arrives()
            what(host)

    def _hears(self, sender: bytes, frame: bytes, host: Host) -> None:
        host.handle(events.Received(sender, decoded(frame)))

    def _hears_half(self, sender: bytes, frame: bytes, host: Host) -> None:
        """Do what the shell does with a malformed frame: close the link."""
        try:
            codec.decode(frame)
        except RemoteProtocolError:
            self.waits.breaks += 1
            self.reset_end(self.hosts[sender], host.me.node, host.ends[sender], LinkEnd.RESET)
            self.end(host, sender, LinkEnd.PROTOCOL_ERROR)
        else:
            raise AssertionError("a truncated frame was taken for a whole one")

    # --- links --------------------------------------------------------------------------------

    def dial(self, host: Host, who: Member) -> None:
        assert host.node is not None
        if who.node in host.node.context.links:
            return
        other = self.hosts.get(who.node)
        there = other is not None and self.reachable(host, other)
        if other is None or not there:
            wait = self.random.uniform(*DIAL_SECONDS)
            failed = events.DialFailed(who.node)
            self.later(wait, partial(host.awake, host.life, partial(host.handle, failed)))
        elif other.node is None or host.me.node not in other.trusted:
            host.handle(events.DialFailed(who.node))
        else:
            self.end(host, who.node, LinkEnd.GOODBYE)  # a link that was still closing
            self.end(other, host.me.node, LinkEnd.REPLACED)
            self._links += 1
            for a, b in ((host, other), (other, host)):
                a.links[b.me.node], a.ends[b.me.node] = b, self._links
            self.narrow.linked(host, other, self._links)
            host.handle(events.LinkUp(other.me))
            other.handle(events.LinkUp(host.me))

    def reachable(self, host: Host, other: Host) -> bool:
        """Whether a question of `host` would be answered by `other`."""
        a, b = host.me.node, other.me.node
        open_ = (a, b) not in self._blocked and (b, a) not in self._blocked
        return open_ and other.gone is None and not other.asleep and self.hosts.get(b) is other

    def passes(self, sender: Host, host: Host) -> bool:
        """Whether frames of any length get from `sender` to `host`."""
        narrow = self.narrow.is_open((sender.me.node, host.me.node))
        return not self.is_shut(sender, host) and not narrow

    def end(self, host: Host, peer: bytes, why: LinkEnd) -> None:
        """End the link to `peer` at the end of `host`."""
        if host.ends.pop(peer, None) is not None:
            del host.links[peer]
            self.narrow.gone(host, peer)
            if host.gone is None:
                host.handle(events.LinkDown(peer, why))

    def hang_up(self, host: Host, node: bytes) -> None:
        """Close a link with a goodbye behind all that was sent, as the transport does."""
        link = host.ends.get(node)
        if link is None:
            return
        me = host.me.node
        for streams in (self._control, self._bulk):
            if (me, link) in streams:
                streams[me, link] = max(streams[me, link], self._control.get((me, link), 0.0))

        def goodbye(other: Host) -> None:
            self.end(other, me, LinkEnd.GOODBYE)

        late = max(0.0, self._bulk.get((me, link), 0.0) - self.now)
        self._queue_up(self._control, host, node, link, late, SMALL_FRAME, goodbye)
        self.end(host, node, LinkEnd.GOODBYE)

    def reset_end(
        self, other: Host, gone: bytes, link: int, why: LinkEnd, most: float = 0.0
    ) -> None:
        """Tell `other`, a moment later, that its connection to `gone` has ended for the reason
        `why`; the system of `gone` does that, or a device on the path."""

        def told(at: Host) -> None:
            self.end(at, gone, why)

        sender = self.hosts[gone]
        wait = self.random.uniform(0.0, most) if most else self.delay()
        self.later(wait, partial(self._pass, sender, other.me.node, link, told))

    def close(self, host: Host) -> None:
        for node in list(host.ends):
            self.hang_up(host, node)

    # --- faults -------------------------------------------------------------------------------

    def cut(self, a: Host, b: Host) -> None:
        """Break a link; each end notices at its own moment."""
        link = a.ends.get(b.me.node)
        if link is not None:
            self.reset_end(a, b.me.node, link, LinkEnd.RESET)
            self.reset_end(b, a.me.node, link, LinkEnd.RESET)

    def kill(self, host: Host) -> None:
        """Kill a process as `kill -9` does: every neighbour sees its connections end, each at its
        own moment. If bytes were unread, they end by a reset, which proves nothing."""
        self.keepers.goes(host)
        host.gone = "killed"
        for other in list(host.links.values()):
            unread = self._unread.random() < UNREAD
            why = LinkEnd.RESET if unread else LinkEnd.PROCESS_ENDED
            self.reset_end(other, host.me.node, host.ends[other.me.node], why)

    def power_off(self, host: Host) -> None:
        """Switch a device off: nothing comes from it any more, neither a goodbye nor a reset."""
        self.keepers.goes(host)
        host.gone = "powered off"
        for pair in self._held:
            if pair[0] == host.me.node:
                self._held[pair] = []
        for other in list(host.links.values()):
            self._listen(other, host)

    def block(self, pairs: Iterable[Pair], seconds: float) -> None:
        """Let nothing pass in these directions for so many seconds."""
        blocked = list(pairs)
        for a, b in blocked:
            self._blocked[a, b] = self._blocked.get((a, b), 0) + 1
            sender, host = self.hosts.get(a), self.hosts.get(b)
            if self._blocked[a, b] == 1 and host is not None and sender is not None:
                self._listen(host, sender)
        self.later(seconds, partial(self._unblock, blocked))

    def _unblock(self, pairs: list[Pair]) -> None:
        self.waits.disturb()
        for pair in pairs:
            self._blocked[pair] -= 1
            if self._blocked[pair] == 0:
                del self._blocked[pair]
                self.heard(pair)
                for frame in self._held.pop(pair, []):
                    self.later(0.0, frame)

    def pause(self, host: Host, seconds: float) -> None:
        """Have a device sleep for a while, as a laptop with a shut lid."""
        if host.asleep or host.gone is not None:
            return
        host.asleep = True
        for other in list(host.links.values()):
            self._listen(other, host)
        self.later(seconds, partial(self._wake, host))

    def _wake(self, host: Host) -> None:
        host.asleep = False
        self.waits.disturb()
        if host.gone is not None:
            return
        for node, other in list(host.links.items()):
            self.heard((host.me.node, node))
            if self._is_mute(other, host):
                self._listen(host, other)  # its own sleep does not count, so the time begins anew
        waiting, host.waiting = host.waiting, []
        for what in waiting:
            what()
        self.arm(host)

    def clock_step(self, host: Host, seconds: float) -> None:
        """Let the clock of `host` jump ahead."""
        host.offset += seconds
        host.armed = float("inf")
        self.arm(host)

    # --- silence ------------------------------------------------------------------------------

    def is_shut(self, sender: Host, host: Host) -> bool:
        """Whether no packet of `sender` reaches `host`."""
        off = sender.gone == "powered off" or self.hosts[sender.me.node] is not sender
        return off or sender.asleep or (sender.me.node, host.me.node) in self._blocked

    def _is_mute(self, sender: Host, host: Host) -> bool:
        """Whether `host` hears nothing of `sender`."""
        return self.is_shut(sender, host) or self.narrow.is_mute(sender, host.me.node)

    def listen_to(self, node: bytes, sender: bytes) -> None:
        """Begin to watch whether `node` hears nothing of `sender` from now on."""
        self._listen(self.hosts[node], self.hosts[sender])

    def heard(self, pair: Pair) -> None:
        """Note that one cause of silence is over; if it was the last one, the receiver hears
        again."""
        sender, host = (self.hosts.get(node) for node in pair)
        if sender is not None and host is not None and not self._is_mute(sender, host):
            self._opened[pair] = self.now

    def _listen(self, host: Host, sender: Host) -> None:
        """`host` hears nothing of `sender` from now on: look after the time-out whether it still
        does not."""
        link = host.ends.get(sender.me.node)
        if link is not None:
            wait = self.random.uniform(*SILENCE_SECONDS)
            self.later(wait, partial(self._silence, host, sender, link, self.now))

    def _silence(self, host: Host, sender: Host, link: int, since: float) -> None:
        node = sender.me.node
        ended = host.gone is not None or host.asleep or host.ends.get(node) != link
        if ended or not self._is_mute(sender, host):
            return
        if self._opened.get((node, host.me.node), -1.0) <= since:
            self.fire("silence")
            self.narrow.silent(host, node)
            host.handle(events.Silent(node))

    # --- devices ------------------------------------------------------------------------------

    def start(self, number: int, incarnation: int = 1, *, first: bool = False) -> Host:
        """Switch a device on; its agent looks for others before it founds, unless it is the
        `first`."""
        who = member(number, incarnation)
        before = self.hosts.get(who.node)
        host = self.hosts[who.node] = Host(self, who)
        host.apart = number % 2 == 1
        if before is not None:
            for other in list(self.hosts.values()):
                if (link := other.ends.get(who.node)) is not None:
                    self.reset_end(other, who.node, link, LinkEnd.RESET, RESET_SECONDS)
        drift = self.intensities.drift
        host.rate = 1.0 + self.dice["drift"].uniform(-drift, drift)
        host.offset = self.random.uniform(0.0, 1000.0)
        if drift:
            self.fire("drift")
        self.seekers[who.node] = Seeker(self, host, first=first)
        return host

    def begin(self, host: Host) -> Node:
        """Give `host` a new node, in the same process."""
        self.give_up(host)
        host.node = Node(self.config(host.me), self.planner)
        return host.node

    def give_up(self, host: Host) -> None:
        """Drop the node of `host` and its links; the process goes on as a new incarnation."""
        if host.node is not None:
            joining = host.node.joining
            if host.node.was_member or (joining is not None and joining.stands_by):
                host.spoilt, host.trained = False, True
                past = host.node.context.past  # a late trainer lacks some of these updates
                host.past = replace(past, iteration=host.iteration)
                host.commit = self.commit_of(host)
            host.me = replace(host.me, incarnation=host.me.incarnation + 1)
        host.node = None  # first, as in agents: otherwise it would dial again those that it leaves
        self.close(host)
        host.forget()

    def commit_of(self, host: Host) -> bytes:
        assert host.node is not None
        context = host.node.context
        return self.truth.earlier(context.commit, context.iteration - host.iteration)

    def stands_by(self, host: Host, reason: str) -> None:
        self.seekers[host.me.node].stands_by(reason)

    def join_failed(self, host: Host) -> None:
        self.seekers[host.me.node].join_failed()

    def departed(self, host: Host, why: str) -> None:
        if why == "yielded":  # alone, and another cluster has more samples
            self.keepers.goes(host)
        self.seekers[host.me.node].departed(why)

    def ended(self, host: Host, why: str) -> None:
        """The agent of `host` has ended."""
        # If nothing has disturbed it for that long, it knows everybody in reach.
        knows = self.now - self.waits.disturbed_at > GIVE_UP_SECONDS
        if why == "given up" and knows and any(self.reachable(host, h) for h in self.members):
            self.deserted.append(host.me.name)
        super().departed(host, why)

    def describe(self) -> str:
        seeks = [
            f"{s.host.me.name} {s.life.state}, {s.founding.state}" for s in self.seekers.values()
        ]
        return f"now {self.now}\n{super().describe()}\n" + ", ".join(seeks)

    # --- truth --------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the waits. States are checked when they change (`truth.py`), since results that are
        not committed may differ."""
        self.changed.clear()
        self.waits.look()

    def handled(self, host: Host, event: events.Event) -> None:
        if self.log is not None:
            self.log.append(f"{self.now!r} {host.me.name} {event!r}")
        self.truth.handled(host, event)

    def begun(self, host: Host, spec: RoundSpec) -> None:
        self.truth.begun(host, spec)

    def replaced(self, host: Host) -> None:
        self.truth.replaced(host)

    def completed(self, host: Host, iteration: int) -> None:
        self.truth.completed(host, iteration)

    def worked(self, host: Host, micro_batches: tuple[int, ...]) -> None:
        if self.gathering is not None:
            self.gathering.worked(host, micro_batches)

    def contributed(self, host: Host, reduce: Reduce) -> None:
        if self.gathering is not None:
            self.gathering.contributed(host, reduce)

    def kept(self, host: Host, reduce: Reduce, have: bytes) -> None:
        if self.gathering is not None:
            chunks = control_word.numbers(have, reduce.round.spec.chunks)
            self.gathering.kept(host, reduce, chunks)
        else:
            super().kept(host, reduce, have)

    def is_right(self, host: Host) -> bool:
        if self.gathering is not None:
            return self.gathering.is_right(host, self.commit_of(host))
        return super().is_right(host)

    def train(self, kind: str) -> None:
        """From the beginning on have devices train in this way (`training.py`), not by sums of
        gradients."""
        self.training, self.is_long = KINDS_OF_TRAINING[kind], True
        batches = self.micro_batches
        self.gathering = Gathering(micro_batches=batches, subnets=kind == "subnets")
