"""A network in one machine: nodes in namespaces on one switch, with rates and delays for each pair.

    with Network(["a", "b"], default=Link(rate=100 * MBIT, delay_s=0.005)) as net:
        net.popen("a", ["python3", "-m", "http.server"])
        net.set_rate("a", "b", 20 * MBIT)
        net.cut("a", "b")

Everything that is made is in namespaces whose names contain the pid of this process, and `close`
removes them with all processes inside, also after a failure half-way. Rates are bytes/s, times
seconds. The host's own interfaces never see a packet. Only one of its settings is changed, the list
of TCP's algorithms that may be used (`congestion.py`), until the last network is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from tests.testbed import shaping
from tests.testbed.cleaning import namespaces_of, remove, undisturbed
from tests.testbed.congestion import allow_congestion, restore_congestion
from tests.testbed.namespaces import (
    NODE_NAME,
    TestbedError,
    ip,
    missing,
    new_owner,
    run,
    set_kernel,
    tc,
)
from tests.testbed.shaping import MBIT, UNSHAPED, Limit, Link

__all__ = ["MBIT", "Limit", "Link", "Network", "TestbedError", "both"]

SWITCH = "switch"
BRIDGE = "bridge0"
MEDIUM = "medium0"
MAX_NODES = 200
DAEMON = Path(__file__).with_name("delay_daemon.py")
_SENT = re.compile(r"^class htb 1:([0-9a-f]+) .*\n Sent (\d+) bytes", re.MULTILINE)

Pair = tuple[str, str]


def both(links: Mapping[Pair, Link]) -> dict[Pair, Link]:
    """Return the links, each in both directions."""
    return {**links, **{(b, a): link for (a, b), link in links.items()}}


class Network:
    """Nodes, and a link in each direction between any two of them."""

    def __init__(
        self,
        nodes: Sequence[str],
        links: Mapping[Pair, Link] | None = None,
        *,
        default: Link | None = None,
        limits: Mapping[str, Limit] | None = None,
        medium: float = UNSHAPED,
        congestion: str = "",
        seed: int = 1,
        netem: bool | None = None,
    ) -> None:
        """Describe the network; `with` makes it.

        links: by (sender, receiver); an absent pair has the `default`, and if that is None nothing
        passes between the two. limits: of everything that a node sends and receives. medium:
        bytes/s that all nodes together can send; each byte counts once. congestion: TCP's
        algorithm, "" for the host's own. seed: that of jitter and loss. netem: whether to use
        netem; None: if the kernel has it. Raises `TestbedError` for names and numbers that make no
        sense.
        """
        self.nodes = tuple(nodes)
        self.limits = {node: (limits or {}).get(node, Limit()) for node in nodes}
        self.medium = medium
        self.links: dict[Pair, Link] = {}
        self.absent: list[Pair] = []  # pairs that were given no link
        given = dict(links or {})
        for pair in permutations(self.nodes, 2):
            link = given.pop(pair, default)
            self.links[pair] = link or Link()
            if link is None:
                self.absent.append(pair)
        self._check(given, limits or {})
        self.cuts: dict[Pair, None] = {}
        self.owner = new_owner()
        self._congestion = congestion
        self._seed = seed
        self._netem = netem
        self._numbers = {node: k for k, node in enumerate(self.nodes)}
        self._daemon: subprocess.Popen[bytes] | None = None
        self._gso: dict[str, int] = {}

    def _check(self, unknown: Mapping[Pair, Link], limits: Mapping[str, Limit]) -> None:
        if not 1 <= len(self.nodes) <= MAX_NODES or len(set(self.nodes)) < len(self.nodes):
            raise TestbedError(f"1 to {MAX_NODES} nodes with different names are needed")
        for node in self.nodes:
            if not NODE_NAME.fullmatch(node) or node == SWITCH:
                raise TestbedError(f"{node!r} is no name for a node")
        for pair in unknown:
            raise TestbedError(f"there is no pair {pair[0]} > {pair[1]}")
        for node in limits:
            if node not in self.nodes:
                raise TestbedError(f"there is no node {node}")

    # --- making and removing ------------------------------------------------------------------

    def __enter__(self) -> Network:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> None:
        """Make the network. Raises `TestbedError` and leaves nothing behind if that fails."""
        if why := missing():
            raise TestbedError(why)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all processes in the network and remove it, whatever signals come. Idempotent."""
        with undisturbed():
            daemon, self._daemon = self._daemon, None
            if daemon is not None:
                assert daemon.stdin is not None
                assert daemon.stdout is not None
                daemon.kill()
                daemon.wait()
                with contextlib.suppress(BrokenPipeError):  # for commands that were not sent yet
                    daemon.stdin.close()
                daemon.stdout.close()
            remove(namespaces_of(self.owner))
            restore_congestion()

    def _build(self) -> None:
        switch = self.owner.namespace(SWITCH)
        names = [self.namespace(node) for node in self.nodes]
        ip("", f"netns add {switch}")
        self._add_namespaces(names)
        ports = {f"port{k}": self.address(node) for k, node in enumerate(self.nodes)}
        lines = [f"link add {BRIDGE} type bridge mcast_snooping 0", f"link set {BRIDGE} up"]
        for port, name in zip(ports, names, strict=True):
            lines.append(f"link add {port} type veth peer name {shaping.DEVICE} netns {name}")
            lines.append(f"link set {port} master {BRIDGE} up")
        ip(switch, *lines)
        self._bridge_alone(switch)
        if self._netem is None:
            self._netem = self._kernel_has_netem(switch)
        if self._congestion:
            allow_congestion(self._congestion)
        for node in self.nodes:
            self._build_node(node)
        for port, node in zip(ports, self.nodes, strict=True):
            tc(switch, *shaping.switch_port(port, self.limits[node].down))
        if self.medium < UNSHAPED:
            ip(switch, f"link add {MEDIUM} type ifb", f"link set {MEDIUM} up")
            tc(switch, *shaping.medium(MEDIUM, ports, self.medium))
        if not self._netem:
            self._start_daemon()
        for node in self.nodes:
            self._set_gate(node, first=True)

    def _add_namespaces(self, names: Sequence[str]) -> None:
        """Make the nodes' namespaces, with nothing in them."""
        ip("", *(f"netns add {name}" for name in names))

    def _build_node(self, node: str) -> None:
        name = self.namespace(node)
        self._gso[node] = self._gso_bytes(node)
        ip(
            name,
            "link set lo up",
            f"link set dev {shaping.DEVICE} gso_max_size {self._gso[node]}",
            f"address add {self.address(node)}/24 brd + dev {shaping.DEVICE}",
            f"link set {shaping.DEVICE} up",
            f"route add default dev {shaping.DEVICE}",
        )
        if self._netem:
            ip(name, f"link set dev {shaping.DEVICE} gso_max_segs 1")
        settings = dict(shaping.KERNEL_SETTINGS)
        if not os.path.exists("/proc/sys/net/ipv6"):
            del settings["ipv6/conf/all/disable_ipv6"]
        if self._congestion:
            settings["ipv4/tcp_congestion_control"] = self._congestion
        set_kernel(name, settings)
        links = {
            self._numbers[other]: (self.address(other), self.links[node, other])
            for other in self.nodes
            if other != node
        }
        limit = self.limits[node]
        tc(name, *shaping.sender(links, limit, len(self.nodes), bool(self._netem)))

    def _bridge_alone(self, switch: str) -> None:
        """Keep packet filters from seeing packets that are only switched."""
        if os.path.exists("/proc/sys/net/bridge/bridge-nf-call-iptables"):
            set_kernel(switch, {"bridge/bridge-nf-call-iptables": "0"})

    def _kernel_has_netem(self, switch: str) -> bool:
        try:
            tc(switch, "qdisc add dev lo root netem delay 1ms")
        except TestbedError:
            return False
        tc(switch, "qdisc del dev lo root")
        return True

    # --- the delay daemon ---------------------------------------------------------------------

    def _start_daemon(self) -> None:
        # It runs in the switch's namespace, so that a later clean-up finds it.
        command = ["ip", "netns", "exec", self.owner.namespace(SWITCH)]
        self._daemon = subprocess.Popen(
            [*command, sys.executable, "-I", "-S", str(DAEMON), str(self._seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        pairs = self.links
        lines = [f"bind {self.namespace(b)} {self._numbers[a]}" for a, b in pairs]
        self._tell_daemon([*lines, *(self._delay_line(a, b) for a, b in pairs)])

    def _delay_line(self, a: str, b: str) -> str:
        link = self.links[a, b]
        numbers = f"{link.delay_s:.9f} {link.jitter_s:.9f} {link.loss:.9f}"
        return f"set {self.namespace(b)} {self._numbers[a]} {numbers}"

    def _tell_daemon(self, lines: Iterable[str]) -> None:
        daemon = self._daemon
        assert daemon is not None
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        try:
            daemon.stdin.write("\n".join([*lines, "done", ""]).encode())
            daemon.stdin.flush()
            answer = daemon.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer != b"ok\n":
            raise TestbedError("the delay daemon has ended (its message is above)")

    # --- what one can ask ---------------------------------------------------------------------

    def namespace(self, node: str) -> str:
        """Return the name of a node's namespace."""
        return self.owner.namespace(node)

    def address(self, node: str) -> str:
        """Return a node's IPv4 address."""
        return f"10.90.0.{self._numbers[node] + 1}"

    def command(self, node: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on a node."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    def popen(self, node: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a command on a node, in a session of its own; `close` kills it."""
        options.setdefault("start_new_session", True)
        return subprocess.Popen(self.command(node, command), **options)

    def session(self, process: subprocess.Popen[bytes]) -> int:
        """Return the session, as the host numbers it, of what `popen` has started."""
        return process.pid

    @property
    def uses_netem(self) -> bool:
        """Whether delays are made by the kernel's netem."""
        return bool(self._netem)

    @property
    def daemon_pid(self) -> int | None:
        """The process that makes the delays; None with netem."""
        return self._daemon.pid if self._daemon else None

    def bytes(self, a: str, b: str) -> int:
        """Return how many bytes `a` has sent to `b` alone, Ethernet headers included."""
        return self.counters(a)[a, b]

    def counters(self, *senders: str) -> dict[Pair, int]:
        """Return the bytes sent by (sender, receiver); of all senders if none is named."""
        found: dict[Pair, int] = {}
        for a in senders or self.nodes:
            text = run("tc", "-n", self.namespace(a), "-s", "class", "show", "dev", shaping.DEVICE)
            sent = {int(minor, 16): int(count) for minor, count in _SENT.findall(text)}
            for b in self.nodes:
                if b != a:
                    found[a, b] = sent[shaping.FIRST + self._numbers[b]]
        return found

    # --- changes while it runs ----------------------------------------------------------------

    def set_rate(self, a: str, b: str, rate: float) -> None:
        """Change the rate from `a` to `b`, in bytes/s."""
        self.set_links({(a, b): replace(self.links[a, b], rate=rate)})

    def set_delay(
        self, a: str, b: str, delay_s: float, jitter_s: float = 0.0, loss: float | None = None
    ) -> None:
        """Change delay and jitter (and loss) from `a` to `b`."""
        old = self.links[a, b]
        loss = old.loss if loss is None else loss
        self.set_links({(a, b): replace(old, delay_s=delay_s, jitter_s=jitter_s, loss=loss)})

    def set_limit(self, node: str, limit: Limit) -> None:
        """Change what a node, which had a limit in both directions, can send and receive."""
        self._known(node)
        if max(*astuple(self.limits[node]), *astuple(limit)) >= UNSHAPED:
            raise TestbedError(f"{node} has no limit, or is to have none")
        self.limits[node] = limit
        lines = shaping.new_limit(
            {self._numbers[b]: self.links[a, b] for a, b in self.links if a == node},
            limit,
            len(self.nodes),
        )
        tc(self.namespace(node), *lines)
        change = shaping.htb_class(
            f"port{self.nodes.index(node)}", "1:", 1, limit.down, limit.down, "change"
        )
        tc(self.owner.namespace(SWITCH), change)

    def set_links(self, links: Mapping[Pair, Link]) -> None:
        """Change several links, one direction each, at practically the same moment."""
        for pair in links:
            self._known(*pair)
        old = {pair: self.links[pair] for pair in links}
        self.links.update(links)
        for a in dict.fromkeys(pair[0] for pair in links):
            mine = {b: link for (sender, b), link in links.items() if sender == a}
            tc(self.namespace(a), *self._changed(a, mine, old))
            if (size := self._gso_bytes(a)) != self._gso[a]:
                self._gso[a] = size
                ip(self.namespace(a), f"link set dev {shaping.DEVICE} gso_max_size {size}")
        if not self._netem:
            self._tell_daemon(self._delay_line(a, b) for a, b in links)
            for node in dict.fromkeys(
                b for (a, b), link in links.items() if link.plain != old[a, b].plain
            ):
                self._set_gate(node)

    def _changed(self, a: str, links: Mapping[str, Link], old: Mapping[Pair, Link]) -> list[str]:
        lines = []
        for b, link in links.items():
            minor = shaping.FIRST + self._numbers[b]
            if link.rate != old[a, b].rate:
                part = shaping.share(link, self.limits[a], len(self.nodes))
                lines.append(
                    shaping.htb_class(shaping.DEVICE, "1:1", minor, link.rate, part, "change")
                )
            if self._netem:
                lines.append(shaping.netem(minor, link, "change"))
        return lines

    def cut(self, a: str, b: str, one_way: bool = False) -> None:
        """Let nothing pass between `a` and `b` (only from `a` to `b`), until it is restored."""
        self._change_cuts([(a, b)] if one_way else [(a, b), (b, a)], [])

    def restore(self, a: str, b: str, one_way: bool = False) -> None:
        """Undo `cut`."""
        self._change_cuts([], [(a, b)] if one_way else [(a, b), (b, a)])

    def partition(self, groups: Iterable[Iterable[str]]) -> None:
        """Let nothing pass between groups; a node in no group is alone."""
        part = {node: k for k, group in enumerate(groups) for node in group}
        for node in part:
            self._known(node)
        alone = {node: -k for k, node in enumerate(self.nodes, 1)}
        part = alone | part
        self._change_cuts([(a, b) for a, b in self.links if part[a] != part[b]], [])

    def heal(self) -> None:
        """Undo all cuts and partitions."""
        self._change_cuts([], list(self.cuts))

    def _known(self, *nodes: str) -> None:
        for node in nodes:
            if node not in self._numbers:
                raise TestbedError(f"there is no node {node}")

    def _change_cuts(self, add: Iterable[Pair], remove: Iterable[Pair]) -> None:
        touched: dict[str, None] = {}
        for wanted, pairs in ((True, add), (False, remove)):
            for a, b in pairs:
                self._known(a, b)
                if ((a, b) in self.cuts) != wanted:
                    touched[b] = None
                    if wanted:
                        self.cuts[a, b] = None
                    else:
                        del self.cuts[a, b]
        for node in touched:
            self._set_gate(node)

    # --- helpers ------------------------------------------------------------------------------

    def _gso_bytes(self, node: str) -> int:
        return shaping.gso_bytes(link.rate for (a, _), link in self.links.items() if a == node)

    def _set_gate(self, node: str, first: bool = False) -> None:
        """Set which packets the kernel drops or queues at a receiver from now on."""
        others = [other for other in self.nodes if other != node]
        closed = [a for a in others if (a, node) in self.cuts or (a, node) in self.absent]
        queued = (
            {}
            if self._netem
            else {
                self._numbers[a]: self.address(a) for a in others if not self.links[a, node].plain
            }
        )
        text = shaping.gate(map(self.address, closed), queued, first)
        run(*self.command(node, ["iptables-restore", "--noflush"]), text=text)
