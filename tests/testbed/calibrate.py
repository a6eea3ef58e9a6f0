"""Checks before anything is measured on a network that every link has the rate and delay as set.

Rates are those of real TCP connections, one link at a time per sender and receiver, or of UDP for
links that carry nothing back; delays are those of single UDP packets. Both ends of every connection
belong to this process, each made in its node's namespace. So one clock times both ends, and each
direction is measured by itself.

The network passes only if every link does. Jitter and loss are switched off meanwhile, since they
would hide what is checked here. A link passes when two windows in a row are right: in one window a
connection may have the right rate only by chance, while it still becomes faster.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.testbed.namespaces import TestbedError, inside
from tests.testbed.shaping import MBIT

if TYPE_CHECKING:
    from tests.testbed.network import Network, Pair

TCP_SHARE = 0.956  # of the rate on the wire: what Ethernet, IP and TCP headers leave
RATE_TOLERANCE = 0.05
DELAY_TOLERANCE_S = 0.001
DATAGRAM = 16 * 1480 - 8  # sixteen full frames
UDP_SHARE = DATAGRAM / (16 * 1514)
UDP_BUFFER = 32 << 10  # so small that the sender waits and its queue does not overflow
MAX_TOTAL = 1500 * MBIT  # bytes/s that this process can move for certain
WINDOW_S = 0.1
WINDOW_PACKETS = 40
WINDOW_RTTS = 4
MAX_WINDOWS = 20
ATTEMPTS = 4
DRAIN_S = 0.5  # until the packets that a timed connection has left in queues are gone
PROBES = 10
PROBE_GAP_S = 0.0005
PRIORITY = 10  # the delay daemon has a higher one
CONNECT_S = 20.0
SILENCE_S = 5.0  # a probe that takes longer than the longest delay by this much is lost
PAYLOAD = bytes(256 << 10)
_PROBE = struct.Struct("<Id")


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured on one link: `rate` in bytes/s on the wire, `delay_s` of a packet."""

    rate: float
    delay_s: float


@dataclass(slots=True)
class Flow:
    """One connection that is timed, in windows of at least `window_s` and `window_bytes`."""

    pair: Pair
    expected: float  # bytes/s of payload
    window_s: float
    sender: socket.socket
    receiver: socket.socket
    share: float = TCP_SHARE  # of the rate on the wire that is payload
    piece: int = len(PAYLOAD)  # sent at once
    sent: memoryview = field(default_factory=lambda: memoryview(PAYLOAD))
    started_s: float = 0.0
    count: int = 0
    rates: list[float] = field(default_factory=list)

    @property
    def window_bytes(self) -> float:
        """So many bytes that one packet more or less at the edge of a window hardly matters."""
        return min(WINDOW_PACKETS * 16384, self.expected * self.window_s * 4)

    def received(self, count: int, now: float) -> None:
        """Take note of bytes that have arrived."""
        if not self.started_s:
            self.started_s, self.count = now, 0
            return
        self.count += count
        passed = now - self.started_s
        if passed >= self.window_s and self.count >= min(self.window_bytes, self.expected):
            self.rates.append(self.count / passed)
            self.started_s, self.count = now, 0

    @property
    def right(self) -> bool:
        """Whether the last two windows had the expected rate."""
        last = self.rates[-2:]
        return len(last) == 2 and all(
            abs(rate / self.expected - 1) <= RATE_TOLERANCE for rate in last
        )

    @property
    def over(self) -> bool:
        """Whether enough is known."""
        return self.right or len(self.rates) >= MAX_WINDOWS

    def close(self) -> None:
        """Close both ends."""
        self.sender.close()
        self.receiver.close()


def calibrate(net: Network) -> dict[Pair, Found]:
    """Return what was measured on every link. Raises `TestbedError`, which names all links that are
    wrong.

    Links that are wrong are measured again, up to `ATTEMPTS` times in all: a process that waits for
    a processor finds a link too slow, whereas a link that is really wrong stays wrong.
    """
    pairs = [pair for pair in net.links if pair not in net.cuts and pair not in net.absent]
    with _steady(net):
        delays = measure_delays(net, pairs)
        rates = measure_rates(net, pairs)
        for _ in range(ATTEMPTS - 1):
            late = [pair for pair in pairs if _is_late(net, pair, delays[pair])]
            slow = [pair for pair in pairs if _is_slow(net, pair, rates[pair])]
            if not late and not slow:
                break
            time.sleep(DRAIN_S)
            delays |= measure_delays(net, late) if late else {}
            rates |= measure_rates(net, slow)
    found = {pair: Found(rates[pair], delays[pair]) for pair in pairs}
    if wrong := [fault for pair in pairs for fault in _faults(net, pair, found[pair])]:
        raise TestbedError("the network is not as it was described: " + "; ".join(wrong))
    return found


