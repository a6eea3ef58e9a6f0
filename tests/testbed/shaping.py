"""What makes a link slow, late and lossy, as lines for `tc` and `iptables-restore`.

Every sender has an HTB class for each receiver (class 0x100 + its number) below one class for all
it sends; class 2 is for what has no single receiver, multicast for example. Delay, jitter and loss
are a netem queue in that class or, where the kernel has no netem, a queue at the receiver (one for
each sender) that a process empties in time (`delay_daemon.py`). Cut links are dropped at the
receiver, whatever they carry.

The functions are pure: they turn numbers into text. Rates are bytes/s here, and bits/s only in the
lines. The sizes of bursts and queues were found by measuring: smaller ones cost throughput, larger
ones hide congestion.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tests.testbed.namespaces import TestbedError

DEVICE = "lan0"
MBIT = 125_000.0  # bytes/s
UNSHAPED = 100_000 * MBIT  # so high that it is no limit
BURST_S = 0.001
MIN_BURST = 3028  # two full frames
QUEUE_S = 0.05
MIN_QUEUE = 128 << 10  # bbr collapses below half of this
MAX_QUEUE = 16 << 20
FRAME = 1514
OTHERS = 2  # minor number of the class for what has no single receiver
FIRST = 0x100  # minor number of the class for node 0
GSO_BYTES = ((8 * MBIT, 4096), (300 * MBIT, 16384), (math.inf, 65536))  # up to a rate: packet size
MIN_RATE = 1000.0
MAX_DELAY_S = 30.0
CHAIN = "EDGEBED"

# Buffers for links of up to 1 Gbit/s and 30 ms; and TCP must not remember former connections, as
# that would make one measurement depend on another.
KERNEL_SETTINGS = {
    "ipv4/tcp_wmem": "4096 65536 33554432",
    "ipv4/tcp_rmem": "4096 131072 33554432",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv6/conf/all/disable_ipv6": "1",
}


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two nodes.

    `rate` in bytes/s on the wire (Ethernet headers included; TCP carries 95.6 % of it). A packet
    takes `delay_s`, give or take up to `jitter_s`; `loss` is the probability that it never arrives.
    Packets do not overtake one another where the delay daemon holds them; the kernel's netem may
    let them, by up to the jitter. Delay and loss are of multicast, too, with the daemon only.
    """

    rate: float = UNSHAPED
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        """Raise `TestbedError` for a link that cannot be made."""
        if not MIN_RATE <= self.rate <= UNSHAPED:
            raise TestbedError(f"a rate of {self.rate:g} bytes/s is out of range")
        if not 0 <= self.delay_s <= MAX_DELAY_S:
            raise TestbedError(f"a delay of {self.delay_s:g} s is out of range")
        if not 0 <= self.jitter_s <= self.delay_s:
            raise TestbedError("jitter must be between 0 and the delay")
        if not 0 <= self.loss <= 1:
            raise TestbedError("loss must be a probability")

    @property
    def plain(self) -> bool:
        """Whether all packets arrive, and without delay."""
        return self.delay_s == 0 and self.loss == 0


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a node can send (`up`) and receive (`down`) over all its links, in bytes/s."""

    up: float = UNSHAPED
    down: float = UNSHAPED


def gso_bytes(rates: Iterable[float]) -> int:
    """Return the largest packet a sender hands to its slowest link."""
    slowest = min(rates, default=UNSHAPED)
    return next(size for rate, size in GSO_BYTES if slowest <= rate)


def _burst(rate: float) -> int:
    return max(MIN_BURST, round(rate * BURST_S))


def _queue(rate: float) -> int:
    return min(MAX_QUEUE, max(MIN_QUEUE, round(rate * QUEUE_S)))


def _bits(rate: float) -> str:
    return f"{round(rate * 8)}bit"


def htb_class(
    device: str, parent: str, minor: int, rate: float, share: float, verb: str = "add"
) -> str:
    """Return the line for a class of at most `rate` of which `share` is its own for certain."""
    return (
        f"class {verb} dev {device} parent {parent} classid 1:{minor:x} htb "
        f"rate {_bits(share)} ceil {_bits(rate)} "
        f"burst {_burst(share)} cburst {_burst(rate)} quantum 20000"
    )


def _fifo(device: str, minor: int, rate: float) -> str:
    return f"qdisc add dev {device} parent 1:{minor:x} bfifo limit {_queue(rate)}"


def netem(minor: int, link: Link, verb: str = "add") -> str:
    """Return the line for a netem queue that holds what is under way and what waits.

    It counts packets, so senders must not hand it larger ones than a frame.
    """
    waiting = _queue(link.rate) + link.delay_s * link.rate
    packets = math.ceil(waiting / FRAME)
    line = f"qdisc {verb} dev {DEVICE} parent 1:{minor:x} handle {minor:x}: netem "
    line += f"limit {min(packets, 1_000_000)} delay {round(link.delay_s * 1e6)}us"
    if link.jitter_s:
        line += f" {round(link.jitter_s * 1e6)}us"
    return line + (f" loss {link.loss * 100:.4f}%" if link.loss else "")


def share(link: Link, limit: Limit, nodes: int) -> float:
    """Return the rate that a link has at least while its sender sends to all others at once."""
    return min(link.rate, max(MIN_RATE, limit.up / nodes))


def sender(
    links: dict[int, tuple[str, Link]], limit: Limit, nodes: int, use_netem: bool
) -> list[str]:
    """Return the `tc` lines of one node. `links`: address and link by the receiver's number."""
    lines = [
        f"qdisc add dev {DEVICE} root handle 1: htb default {OTHERS}",
        htb_class(DEVICE, "1:", 1, limit.up, limit.up),
        htb_class(DEVICE, "1:1", OTHERS, limit.up, max(MIN_RATE, limit.up / 100)),
        _fifo(DEVICE, OTHERS, limit.up),
    ]
    for k, (address, link) in links.items():
        minor = FIRST + k
        lines.append(htb_class(DEVICE, "1:1", minor, link.rate, share(link, limit, nodes)))
        lines.append(netem(minor, link) if use_netem else _fifo(DEVICE, minor, link.rate))
        lines.append(
            f"filter add dev {DEVICE} parent 1: protocol ip prio 1 "
            f"u32 match ip dst {address}/32 flowid 1:{minor:x}"
        )
    return lines


