"""What the facts about this device mean. Pure: facts in, findings out."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

from edgeagent.doctor.findings import Finding, Verdict
from edgeagent.terminal.text import bytes_text
from edgeagent.transport.interface_ranking import Kind

if TYPE_CHECKING:
    from edgeagent.doctor.facts import Device, Firewall, Multicast, Networks
    from edgeagent.transport.interface_ranking import Interface

# A clock before this was never set: this version did not exist then (2026-01-01, Unix time).
EARLIEST_CLOCK = 1767225600.0
LOW_DISK_BYTES = 1 << 30  # a training state with its optimizer may need as much
NO_DISK_BYTES = 10 << 20  # not even the smallest built-in job's state can be written for sure
LOW_MEMORY_BYTES = 1 << 30  # torch alone takes half of it
NO_MEMORY_BYTES = 256 << 20
_MANY = 6  # addresses that are listed; the others are counted
_LAST = (Kind.TUNNEL, Kind.BRIDGE)


def device_findings(device: Device) -> list[Finding]:
    """Return the findings about this device, in the order in which to read them."""
    found = [interfaces_finding(device.networks)]
    only = device.networks.only
    if not only or only in [interface.name for interface in device.networks.interfaces]:
        found.append(multicast_finding(device.networks, device.multicast))
        found.append(ports_finding(device))
    found += [
        firewall_finding(device.firewalls),
        clock_finding(device.now),
        token_finding(device),
    ]
    if device.job is not None:
        problem = device.job.problem
        verdict = Verdict.FAILED if problem else Verdict.OK
        advice = "Correct the name or the path of the job." if problem else ""
        found.append(Finding("job", verdict, problem or f"{device.job.typed} is there", advice))
    return [*found, torch_finding(device), disk_finding(device), memory_finding(device)]


def interfaces_finding(networks: Networks) -> Finding:
    """Return which interface others are told first, and why."""
    check = "interfaces"
    known = {interface.name: interface for interface in networks.interfaces}
    if networks.only and networks.only not in known:
        names = ", ".join(known)
        advice = "Give one of these names to --interface."
        return Finding(
            check, Verdict.FAILED, f"there is no {networks.only}; there are {names}", advice
        )
    order = [(known[name], host) for name, host in networks.order if name in known]
    useful = [entry for entry in order if not ipaddress.ip_address(entry[1]).is_loopback]
    if not useful:
        where = f"{networks.only} has no address" if networks.only else _nothing(networks)
        advice = "Connect this device to the network of the others (cable or Wi-Fi)."
        return Finding(check, Verdict.FAILED, where, advice)
    first = useful[0][0]
    seen = f"{_told(*useful[0])} is told first ({_why(*useful[0], networks)})"
    if rest := useful[1:]:
        more = f" and {len(rest) - _MANY} more" if len(rest) > _MANY else ""
        seen += "; then " + ", ".join(_told(*entry, what=True) for entry in rest[:_MANY]) + more
    if not first.carrier:
        advice = "Plug in the cable, or connect the Wi-Fi."
        return Finding(check, Verdict.FAILED, f"{first.name} is not connected; {seen}", advice)
    if first.kind in _LAST:
        advice = "Devices elsewhere do not reach that; connect this one to the room's network."
        if networks.only:
            advice = "Devices elsewhere do not reach that; leave --interface away, or name another."
        return Finding(check, Verdict.WARNING, seen, advice)
    return Finding(check, Verdict.OK, seen)


def _nothing(networks: Networks) -> str:
    idle = [i.name for i in networks.interfaces if i.kind is not Kind.LOOPBACK and not i.hosts]
    return "no interface has an address" + (f" ({', '.join(idle[:_MANY])})" if idle else "")


def _told(interface: Interface, host: str, *, what: bool = False) -> str:
    return f"{host} on {interface.name}" + (f" ({interface.kind})" if what else "")


def _why(interface: Interface, host: str, networks: Networks) -> str:
    if networks.only:
        return f"{interface.kind}, chosen by --interface"
    if host in networks.default:
        return f"{interface.kind}, the default route"
    return str(interface.kind)


def multicast_finding(networks: Networks, tried: tuple[Multicast, ...]) -> Finding:
    """Return whether multicast DNS goes out and comes in, through the interface that counts."""
    check = "multicast"
    if not tried:
        seen = "no interface has an IPv4 address, and IPv6 multicast is not checked"
        advice = "Name a member with --peer HOST:PORT if the devices do not find each other."
        return Finding(check, Verdict.UNKNOWN, seen, advice)
    first = tried[0]
    by_hand = "or name a member with --peer HOST:PORT"
    if first.problem:
        seen = f"nothing can be sent through {first.interface}: {first.problem}"
        return Finding(check, Verdict.FAILED, seen, f"Allow UDP 5353 in the firewall, {by_hand}.")
    if not first.looped:
        seen = f"what is sent through {first.interface} does not come in again"
        advice = f"Let the firewall of this device accept UDP 5353, {by_hand}."
        return Finding(check, Verdict.FAILED, seen, advice)
    answering = next((one for one in tried if one.hosts), None)
    if answering is None:
        seen = f"it goes out and comes in on {first.interface}, and no other device has answered"
        advice = (
            "Start an agent on another device and look again: whether the network carries "
            "multicast cannot be seen from here alone."
        )
        return Finding(check, Verdict.UNKNOWN, seen, advice)
    count = len({agent.host for one in tried for agent in one.agents})
    agents = f", of them {count} with agents" if count else ""
    devices = len({host for one in tried for host in one.hosts})
    seen = f"it goes out and comes in; {devices} other {_devices(devices)} heard{agents}"
    if answering.interface != first.interface:
        advice = f"Others are on {answering.interface}; if these count, use --interface."
        return Finding(check, Verdict.WARNING, f"{seen}, none on {first.interface}", advice)
    strangers = {a.host for one in tried for a in one.agents if a.ours is False}
    ours = any(agent.ours for one in tried for agent in one.agents)
    if strangers and not ours:
        advice = "If they should be in this cluster, compare their token and --cluster."
        return Finding(check, Verdict.WARNING, f"{seen}, none of our cluster and token", advice)
    return Finding(check, Verdict.OK, seen)


def _devices(count: int) -> str:
    return "device was" if count == 1 else "devices were"


def ports_finding(device: Device) -> Finding:
    """Return which ports an agent would listen on."""
    ports = device.ports
    if ports.problem:
        advice = (
            "Choose another address or port with --listen [HOST:]PORT; if a port is taken, end the "
            "program that has it."
        )
        return Finding("ports", Verdict.FAILED, ports.problem, advice)
    seen = f"an agent would listen on TCP {ports.join} (joins) and {ports.links} (links)"
    if ports.usual and ports.join != ports.usual:
        if ports.agents:
            names = ", ".join(ports.agents)
            return Finding("ports", Verdict.OK, f"{seen}, beside {names}")
        seen += f"; {ports.usual} is taken, perhaps by another user's agent"
        advice = f"If others name this device with --peer, they have to say port {ports.join}."
        return Finding("ports", Verdict.WARNING, seen, advice)
    return Finding("ports", Verdict.OK, seen)


def firewall_finding(firewalls: tuple[Firewall, ...] | None) -> Finding:
    """Return what can be told of this device's own firewall."""
    if firewalls is None:
        seen = "whether one closes the ports cannot be seen from here"
        advice = (
            "If others cannot connect, look at this system's firewall settings; on Linux as root."
        )
        return Finding("firewall", Verdict.UNKNOWN, seen, advice)
    for one in firewalls:
        if one.closes:
            seen = f"{one.name} drops connections to the ports of an agent"
            return Finding("firewall", Verdict.FAILED, seen, f"Open them: {one.opens}")
    for one in firewalls:
        if one.closes is None:
            seen = f"{one.name} is on, and what it lets in is not known"
            return Finding("firewall", Verdict.UNKNOWN, seen, f"If others fail: {one.opens}")
    seen = "no rule of this device's own was found that closes the ports"
    return Finding("firewall", Verdict.OK, seen)