@contextlib.contextmanager
def _steady(net: Network) -> Iterator[None]:
    """Switch jitter and loss off while the block runs."""
    before = dict(net.links)
    shaky = {pair: link for pair, link in before.items() if link.jitter_s or link.loss}
    net.set_links({pair: replace(link, jitter_s=0.0, loss=0.0) for pair, link in shaky.items()})
    try:
        yield
    finally:
        net.set_links(shaky)


@contextlib.contextmanager
def _ahead() -> Iterator[None]:
    """Have this process run before all ordinary ones while the block runs, if that is allowed: time
    that a packet waits for a busy machine is no delay of the network."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, *before)


def expected_rate(net: Network, pair: Pair) -> float:
    """Return what a link that has everything to itself should carry, bytes/s on the wire."""
    a, b = pair
    return min(net.links[pair].rate, net.limits[a].up, net.limits[b].down, net.medium)


def _is_slow(net: Network, pair: Pair, rate: float) -> bool:
    """Whether a link is slower or faster than it should be."""
    wanted = expected_rate(net, pair)
    return wanted <= MAX_TOTAL and abs(rate / wanted - 1) > RATE_TOLERANCE


def _is_late(net: Network, pair: Pair, delay_s: float) -> bool:
    """Whether a link takes longer or less long than it should."""
    return abs(delay_s - net.links[pair].delay_s) > DELAY_TOLERANCE_S


def _faults(net: Network, pair: Pair, found: Found) -> list[str]:
    """Return in which ways a link differs from its description."""
    a, b = pair
    faults = []
    if _is_slow(net, pair, found.rate):
        wanted = expected_rate(net, pair)
        rates = f"{found.rate / MBIT:.2f} of {wanted / MBIT:.2f} Mbit/s"
        faults.append(f"{a} > {b} carries {rates}")
    if _is_late(net, pair, found.delay_s):
        delay_s = net.links[pair].delay_s
        times = f"{found.delay_s * 1e3:.2f} instead of {delay_s * 1e3:.2f} ms"
        faults.append(f"{a} > {b} takes {times}")
    return faults


# --- delays -----------------------------------------------------------------------------------


def measure_delays(net: Network, pairs: list[Pair]) -> dict[Pair, float]:
    """Return the shortest time that a small packet took on each link, in seconds."""
    best: dict[Pair, float] = {}
    with _ahead(), contextlib.ExitStack() as stack:
        sockets = {}
        for node in net.nodes:
            with inside(net.namespace(node)):
                end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sockets[node] = stack.enter_context(end)
            end.bind((net.address(node), 0))
            end.setblocking(False)
        selector = stack.enter_context(selectors.EpollSelector())
        for node, end in sockets.items():
            selector.register(end, selectors.EVENT_READ, node)
        by_node = {b: end.getsockname() for b, end in sockets.items()}
        longest_s = max((net.links[pair].delay_s for pair in pairs), default=0.0)
        for _ in range(PROBES):
            for number, (a, b) in enumerate(pairs):
                probe = _PROBE.pack(number, time.monotonic())
                sockets[a].sendto(probe, by_node[b])
                _arrivals(selector, pairs, best, time.monotonic() + PROBE_GAP_S)
        deadline = time.monotonic() + longest_s + SILENCE_S
        _arrivals(selector, pairs, best, time.monotonic() + longest_s + 0.02)
        while len(best) < len(pairs):
            if time.monotonic() > deadline:
                a, b = next(pair for pair in pairs if pair not in best)
                raise TestbedError(f"nothing passes from {a} to {b}")
            _arrivals(selector, pairs, best, time.monotonic() + 0.05)
    return best


def _arrivals(
    selector: selectors.EpollSelector, pairs: list[Pair], best: dict[Pair, float], until: float
) -> None:
    """Note the probes that arrive until the given time."""
    while (left := until - time.monotonic()) > 0:
        select.select([selector], [], [], left)  # epoll itself waits whole milliseconds only
        for key, _ in selector.select(0):
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(64)
            now = time.monotonic()
            number, sent = _PROBE.unpack(data)
            pair = pairs[number]
            best[pair] = min(best.get(pair, now - sent), now - sent)


# --- rates ------------------------------------------------------------------------------------


def measure_rates(net: Network, pairs: list[Pair]) -> dict[Pair, float]:
    """Return each link's rate on the wire in bytes/s, as TCP finds it.

    A link that is too fast for this process to measure (`MAX_TOTAL`) counts as infinitely fast.
    """
    rates = dict.fromkeys(pairs, math.inf)
    for batch in batches(net, [pair for pair in pairs if expected_rate(net, pair) <= MAX_TOTAL]):
        with contextlib.ExitStack() as stack:
            flows = []
            for pair in batch:
                flow = _connect(net, pair)
                stack.callback(flow.close)
                flows.append(flow)
            _pump(flows)
            for flow in flows:
                last = flow.rates[-2:] or [0.0]
                rates[flow.pair] = sum(last) / len(last) / flow.share
    return rates


def batches(net: Network, pairs: list[Pair]) -> list[list[Pair]]:
    """Return the pairs in groups that can be timed at the same moment.

    In a group each node sends once and receives once, no pair is timed in both directions (the
    acknowledgements of one would slow down the other), and all together fit the medium.
    """
    room = min(net.medium, MAX_TOTAL)
    groups: list[list[Pair]] = []
    for a, b in sorted(pairs, key=lambda pair: expected_rate(net, pair)):
        rate = expected_rate(net, (a, b))
        for group in groups:
            used = sum(expected_rate(net, pair) for pair in group)
            apart = all(a != c and b != d and (b, a) != (c, d) for c, d in group)
            if apart and used + rate <= room:
                group.append((a, b))
                break
        else:
            groups.append([(a, b)])
    return groups


def _connect(net: Network, pair: Pair) -> Flow:
    a, b = pair
    back = (b, a)
    if back in net.cuts or back in net.absent:
        return _one_way(net, pair)
    with inside(net.namespace(b)):
        listener = socket.create_server((net.address(b), 0))
    with listener:
        listener.settimeout(CONNECT_S)
        with inside(net.namespace(a)):
            sender = socket.create_connection(listener.getsockname(), CONNECT_S)
        receiver, _ = listener.accept()
    sender.setblocking(False)
    receiver.setblocking(False)
    rtt_s = net.links[a, b].delay_s + net.links[b, a].delay_s
    expected = expected_rate(net, pair) * TCP_SHARE
    return Flow(pair, expected, max(WINDOW_S, WINDOW_RTTS * rtt_s), sender, receiver)


def _one_way(net: Network, pair: Pair) -> Flow:
    """Return a flow over UDP, which needs no answers."""
    a, b = pair
    with inside(net.namespace(b)):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((net.address(b), 0))
    with inside(net.namespace(a)):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UDP_BUFFER)
    sender.connect(receiver.getsockname())
    sender.setblocking(False)
    receiver.setblocking(False)
    expected = expected_rate(net, pair) * UDP_SHARE
    return Flow(pair, expected, WINDOW_S, sender, receiver, UDP_SHARE, DATAGRAM)


def _pump(flows: list[Flow]) -> None:
    """Move bytes until all flows are over, or too slow to become so."""
    sink = bytearray(1 << 20)
    longest_s = max(flow.window_s for flow in flows)
    deadline = time.monotonic() + 2 * MAX_WINDOWS * longest_s
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            selector.register(flow.sender, selectors.EVENT_WRITE, flow)
            selector.register(flow.receiver, selectors.EVENT_READ, flow)
        while not all(flow.over for flow in flows) and time.monotonic() < deadline:
            for key, events in selector.select(WINDOW_S):
                flow = key.data
                if events & selectors.EVENT_READ:
                    count = flow.receiver.recv_into(sink, 0, socket.MSG_TRUNC)
                    flow.received(count, time.monotonic())
                    if flow.over:
                        selector.unregister(flow.sender)
                        selector.unregister(flow.receiver)
                        flow.close()
                        break
                else:
                    with contextlib.suppress(BlockingIOError):
                        flow.sent = flow.sent[flow.sender.send(flow.sent[: flow.piece]) :]
                        flow.sent = flow.sent or memoryview(PAYLOAD)
