"""What the doctor makes of facts: a verdict for each, and a sentence that says what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgeagent.doctor import device_findings as device_module
from edgeagent.doctor.device_findings import EARLIEST_CLOCK, device_findings, firewall_finding
from edgeagent.doctor.facts import (
    Announced,
    Answer,
    Asked,
    Device,
    Echoes,
    Facts,
    Firewall,
    Folder,
    JobFact,
    Multicast,
    Networks,
    Peer,
    Ports,
    Rates,
    Reach,
    TokenFact,
    TorchFact,
)
from edgeagent.doctor.findings import Finding, Verdict, failed
from edgeagent.doctor.peer_findings import peer_findings
from edgeagent.transport.interface_ranking import Interface, Kind, ranked

OK, WARNING, FAILED, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.UNKNOWN
LO = Interface("lo", Kind.LOOPBACK, ("127.0.0.1",))
LAN = Interface("eth0", Kind.WIRED, ("192.168.1.20",), mtu=1500)
WIFI = Interface("wlan0", Kind.WIRELESS, ("192.168.1.21",))
DOCKER = Interface("docker0", Kind.BRIDGE, ("172.17.0.1",))
PORT = "peer:7430"
NOW = EARLIEST_CLOCK + 1e6


def networks(*interfaces: Interface, only: str = "") -> Networks:
    kept = tuple(one for one in interfaces if only in ("", one.name))
    order = tuple((interface.name, host) for interface, host in ranked(kept, ()))
    return Networks(interfaces, order, (), only)


DEVICE = Device(
    networks=networks(LO, DOCKER, LAN),
    multicast=(Multicast("eth0", "192.168.1.20", "", True, ("192.168.1.30",)),),
    ports=Ports(7430, 7431, 7430),
    firewalls=(),
    now=NOW,
    token=TokenFact("EDGEAGENT_TOKEN", given=True),
    job=JobFact("train.py"),
    torch=TorchFact("2.13.0"),
    folders=(Folder("here", "models", 1 << 40),),
    memory=1 << 34,
)
PEER = Peer(
    PORT,
    Reach.ANSWERED,
    through=("eth0", "192.168.1.20"),
    hosts=("192.168.1.30",),
    round_trips=(0.002, 0.001),
    asked=Asked(Answer.AGENT, "", None, False, (1,), "bob", "member", 2, NOW - 60),
    links=(("192.168.1.30:7431", Reach.ANSWERED),),
    called_back=0.2,
    heard=("192.168.1.30",),
    echoes=Echoes(True, True, 84, 1500),
    rates=Rates("alice", 93.0, 88.0, 0.5),
)


def of_device(**changes: Any) -> dict[str, Finding]:
    """Return the findings about a device that differs so from a healthy one, by check."""
    return {finding.check: finding for finding in device_findings(replace(DEVICE, **changes))}


def of_peer(device: Device = DEVICE, **changes: Any) -> dict[str, Finding]:
    """Return the findings about a peer that differs so from a healthy one, by check."""
    facts = Facts(device, (1,), replace(PEER, **changes))
    return {finding.check: finding for finding in peer_findings(facts)}


def test_a_healthy_device_and_peer_are_ok_and_need_no_advice() -> None:
    found = [*of_device().values(), *of_peer().values()]
    assert {finding.verdict for finding in found} == {OK}, found
    assert not any(finding.advice for finding in found)
    assert not failed(found)
    assert peer_findings(Facts(DEVICE, (1,))) == []
    assert len(found) == 21


@pytest.mark.parametrize(
    ("seen", "verdict", "says"),
    [
        (networks(LO, DOCKER, LAN), OK, "192.168.1.20 on eth0 is told first (wired); then 172."),
        (networks(LO, WIFI), OK, "192.168.1.21 on wlan0 is told first (wireless)"),
        (networks(LO, DOCKER), WARNING, "172.17.0.1 on docker0 is told first (bridge of"),
        (networks(LO, DOCKER, LAN, only="docker0"), WARNING, "chosen by --interface"),
        (networks(LO, DOCKER, LAN, only="eth0"), OK, "(wired, chosen by --interface)"),
        (networks(LO, LAN, only="eth7"), FAILED, "there is no eth7; there are lo, eth0"),
        (networks(LO), FAILED, "no interface has an address"),
        (networks(LO, replace(LAN, hosts=())), FAILED, "no interface has an address (eth0)"),
        (networks(LO, replace(LAN, hosts=()), only="eth0"), FAILED, "eth0 has no address"),
        (networks(LO, replace(LAN, carrier=False)), FAILED, "eth0 is not connected"),
    ],
)
def test_interfaces(seen: Networks, verdict: Verdict, says: str) -> None:
    finding = of_device(networks=seen)["interfaces"]
    assert finding.verdict is verdict
    assert says in finding.seen
    assert bool(finding.advice) == (verdict is not OK)


def test_an_interface_that_there_is_not_is_one_finding() -> None:
    found = of_device(networks=networks(LO, LAN, only="eth7"), ports=Ports(problem="no eth7"))
    assert [name for name, finding in found.items() if finding.verdict is FAILED] == ["interfaces"]


def test_many_addresses_are_counted_and_the_default_route_is_named() -> None:
    many = replace(LAN, hosts=tuple(f"192.168.1.{n}" for n in range(1, 10)))
    seen = of_device(networks=networks(LO, many))["interfaces"].seen
    assert seen.endswith(" and 2 more")
    default = replace(networks(LO, LAN), default=("192.168.1.20",))
    assert "the default route" in of_device(networks=default)["interfaces"].seen


HEARD = Multicast("eth0", "192.168.1.20", "", True, ("192.168.1.30",))
ALONE = Multicast("eth0", "192.168.1.20", "", True)
STRANGER = replace(HEARD, agents=(Announced("192.168.1.30", ours=False),))


@pytest.mark.parametrize(
    ("seen", "verdict", "says"),
    [
        ((HEARD,), OK, "1 other device was heard"),
        ((STRANGER,), WARNING, "1 with agents, none of our cluster"),
        ((replace(STRANGER, agents=(Announced("x", ours=True),)),), OK, "of them 1 with agents"),
        ((ALONE,), UNKNOWN, "no other device has answered"),
        ((replace(ALONE, looped=False),), FAILED, "does not come in again"),
        ((replace(ALONE, problem="not permitted"),), FAILED, "through eth0: not permitted"),
        ((ALONE, replace(HEARD, interface="wlan0")), WARNING, "none on eth0"),
        ((), UNKNOWN, "no interface has an IPv4 address"),
    ],
)
def test_multicast(seen: tuple[Multicast, ...], verdict: Verdict, says: str) -> None:
    finding = of_device(multicast=seen)["multicast"]
    assert finding.verdict is verdict
    assert says in finding.seen
    assert bool(finding.advice) == (verdict is not OK)


@pytest.mark.parametrize(
    ("change", "check", "verdict", "says"),
    [
        ({"ports": Ports(problem="no free port")}, "ports", FAILED, "no free port"),
        ({"ports": Ports(7432, 7433, 7430)}, "ports", WARNING, "7430 is taken"),
        ({"ports": Ports(7432, 7433, 7430, "", ("al",))}, "ports", OK, "7433 (links), beside al"),
        ({"firewalls": (Firewall("ufw", None, "allow"),)}, "firewall", UNKNOWN, "ufw is on"),
        ({"firewalls": (Firewall("nft", True, "open"),)}, "firewall", FAILED, "nft drops"),
        ({"firewalls": (Firewall("nft", False, "open"),)}, "firewall", OK, "no rule"),
        ({"now": 12.0}, "clock", WARNING, "1970-01-01 00:00:12 UTC"),
        ({"now": 1e30}, "clock", OK, "out of all bounds"),
        ({"token": TokenFact("T", given=False)}, "token", WARNING, "there is none"),
        ({"token": TokenFact("T", given=True, problem="a typo")}, "token", FAILED, "T: a typo"),
        ({"job": JobFact("x.py", "no script x.py")}, "job", FAILED, "no script x.py"),
        ({"torch": TorchFact(problem="No module named torch")}, "torch", FAILED, "No module"),
        ({"torch": TorchFact("2", ("cuda:0 (X)",))}, "torch", OK, "torch 2; cuda:0 (X)"),
        ({"folders": (Folder("f", "models", 1 << 40, "no"),)}, "disk", FAILED, "f (models): no"),
        ({"folders": (Folder("f", "models", 100),)}, "disk", FAILED, "100 B are free"),
        ({"folders": (Folder("f", "models", 1 << 28),)}, "disk", WARNING, "268.4 MB are free"),
        ({"folders": (Folder("f", "models", None),)}, "disk", UNKNOWN, "does not say"),
        ({"memory": None}, "memory", UNKNOWN, "does not say"),
        ({"memory": 1 << 29}, "memory", WARNING, "536.9 MB"),
        ({"memory": 1 << 20}, "memory", FAILED, "1.0 MB"),
    ],
)
def test_the_device(change: dict[str, Any], check: str, verdict: Verdict, says: str) -> None:
    found = of_device(**change)
    assert found[check].verdict is verdict
    assert says in found[check].seen
    others = {f.verdict for name, f in found.items() if name != check}
    assert others == {OK}, "one trouble is one finding"
    if verdict in (WARNING, FAILED):
        assert found[check].advice


def test_without_a_job_there_is_nothing_to_say_of_it() -> None:
    assert "job" not in of_device(job=None)
    assert "edgeagent run JOB --dry-run" in of_device(job=None, memory=1)["memory"].advice
    assert "edgeagent run train.py --dry-run" in of_device(memory=1)["memory"].advice


@pytest.mark.parametrize(
    ("reach", "says", "advises"),
    [
        (Reach.REFUSED, "nothing listens on TCP 7430", "Start the agent there"),
        (Reach.SILENT, "does not answer", "Open TCP 7430 and 7431"),
        (Reach.UNREACHABLE, "no way to", "one network"),
        (Reach.UNKNOWN_NAME, "nobody knows", "in figures"),
    ],
)
def test_a_peer_that_is_not_reached_is_one_finding(reach: Reach, says: str, advises: str) -> None:
    found = of_peer(reach=reach)
    assert list(found) == ["peer: reached"]
    finding = found["peer: reached"]
    assert finding.verdict is FAILED
    assert says in finding.seen
    assert advises in finding.advice


@pytest.mark.parametrize(
    ("asked", "check", "verdict", "says"),
    [
        (Asked(Answer.OTHER_VERSION, versions=(2, 3)), "peer: version", FAILED, "2, 3, and this"),
        (Asked(Answer.OTHER_TOKEN, versions=(1,)), "peer: token", FAILED, "does not accept"),
        (Asked(Answer.OURSELVES), "peer: agent", FAILED, "this device itself"),
        (Asked(Answer.BUSY), "peer: agent", WARNING, "too busy"),
        (Asked(Answer.NO_AGENT, "no TLS"), "peer: agent", FAILED, "no agent (no TLS)"),
        (Asked(Answer.NOTHING), "peer: agent", FAILED, "nothing comes back"),
        (Asked(Answer.NOT_ASKED), "peer: agent", UNKNOWN, "no usable token here"),
    ],
)
def test_who_answers(asked: Asked, check: str, verdict: Verdict, says: str) -> None:
    found = of_peer(asked=asked)
    assert found[check].verdict is verdict
    assert says in found[check].seen
    assert found[check].advice
    assert "peer: way back" not in found, "only an agent of ours connects back"


def test_packets_that_are_swallowed_are_named_with_the_mtu_that_helps() -> None:
    for segment, mtu in ((1220, 1280), (536, 576)):
        finding = of_peer(asked=replace(PEER.asked, segment=segment, vain=True))[
            "peer: large packets"
        ]
        assert finding.verdict is FAILED
        assert f"set dev eth0 mtu {mtu}`" in finding.advice
    slow = replace(PEER.asked, segment=1220, vain=False)  # the first question got lost otherwise
    assert of_peer(asked=slow)["peer: large packets"].verdict is OK
    back = of_peer(echoes=Echoes(True, False, 84, 1500))["peer: large packets"]
    assert back.verdict is WARNING
    assert "1280" in back.advice
    for echoes in (Echoes(), Echoes(small=False, small_size=84)):
        alone = of_peer(echoes=echoes)["peer: large packets"]
        assert alone.verdict is OK
        assert "the way back is not measured" in alone.seen
    unknown = of_peer(asked=Asked(Answer.NOTHING), echoes=Echoes())
    assert "peer: large packets" not in unknown


def test_addresses_for_links() -> None:
    good, bad = ("192.168.1.30:7431", Reach.ANSWERED), ("172.17.0.1:7431", Reach.SILENT)
    assert of_peer(links=(good, bad))["peer: links"].verdict is OK
    late = of_peer(links=(bad, good))["peer: links"]
    assert late.verdict is WARNING
    assert "--interface" in late.advice
    none = of_peer(links=(bad,))["peer: links"]
    assert none.verdict is FAILED
    assert "Open TCP 7431" in none.advice
    assert of_peer(links=())["peer: links"].verdict is FAILED


def test_a_peer_that_does_not_connect_back() -> None:
    quiet = of_peer(called_back=None)["peer: way back"]
    assert quiet.verdict is WARNING
    assert "TCP 7430 and 7431 in the firewall of this device." in quiet.advice
    closed = replace(DEVICE, firewalls=(Firewall("iptables", True, "iptables -I INPUT"),))
    assert of_peer(closed, called_back=None)["peer: way back"].verdict is FAILED
    busy = replace(DEVICE, ports=Ports(problem="ports are taken"))
    assert of_peer(busy, called_back=None)["peer: way back"].verdict is UNKNOWN
    maybe = replace(DEVICE, firewalls=(Firewall("ufw", None, "ufw allow"),))
    quiet = of_peer(maybe, called_back=None)["peer: way back"]
    assert quiet.verdict is WARNING
    assert quiet.advice.endswith("ufw allow")
    unseen = replace(DEVICE, firewalls=None)
    assert of_peer(unseen, called_back=None)["peer: way back"].verdict is WARNING
    assert firewall_finding(None).verdict is UNKNOWN


def test_a_peer_that_is_not_heard_by_multicast() -> None:
    quiet = of_peer(heard=())["peer: multicast"]
    assert quiet.verdict is WARNING
    assert f"--peer {PORT}" in quiet.advice
    deaf = replace(DEVICE, multicast=(replace(ALONE, looped=False),))
    assert of_peer(deaf, heard=())["peer: multicast"].verdict is UNKNOWN
    assert "peer: multicast" not in of_peer(heard=(), through=("lo", "127.0.0.1"))


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(7200.0, WARNING), (31.0, WARNING), (29.0, OK), (-7200.0, OK)]
)
def test_the_clock_of_the_peer(ahead: float, verdict: Verdict) -> None:
    asked = replace(PEER.asked, started=NOW + ahead)
    assert of_peer(asked=asked)["peer: clock"].verdict is verdict
    unsaid = replace(PEER.asked, started=None)
    assert of_peer(asked=unsaid)["peer: clock"].verdict is UNKNOWN


def test_delay_and_rates() -> None:
    slow = of_peer(round_trips=(0.9, 0.4))["peer: delay"]
    assert slow.verdict is WARNING
    assert slow.seen.startswith("0.40 s there and back (the least of 2)")
    assert "peer: delay" not in of_peer(round_trips=())
    unmeasured = of_peer(rates=None)["peer: rates"]
    assert unmeasured.verdict is UNKNOWN
    assert unmeasured.seen.startswith("not measured")
    assert "93.0 Mbit/s there, 88.0 Mbit/s back" in of_peer()["peer: rates"].seen


def test_text_of_a_peer_cannot_steer_the_terminal() -> None:
    asked = replace(PEER.asked, name="bob\x1b[2J")
    assert "\x1b" not in of_peer(asked=asked)["peer: agent"].seen
    other = Asked(Answer.NO_AGENT, "\x1b[2J")
    assert "\x1b" not in of_peer(asked=other)["peer: agent"].seen


def test_every_limit_has_its_sense() -> None:
    assert device_module.NO_DISK_BYTES < device_module.LOW_DISK_BYTES
    assert device_module.NO_MEMORY_BYTES < device_module.LOW_MEMORY_BYTES
