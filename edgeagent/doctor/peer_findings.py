"""What the facts about a peer mean. Pure: facts in, findings out.

A check that could not be made because an earlier one failed is left out, so that what is shown
first is what has to be mended first.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from edgeagent.config import split_address
from edgeagent.doctor.device_findings import moment
from edgeagent.doctor.facts import Answer, Reach
from edgeagent.doctor.findings import Finding, Verdict
from edgeagent.terminal.text import clean, mbit_text, plural, seconds_text

if TYPE_CHECKING:
    from edgeagent.doctor.facts import Device, Facts, Peer

# A peer was started in the past, so a start that lies further in the future shows that its clock
# and ours differ. Two clocks that a time server sets differ by far less.
CLOCK_SECONDS = 30.0
SLOW_SECONDS = 0.2  # there and back; within a room it is a hundredth of that
HEADERS_V4, HEADERS_V6 = 40, 60  # bytes of TCP and IP beside a segment's payload


def peer_findings(facts: Facts) -> list[Finding]:
    """Return the findings about the peer, none without one."""
    peer = facts.peer
    if peer is None:
        return []
    found = [reach_finding(peer)]
    if peer.reach is not Reach.ANSWERED:
        return found
    answer = peer.asked.answer
    found += [*packets_findings(peer), *answer_findings(facts, peer)]
    if answer is Answer.AGENT:
        found += [
            links_finding(peer),
            back_finding(facts.device, peer),
            *discovery_findings(facts.device, peer),
            peer_clock_finding(facts.device, peer),
        ]
    return [*found, *speed_findings(peer)]


def reach_finding(peer: Peer) -> Finding:
    """Return whether anything answers at the peer's address."""
    check = "peer: reached"
    port = split_address(peer.address)[1]
    match peer.reach:
        case Reach.ANSWERED:
            name, host = peer.through
            seen = f"{peer.address} answers, through {name or '?'} ({host})"
            return Finding(check, Verdict.OK, seen)
        case Reach.REFUSED:
            seen = f"{peer.address} is there, and nothing listens on TCP {port}"
            advice = "Start the agent there, and use the address that it prints at its start."
        case Reach.SILENT:
            seen = f"{peer.address} does not answer; the packets are dropped on the way or there"
            advice = (
                f"Open TCP {port} and {port + 1} in the firewall there, and see whether both are "
                "in one network (guest Wi-Fi keeps devices apart)."
            )
        case Reach.UNREACHABLE:
            seen = f"there is no way to {peer.address}: {peer.detail}"
            advice = "Connect both devices to one network, or compare the address with the peer's."
        case Reach.UNKNOWN_NAME:
            seen = f"nobody knows the name in {peer.address}: {peer.detail}"
            advice = "Give the address in figures, as the agent there prints it."
    return Finding(check, Verdict.FAILED, seen, advice)


def packets_findings(peer: Peer) -> list[Finding]:
    """Return whether large packets get through."""
    check = "peer: large packets"
    asked, echoes = peer.asked, peer.echoes
    if asked.vain and asked.segment is not None:
        fits = asked.segment + (HEADERS_V6 if asked.segment > 1000 else HEADERS_V4)
        seen = (
            "full-size packets are swallowed on the way there, while segments of "
            f"{asked.segment} bytes arrive"
        )
        advice = (
            f"Lower the interface's MTU on both devices, `sudo ip link set dev "
            f"{peer.through[0] or 'NAME'} mtu {fits}`, or have the tunnel or router between them "
            "report its MTU (ICMP)."
        )
        return [Finding(check, Verdict.FAILED, seen, advice)]
    if echoes.small and echoes.large is False:
        seen = (
            f"an echo of {echoes.large_size} bytes does not come back, one of "
            f"{echoes.small_size} does"
        )
        advice = "If links stand still, lower the MTU of the interface on both devices to 1280."
        return [Finding(check, Verdict.WARNING, seen, advice)]
    if echoes.small and echoes.large:
        return [Finding(check, Verdict.OK, f"{echoes.large_size} bytes pass both ways")]
    if asked.answer in (Answer.NO_AGENT, Answer.NOTHING, Answer.NOT_ASKED):
        return []
    seen = "full-size packets pass on the way there; the way back is not measured"
    return [Finding(check, Verdict.OK, f"{seen} (no ICMP echo)")]