def clock_finding(now: float) -> Finding:
    """Return whether the clock was ever set."""
    seen = f"it is {moment(now)} UTC here"
    if now >= EARLIEST_CLOCK:
        return Finding("clock", Verdict.OK, seen)
    advice = (
        "Set the clock (timedatectl set-ntp true): training works without, but downloads over "
        "HTTPS fail, and logs do not fit together."
    )
    return Finding("clock", Verdict.WARNING, seen, advice)


def moment(now: float) -> str:
    """Return a Unix time as a date and a time of day in UTC."""
    try:
        return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "out of all bounds"


def token_finding(device: Device) -> Finding:
    """Return whether there is a token, and a right one; never the token."""
    token = device.token
    if not token.given:
        advice = (
            "Pair with a device of the cluster (`edgeagent invite` there, `edgeagent join CODE`"
            " here), or make one with `edgeagent token new` and set the same EDGEAGENT_TOKEN"
            " everywhere."
        )
        return Finding("token", Verdict.WARNING, "there is none, so nobody can join", advice)
    if token.problem:
        advice = "Copy the token again from a device on which it works."
        return Finding("token", Verdict.FAILED, f"{token.source}: {token.problem}", advice)
    return Finding("token", Verdict.OK, f"{token.source} is well-formed")


def torch_finding(device: Device) -> Finding:
    """Return whether training scripts can load torch, and what it computes on."""
    torch = device.torch
    if torch.problem:
        advice = "Install torch for this Python, for example the CPU build: pip install torch"
        return Finding("torch", Verdict.FAILED, torch.problem, advice)
    places = ", ".join(torch.devices) or "no GPU: it computes on the CPU"
    return Finding("torch", Verdict.OK, f"torch {torch.version}; {places}")


