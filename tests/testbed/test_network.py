"""The emulated network does what it is told, calibration refuses it if not, and it can be removed.

Real packets between namespaces show what passes. Times are compared with those that were set, and
never with what a machine should reach.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.testbed import cleaning, congestion, network, shaping
from tests.testbed.calibrate import batches, calibrate
from tests.testbed.namespaces import (
    TestbedError,
    existing,
    inside,
    parse,
    tc,
    unusable,
)
from tests.testbed.network import MBIT, Limit, Link, Network, both

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
POLL_S = 0.01
SETTLE_S = 0.3  # far longer than any delay here

# What a run is for these tests: a network, a process inside, and then nothing until it ends.
RUNNER = """
import sys, time
from tests.testbed.network import Link, Network
with Network(["a", "b"], default=Link(delay_s=0.001)) as net:
    process = net.popen("a", ["sleep", "1000"])
    print(net.owner.pid, process.pid, net.daemon_pid or 0, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True, scope="module")
def _possible() -> None:
    if why := unusable():
        pytest.skip(why)


pytestmark = [pytest.mark.netns, pytest.mark.alone]


class Ears:
    """A UDP socket on each node, which hears the packets of the others."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.sockets: dict[str, socket.socket] = {}
        for node in net.nodes:
            with inside(net.namespace(node)):
                self.sockets[node] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.sockets[node].bind((net.address(node), 0))
            self.sockets[node].setblocking(False)

    def __enter__(self) -> Ears:
        return self

    def __exit__(self, *exc: object) -> None:
        for end in self.sockets.values():
            end.close()

    def send(self, a: str, b: str, data: bytes) -> None:
        self.sockets[a].sendto(data, self.sockets[b].getsockname())

    def heard(self, node: str) -> list[bytes]:
        """Return what has arrived so far and was not returned before."""
        found = []
        while True:
            try:
                found.append(self.sockets[node].recv(2048))
            except BlockingIOError:
                return found

    def passing(self) -> list[tuple[str, str]]:
        """Return the pairs between which a packet passes now."""
        pairs = list(self.net.links)
        for a, b in pairs:
            self.send(a, b, f"{a} {b}".encode())
        time.sleep(SETTLE_S)
        heard = [data.decode() for node in self.net.nodes for data in self.heard(node)]
        return [(a, b) for a, b in pairs if f"{a} {b}" in heard]


# --- what passes ------------------------------------------------------------------------------


def test_rates_and_delays_are_right_and_can_be_changed() -> None:
    links = both({("a", "b"): Link(40 * MBIT, 0.004)})
    links["b", "c"] = Link(15 * MBIT, 0.010, 0.002, 0.01)
    with Network(["a", "b", "c"], links, default=Link(25 * MBIT, 0.001)) as net:
        found = calibrate(net)
        assert set(found) == set(net.links)
        assert net.links["b", "c"].loss == 0.01, "only switched off meanwhile"
        net.set_rate("a", "b", 12 * MBIT)
        net.set_delay("b", "a", 0.02)
        net.set_links({("c", "a"): Link(30 * MBIT)})
        changed = calibrate(net)
        assert changed["b", "a"].delay_s >= 0.020 > changed["a", "b"].delay_s >= 0.004
        assert changed["a", "b"].rate < found["b", "c"].rate < changed["c", "a"].rate


def test_limits_of_nodes_and_of_the_medium_hold() -> None:
    limits = {"a": Limit(up=10 * MBIT, down=20 * MBIT)}
    with Network(["a", "b", "c"], default=Link(40 * MBIT), limits=limits) as net:
        rates = {pair: found.rate / MBIT for pair, found in calibrate(net).items()}
        assert rates["a", "c"] == pytest.approx(10, rel=0.05)
        assert rates["b", "a"] == pytest.approx(20, rel=0.05)
        assert rates["b", "c"] == pytest.approx(40, rel=0.05)
    with Network(["a", "b", "c"], default=Link(), medium=30 * MBIT) as net:
        rates = {pair: found.rate / MBIT for pair, found in calibrate(net).items()}
        assert list(rates.values()) == pytest.approx([30] * 6, rel=0.05)


def test_jitter_keeps_the_order_and_loss_loses_as_much_as_it_should() -> None:
    link = Link(delay_s=0.005, jitter_s=0.005, loss=0.25)
    with Network(["a", "b"], {("a", "b"): link}, default=Link()) as net, Ears(net) as ears:
        heard: dict[str, list[bytes]] = {"a": [], "b": []}
        for k in range(1000):
            ears.send("a", "b", k.to_bytes(2, "big"))
            ears.send("b", "a", k.to_bytes(2, "big"))
            time.sleep(SETTLE_S if k == 999 else 0.0002)
            for node, found in heard.items():
                found += ears.heard(node)
        lossy = [int.from_bytes(data, "big") for data in heard["b"]]
        assert lossy == sorted(lossy)
        assert 650 <= len(lossy) <= 850
        assert len(heard["a"]) == 1000


def test_cuts_are_of_one_direction_or_both_and_heal() -> None:
    with Network(["a", "b", "c"], default=Link(delay_s=0.001)) as net, Ears(net) as ears:
        everything = list(net.links)
        assert ears.passing() == everything
        net.cut("a", "b", one_way=True)
        assert ears.passing() == [pair for pair in everything if pair != ("a", "b")]
        net.cut("a", "b")
        apart = [("a", "b"), ("b", "a")]
        assert ears.passing() == [pair for pair in everything if pair not in apart]
        net.restore("a", "b")
        assert ears.passing() == everything
        net.partition([["a"], ["b", "c"]])
        assert ears.passing() == [("b", "c"), ("c", "b")]
        net.heal()
        assert ears.passing() == everything


def test_pairs_without_a_link_are_apart_for_good() -> None:
    links = both({("a", "b"): Link(), ("b", "c"): Link(delay_s=0.001)})
    with Network(["a", "b", "c"], links) as net, Ears(net) as ears:
        net.cut("a", "b")
        net.heal()
        assert ears.passing() == [pair for pair in net.links if pair in links]


def test_multicast_reaches_all_but_those_cut_off() -> None:
    group, port = "224.0.0.251", 5353
    links = {("a", "c"): Link(delay_s=0.1)}
    with Network(["a", "b", "c"], links, default=Link(delay_s=0.001)) as net, Ears(net) as ears:
        for node, end in ears.sockets.items():
            with inside(net.namespace(node)):
                other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            end.close()
            ears.sockets[node] = other
            other.bind(("", port))
            own = socket.inet_aton(net.address(node))
            other.setsockopt(
                socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + own
            )
            other.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
            other.setblocking(False)
        net.cut("a", "b")
        began = time.monotonic()
        ears.sockets["a"].sendto(b"who is there", (group, port))
        late, _, _ = select.select([ears.sockets["c"]], [], [], SETTLE_S)
        assert late
        assert net.uses_netem or time.monotonic() - began >= 0.1
        time.sleep(SETTLE_S)
        assert ears.heard("b") == []
        assert ears.heard("c") == [b"who is there"]


def test_bytes_are_counted_by_pair() -> None:
    with Network(["a", "b", "c"], default=Link()) as net, Ears(net) as ears:
        for _ in range(10):
            ears.send("a", "b", bytes(1000))
        time.sleep(SETTLE_S)
        assert net.bytes("a", "b") == 10 * (1000 + 8 + 20 + 14)
        assert net.bytes("b", "a") == net.bytes("a", "c") == 0
        assert set(net.counters()) == set(net.links)


def test_names_and_numbers_that_make_no_sense_are_refused() -> None:
    for nodes, links in ((["a", "a"], {}), (["a b"], {}), (["a"], {("a", "z"): Link()})):
        with pytest.raises(TestbedError):
            Network(nodes, links)
    for values in ({"rate": 0}, {"loss": 1.1}, {"jitter_s": 0.1}, {"delay_s": -1}):
        with pytest.raises(TestbedError):
            Link(**values)
    with pytest.raises(TestbedError, match="no node x"):
        Network(["a"], limits={"x": Limit()})


# --- calibration refuses ----------------------------------------------------------------------


def test_a_link_of_the_wrong_rate_is_refused_by_name() -> None:
    with Network(["a", "b", "c"], default=Link(100 * MBIT)) as net:
        wrong = shaping.htb_class(
            shaping.DEVICE, "1:1", shaping.FIRST + 1, 80 * MBIT, 80 * MBIT, "change"
        )
        tc(net.namespace("a"), wrong)
        with pytest.raises(TestbedError) as refusal:
            calibrate(net)
        assert "a > b carries" in str(refusal.value)
        assert str(refusal.value).count(" > ") == 1, "the others are right"


def test_a_link_of_the_wrong_delay_is_refused_by_name() -> None:
    with Network(["a", "b", "c"], default=Link(50 * MBIT, 0.002)) as net:
        net.links["c", "b"] = replace(net.links["c", "b"], delay_s=0.0045)
        net.links["b", "a"] = replace(net.links["b", "a"], delay_s=0.005)
        net.links["a", "b"] = replace(net.links["a", "b"], delay_s=0.0)  # the round trip is right
        with pytest.raises(TestbedError) as refusal:
            calibrate(net)
        said = str(refusal.value)
        assert [pair in said for pair in ("a > b takes", "b > a takes", "c > b takes")] == [
            True
        ] * 3
        assert said.count(" > ") == 3


@pytest.mark.long
def test_a_link_of_one_direction_is_checked_too() -> None:
    links = {("a", "b"): Link(50 * MBIT, 0.002), ("b", "c"): Link(400 * MBIT)}
    with Network(["a", "b", "c"], links) as net:
        found = calibrate(net)
        assert sorted(found) == sorted(links)
        net.links["a", "b"] = Link(60 * MBIT, 0.005)
        with pytest.raises(TestbedError, match=r"a > b carries .*; a > b takes"):
            calibrate(net)


def test_a_link_that_passes_nothing_is_refused_by_name() -> None:
    with Network(["a", "b"], default=Link(50 * MBIT)) as net:
        net.cut("b", "a")
        net.cuts.clear()
        with pytest.raises(TestbedError, match="nothing passes from a to b"):
            calibrate(net)


def test_what_is_timed_at_once_shares_nothing() -> None:
    nodes = [f"n{k}" for k in range(7)]
    net = Network(nodes, default=Link(300 * MBIT))
    groups = batches(net, list(net.links))
    assert sorted(pair for group in groups for pair in group) == sorted(net.links)
    for group in groups:
        assert len({a for a, _ in group}) == len({b for _, b in group}) == len(group) <= 5
        assert not {(b, a) for a, b in group} & set(group)


# --- cleaning ---------------------------------------------------------------------------------


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    names = [name for name in existing() if (found := parse(name)) and found[0].pid == process.pid]
    cleaning.remove(names)


def started(runner: subprocess.Popen[str]) -> list[int]:
    """Wait until the run has begun; return its processes except itself."""
    assert runner.stdout is not None
    own, *others = (int(word) for word in runner.stdout.readline().split())
    assert own == runner.pid
    return [pid for pid in others if pid]


def left(pid: int) -> list[str]:
    return [name for name in existing() if (found := parse(name)) and found[0].pid == pid]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def clean() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "testbed"), "clean"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stderr


def test_clean_removes_what_a_killed_run_left_and_nothing_of_a_living_one(
    runner: subprocess.Popen[str],
) -> None:
    others = started(runner)
    clean()
    assert len(left(runner.pid)) == 3, "two nodes and the switch"
    assert alive(others) == others
    runner.kill()
    runner.wait()
    assert len(left(runner.pid)) == 3
    assert alive(others), "a process in a namespace outlives its maker"
    clean()
    assert left(runner.pid) == []
    deadline = time.monotonic() + WAIT_S
    while alive(others):  # until init has reaped them
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


def test_an_interrupted_run_leaves_nothing(runner: subprocess.Popen[str]) -> None:
    others = started(runner)
    stat = Path(f"/proc/{runner.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":  # not yet in its sleep
        time.sleep(POLL_S)
    runner.send_signal(signal.SIGINT)
    runner.wait(WAIT_S)
    assert left(runner.pid) == []
    assert alive(others) == []


def test_a_network_that_cannot_be_made_leaves_nothing() -> None:
    net = Network(["a", "b"], default=Link(), congestion="nonesuch")
    with pytest.raises(TestbedError, match="no TCP nonesuch"):
        net.open()
    assert cleaning.namespaces_of(net.owner) == []


def test_a_second_ctrl_c_does_not_disturb_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(names: list[str]) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        return cleaning.remove(names)

    before = signal.getsignal(signal.SIGINT)
    net = Network(["a"], default=Link())
    net.open()
    monkeypatch.setattr(network, "remove", interrupted)
    net.close()
    assert cleaning.namespaces_of(net.owner) == []
    assert signal.getsignal(signal.SIGINT) is before


def test_what_the_host_allows_is_as_before_when_the_last_network_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    allowed, added = tmp_path / "allowed", tmp_path / "added"
    allowed.write_text("reno")
    monkeypatch.setattr(congestion, "ALLOWED", allowed)
    monkeypatch.setattr(congestion, "ADDED", added)
    monkeypatch.setattr(congestion, "existing", lambda: left(os.getpid()))
    with Network(["a"], default=Link()) as one:
        with Network(["a"], default=Link()):
            congestion.allow_congestion("bbr")
            congestion.allow_congestion("cubic")
            one.close()
            assert allowed.read_text() == "reno bbr cubic"
            allowed.write_text("reno bbr cubic vegas")  # as another process might
        assert allowed.read_text() == "reno vegas"
    assert not added.exists()


def test_a_daemon_that_ended_is_noticed() -> None:
    with Network(["a", "b"], default=Link(delay_s=0.001), netem=None) as net:
        if net.uses_netem:
            pytest.skip("this kernel makes delays itself")
        assert net.daemon_pid is not None
        os.kill(net.daemon_pid, signal.SIGKILL)
        with pytest.raises(TestbedError, match="has ended"):
            net.set_delay("a", "b", 0.01)
