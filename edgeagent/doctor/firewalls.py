"""This device's own packet filter, as far as it can be told without changing anything.

What a filter lets in can be read by root alone. That a filter is on at all can often be read by
anybody, and then the command that opens the ports can be named.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import TYPE_CHECKING

from edgeagent.doctor.facts import Firewall
from edgeagent.errors import EdgeAgentError
from edgeagent.programs import ask

if TYPE_CHECKING:
    from collections.abc import Callable

UFW_FILE = "/etc/ufw/ufw.conf"
FIREWALLD_FOLDER = "/run/firewalld"
_UFW = "sudo ufw allow {0}:{1}/tcp && sudo ufw allow 5353/udp"
_FIREWALLD = "sudo firewall-cmd --add-port={0}-{1}/tcp --add-service=mdns"
_IPTABLES = "sudo iptables -I INPUT -p tcp --dport {0}:{1} -j ACCEPT"


def read_rules() -> str | None:
    """Return the rules of iptables as text, None if this user may not read them."""
    command = shutil.which("iptables-save", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if command is None or os.geteuid() != 0:
        return None
    with contextlib.suppress(EdgeAgentError):
        return ask((command, "-t", "filter"))
    return None


def find_firewalls(
    join: int,
    links: int,
    rules: Callable[[], str | None] = read_rules,
    ufw: str = UFW_FILE,
    firewalld: str = FIREWALLD_FOLDER,
) -> tuple[Firewall, ...] | None:
    """Return the packet filters that are on, for an agent that listens on these two TCP ports; None
    if none is seen and the rules may not be read."""
    text = rules()
    closes = None if text is None else closes_ports(text, (join, links))
    found = []
    with contextlib.suppress(OSError), open(ufw, encoding="utf-8", errors="replace") as file:
        if re.search(r"^\s*ENABLED=yes", file.read(), re.MULTILINE):
            found.append(Firewall("ufw", closes or None, _UFW.format(join, links)))
    if os.path.isdir(firewalld):
        found.append(Firewall("firewalld", closes or None, _FIREWALLD.format(join, links)))
    if closes and not found:
        found.append(Firewall("iptables", True, _IPTABLES.format(join, links)))
    return tuple(found) if found or text is not None else None


def closes_ports(rules: str, ports: tuple[int, ...]) -> bool:
    """Return whether the INPUT chain of what `iptables-save` printed drops or rejects new TCP
    connections to any of `ports`. Chains that it jumps to are not followed."""
    policy = re.search(r"^:INPUT (\w+)", rules, re.MULTILINE)
    closed = policy is not None and policy[1] == "DROP"
    return any(_closes(rules, port, closed) for port in ports)


def _closes(rules: str, port: int, policy: bool) -> bool:
    for line in rules.splitlines():
        if not line.startswith("-A INPUT "):
            continue
        words = line.split()
        target = words[words.index("-j") + 1] if "-j" in words else ""
        if target not in ("ACCEPT", "DROP", "REJECT") or not _concerns(words, port):
            continue
        return target != "ACCEPT"
    return policy


def _concerns(words: list[str], port: int) -> bool:
    """Return whether a rule speaks of all new TCP connections to `port`, from wherever."""
    if any(word in words for word in ("-i", "-s", "!", "--ctstate", "--state", "--length")):
        return False
    if "-p" in words and words[words.index("-p") + 1] != "tcp":
        return False
    for option in ("--dport", "--dports"):
        if option in words:
            return any(_holds(part, port) for part in words[words.index(option) + 1].split(","))
    return "--sport" not in words


def _holds(text: str, port: int) -> bool:
    first, _, last = text.partition(":")
    if not first.isdecimal() or not (last or first).isdecimal():
        return False
    return int(first) <= port <= int(last or first)