def new_limit(links: dict[int, Link], limit: Limit, nodes: int) -> list[str]:
    """Return the `tc` lines that change what a node sends. `links`: by the receiver's number."""
    lines = [
        htb_class(DEVICE, "1:", 1, limit.up, limit.up, "change"),
        htb_class(DEVICE, "1:1", OTHERS, limit.up, max(MIN_RATE, limit.up / 100), "change"),
    ]
    for k, link in links.items():
        part = share(link, limit, nodes)
        lines.append(htb_class(DEVICE, "1:1", FIRST + k, link.rate, part, "change"))
    return lines


def switch_port(port: str, down: float) -> list[str]:
    """Return the `tc` lines that limit what leaves the switch through a port."""
    if down >= UNSHAPED:
        return []
    return [
        f"qdisc add dev {port} root handle 1: htb default 1",
        htb_class(port, "1:", 1, down, down),
        _fifo(port, 1, down),
    ]


def medium(device: str, ports: dict[str, str], rate: float) -> list[str]:
    """Return the `tc` lines that send all ports' traffic through one device of this rate.

    `ports`: address of its node by port. Each sender has an equal part when all send.
    """
    lines = [
        f"qdisc add dev {device} root handle 1: htb default {OTHERS}",
        htb_class(device, "1:", 1, rate, rate),
        htb_class(device, "1:1", OTHERS, rate, max(MIN_RATE, rate / 100)),
        _fifo(device, OTHERS, rate),
    ]
    for k, (port, address) in enumerate(ports.items()):
        minor = FIRST + k
        lines += [
            htb_class(device, "1:1", minor, rate, max(MIN_RATE, rate / len(ports))),
            _fifo(device, minor, rate),
            f"filter add dev {device} parent 1: protocol ip prio 1 "
            f"u32 match ip src {address}/32 flowid 1:{minor:x}",
            f"qdisc add dev {port} handle ffff: ingress",
            f"filter add dev {port} parent ffff: protocol all prio 1 "
            f"u32 match u32 0 0 action mirred egress redirect dev {device}",
        ]
    return lines


def gate(blocked: Iterable[str], queued: dict[int, str], first: bool = False) -> str:
    """Return the text for `iptables-restore --noflush` that replaces a node's whole gate.

    blocked: addresses from which nothing arrives. queued: address by the number of the queue in
    which its packets wait.
    """
    lines = ["*mangle", f":{CHAIN} - [0:0]"]
    if first:
        lines.append(f"-A PREROUTING -i {DEVICE} -j {CHAIN}")
    lines += [f"-A {CHAIN} -s {address} -j DROP" for address in blocked]
    lines += [
        f"-A {CHAIN} -s {address} -j NFQUEUE --queue-num {queue}"
        for queue, address in queued.items()
    ]
    return "\n".join([*lines, "COMMIT"]) + "\n"