def answer_findings(facts: Facts, peer: Peer) -> list[Finding]:
    """Return who answers there, which version it speaks and whether it accepts our token."""
    asked, check = peer.asked, "peer: agent"
    ours = _versions(facts.versions)
    theirs = _versions(asked.versions)
    version = Finding("peer: version", Verdict.OK, f"both speak protocol version {theirs}")
    match asked.answer:
        case Answer.AGENT:
            members = plural(asked.members, "member")
            phase = f"in a cluster of {members}" if asked.phase == "member" else "without a cluster"
            who = Finding(check, Verdict.OK, f"{clean(asked.name)} answers, {phase}")
            token = "both ends have proven that they hold the same token and cluster name"
            return [who, version, Finding("peer: token", Verdict.OK, token)]
        case Answer.OTHER_VERSION:
            seen = f"it speaks protocol version {theirs}, and this edgeagent {ours}"
            advice = "Install the same edgeagent on both devices."
            return [Finding("peer: version", Verdict.FAILED, seen, advice)]
        case Answer.OTHER_TOKEN:
            seen = "it does not accept our proof: its token or its cluster name differs"
            advice = "Compare EDGEAGENT_TOKEN and --cluster on both devices."
            return [version, Finding("peer: token", Verdict.FAILED, seen, advice)]
        case Answer.OURSELVES:
            seen = "this device itself answers there"
            advice = "Give the address of the other device."
            return [Finding(check, Verdict.FAILED, seen, advice)]
        case Answer.BUSY:
            seen = "an agent answers and is too busy to talk"
            return [Finding(check, Verdict.WARNING, seen, "Look again in a minute.")]
        case Answer.NO_AGENT:
            seen = f"what listens there is no agent ({clean(asked.detail)})"
            advice = "Use the address that the agent prints at its start."
            return [Finding(check, Verdict.FAILED, seen, advice)]
        case Answer.NOTHING:
            seen = "the connection opens, and then nothing comes back"
            advice = "End and start the agent there; if that does not help, look at that device."
            return [Finding(check, Verdict.FAILED, seen, advice)]
        case Answer.NOT_ASKED:
            seen = "it was not asked who it is: there is no usable token here (see the check token)"
            advice = "Pair both (`edgeagent invite`, `edgeagent join CODE`), or give the token."
            return [Finding(check, Verdict.UNKNOWN, seen, advice)]


def _versions(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions)) or "?"


def links_finding(peer: Peer) -> Finding:
    """Return at which of the addresses that the peer tells for its links it can be reached."""
    check = "peer: links"
    good = [address for address, reach in peer.links if reach is Reach.ANSWERED]
    bad = [address for address, reach in peer.links if reach is not Reach.ANSWERED]
    if not good:
        told = ", ".join(bad[:3]) or "none"
        seen = f"none of the addresses that it tells for links answers ({told})"
        port = split_address(bad[0])[1] if bad else 0
        advice = f"Open TCP {port} in the firewall there." if bad else "Connect it to the network."
        return Finding(check, Verdict.FAILED, seen, advice)
    seen = f"{good[0]} answers"
    if not bad:
        return Finding(check, Verdict.OK, seen)
    seen += f", {', '.join(bad[:3])} {'does' if len(bad) == 1 else 'do'} not"
    if peer.links[0][0] == good[0]:
        return Finding(check, Verdict.OK, f"{seen} (and need not)")
    advice = "Each connection tries in vain first: start the agent there with --interface NAME."
    return Finding(check, Verdict.WARNING, seen, advice)