def disk_finding(device: Device) -> Finding:
    """Return whether there is room for keys and models."""
    for folder in device.folders:
        if folder.problem:
            seen = f"{folder.path} ({folder.use}): {folder.problem}"
            advice = "Start in a folder that you may write to, or name another place."
            return Finding("disk", Verdict.FAILED, seen, advice)
    known = [folder for folder in device.folders if folder.free is not None]
    tightest = min(known, key=lambda folder: folder.free or 0, default=None)
    if tightest is None or tightest.free is None:
        return Finding("disk", Verdict.UNKNOWN, "the system does not say how much is free")
    seen = f"{bytes_text(tightest.free)} are free in {tightest.path} ({tightest.use})"
    advice = "Free some space, or save elsewhere with --save PATH."
    if tightest.free < NO_DISK_BYTES:
        return Finding("disk", Verdict.FAILED, seen, advice)
    if tightest.free < LOW_DISK_BYTES:
        return Finding("disk", Verdict.WARNING, seen, advice)
    return Finding("disk", Verdict.OK, seen)


def memory_finding(device: Device) -> Finding:
    """Return whether there is memory for a trainer at all."""
    free = device.memory
    if free is None:
        return Finding("memory", Verdict.UNKNOWN, "the system does not say how much is free")
    seen = f"{bytes_text(free)} are free"
    job = device.job.typed if device.job is not None and not device.job.problem else "JOB"
    advice = f"`edgeagent run {job} --dry-run` says what the job needs; close other programs."
    if free < NO_MEMORY_BYTES:
        return Finding("memory", Verdict.FAILED, seen, advice)
    if free < LOW_MEMORY_BYTES:
        return Finding("memory", Verdict.WARNING, seen, advice)
    return Finding("memory", Verdict.OK, seen)