def back_finding(device: Device, peer: Peer) -> Finding:
    """Return whether the peer can connect to this device; it was told the address."""
    check = "peer: way back"
    if peer.called_back is not None:
        seen = f"it has connected to this device after {seconds_text(peer.called_back)}"
        return Finding(check, Verdict.OK, seen)
    if device.ports.problem:
        seen = "nothing listens on this device now, so the peer cannot connect to it"
        return Finding(check, Verdict.UNKNOWN, seen, "Mend the ports first; see above.")
    seen = "it was told this device's addresses and has not connected to any of them"
    known = [firewall for firewall in device.firewalls or () if firewall.closes]
    opens = [firewall.opens for firewall in device.firewalls or ()]
    ports = f"TCP {device.ports.join} and {device.ports.links}"
    advice = f"Open {ports} in the firewall of this device{': ' + opens[0] if opens else '.'}"
    return Finding(check, Verdict.FAILED if known else Verdict.WARNING, seen, advice)


def discovery_findings(device: Device, peer: Peer) -> list[Finding]:
    """Return whether the peer and this device find each other by multicast; nothing about a peer on
    this same device, through whose loopback interface no multicast goes."""
    check = "peer: multicast"
    if peer.through[1] and ipaddress.ip_address(peer.through[1].partition("%")[0]).is_loopback:
        return []
    if peer.heard:
        return [Finding(check, Verdict.OK, f"its multicast comes in, from {peer.heard[0]}")]
    if all(one.problem or not one.looped for one in device.multicast):
        return [Finding(check, Verdict.UNKNOWN, "multicast does not work here; see above")]
    seen = "it answers over TCP, and not by multicast: without --peer they do not find each other"
    advice = (
        f"Start agents with --peer {peer.address}, or see whether the access point keeps "
        "multicast from passing (and whether the peer was started with --no-mdns)."
    )
    return [Finding(check, Verdict.WARNING, seen, advice)]


def peer_clock_finding(device: Device, peer: Peer) -> Finding:
    """Return what can be told of the peer's clock: an agent says when it was started, so a clock
    that is ahead of ours shows, and one that is behind looks like an earlier start."""
    check = "peer: clock"
    started = peer.asked.started
    if started is None:
        return Finding(check, Verdict.UNKNOWN, "it does not say when it was started")
    if started > device.now + CLOCK_SECONDS:
        ahead = seconds_text(started - device.now)
        seen = f"it was started {ahead} from now ({moment(started)} UTC by its clock)"
        advice = (
            "Set both clocks (timedatectl set-ntp true): training works without, but event files "
            "and logs do not fit together, and downloads may fail."
        )
        return Finding(check, Verdict.WARNING, seen, advice)
    seen = f"it was started {moment(started)} UTC by its clock, which is not ahead of ours"
    return Finding(check, Verdict.OK, f"{seen} (behind would not show)")


def speed_findings(peer: Peer) -> list[Finding]:
    """Return the delay, and the rates as far as somebody has measured them."""
    found = []
    if peer.round_trips:
        least = min(peer.round_trips)
        seen = f"{seconds_text(least)} there and back (the least of {len(peer.round_trips)})"
        verdict = Verdict.WARNING if least > SLOW_SECONDS else Verdict.OK
        advice = "Move closer to the access point, or use a cable." if least > SLOW_SECONDS else ""
        found.append(Finding("peer: delay", verdict, f"{seen}; each way is not measured", advice))
    rates = peer.rates
    if rates is None:
        seen = "not measured: only two agents that are linked measure how fast their link is"
        advice = "Run an agent here, and look at `edgeagent status`."
        return [*found, Finding("peer: rates", Verdict.UNKNOWN, seen, advice)]
    seen = (
        f"{mbit_text(rates.there)} Mbit/s there, {mbit_text(rates.back)} Mbit/s back, as "
        f"{clean(rates.agent)} on this device has measured"
    )
    return [*found, Finding("peer: rates", Verdict.OK, seen)]
