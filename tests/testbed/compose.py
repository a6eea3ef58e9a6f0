"""Turns a scenario into a file for `docker compose up`: a service for each node, one bridge for
all.

Each container slows its own links and plays its own part of the timeline (`containers/device.py`),
since no process outside is there to do it. What a switch would do to several nodes at once cannot
be done in this way, and is refused.

The text follows from the scenario alone, with the same addresses and the same `tc` lines as in the
network of `network.py`. The whole timeline is in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.transport.token import new_token
from tests.testbed import shaping
from tests.testbed.namespaces import TestbedError
from tests.testbed.play import CLUSTER, network_of
from tests.testbed.shaping import UNSHAPED, Link

if TYPE_CHECKING:
    from tests.testbed.network import Network, Pair
    from tests.testbed.scenario import Event, Scenario

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "edgeagent-testbed"
DEVICE = "eth0"  # name of a container's only network device inside
SUBNET = "10.90.0.0/24"  # the one of `Network.address`
GATEWAY = "10.90.0.254"
OUT = "/out"
SCRIPTS = "/job"
MAX_PLAN = 120_000  # bytes; the kernel takes 128 KiB for one variable

Step = dict[str, Any]


class Part:
    """What one node's container does to its links, from the start on."""

    def __init__(self, scenario: Scenario, net: Network, node: str) -> None:
        self.scenario = scenario
        self.net = net
        self.node = node
        self.links = dict(net.links)
        self.cuts: dict[Pair, None] = {}
        self.blocked = self._blocked()
        self.gso = self._gso()

    def first(self) -> Step:
        """Return how its links are at the start."""
        links = {
            number: (self.net.address(other), self.links[self.node, other])
            for number, other in enumerate(self.scenario.nodes)
            if other != self.node
        }
        limit, count = self.net.limits[self.node], len(self.scenario.nodes)
        return {
            "ip": [f"link set dev {DEVICE} gso_max_size {self.gso}"],
            "tc": {
                "netem": here(shaping.sender(links, limit, count, True)),
                "plain": here(shaping.sender(links, limit, count, False)),
            },
            "gate": "".join(here([shaping.gate(self.blocked, {}, first=True)])),
        }

    def step(self, event: Event) -> Step | None:
        """Return what it does at a line of the timeline, None if nothing."""
        done: Step = {"at_s": event.at_s, "text": event.text}
        if event.node:
            return {**done, "do": event.do} if event.node == self.node else None
        changes = self._relink(event) if event.changes else self._cut(event)
        return {**done, "do": "shape", **changes} if changes else None

    def _relink(self, event: Event) -> Step:
        lines: dict[str, list[str]] = {"netem": [], "plain": []}
        for pair, change in event.changes.items():
            link = self.links[pair] = replace(self.links[pair], **change)
            if pair[0] == self.node:
                minor = shaping.FIRST + self.scenario.nodes.index(pair[1])
                part = shaping.share(link, self.net.limits[self.node], len(self.scenario.nodes))
                line = shaping.htb_class(DEVICE, "1:1", minor, link.rate, part, "change")
                lines["plain"].append(line)
                lines["netem"] += [line, *here([shaping.netem(minor, link, "change")])]
        if not lines["plain"]:
            return {}
        before, self.gso = self.gso, self._gso()
        sizes = [f"link set dev {DEVICE} gso_max_size {self.gso}"] if before != self.gso else []
        return {"tc": lines, "ip": sizes}

    def _cut(self, event: Event) -> Step:
        self.cuts = self.scenario.cuts_after(self.cuts, event)
        before, self.blocked = self.blocked, self._blocked()
        return {"gate": shaping.gate(self.blocked, {})} if before != self.blocked else {}

    def _blocked(self) -> list[str]:
        closed = [(a, self.node) for a in self.scenario.nodes if a != self.node]
        return [self.net.address(p[0]) for p in closed if p in self.cuts or p in self.net.absent]

    def _gso(self) -> int:
        return shaping.gso_bytes(link.rate for p, link in self.links.items() if p[0] == self.node)


def here(lines: Iterable[str]) -> list[str]:
    """Return the lines with the name that the device has in a container."""
    return [line.replace(shaping.DEVICE, DEVICE) for line in lines]


def plan_of(scenario: Scenario, net: Network, node: str, rate_only: bool) -> dict[str, Any]:
    """Return the plan that `containers/device.py` gets on one node."""
    part = Part(scenario, net, node)
    job = scenario.job
    name = f"{SCRIPTS}/{Path(job.name).name}" if Path(job.name).is_absolute() else job.name
    command = ["run", name, "--name", node, "--cluster", CLUSTER, "--steps", str(job.steps)]
    command += [*job.options, *(["--", *job.arguments] if job.arguments else [])]
    return {
        "node": node,
        "starters": scenario.starters,
        "end_s": scenario.end_s,
        "device": DEVICE,
        "command": command,
        "delays": wants_delays(scenario, net.links),
        "rate_only": rate_only,
        "shaping": part.first(),
        "timeline": [step for event in scenario.timeline if (step := part.step(event))],
    }


def wants_delays(scenario: Scenario, links: Mapping[Pair, Link]) -> bool:
    """Return whether packets are to be delayed or lost at any time."""
    changes = [c for event in scenario.timeline for c in event.changes.values()]
    return any(not link.plain for link in links.values()) or any(
        change.get("delay_s") or change.get("loss") for change in changes
    )


def compose_text(scenario: Scenario, rate_only: bool = False) -> str:
    """Return the text of the file. Raises `TestbedError` if the scenario needs something that
    containers cannot do for themselves."""
    if scenario.medium < UNSHAPED:
        raise TestbedError("containers have no common medium: use `scripts/testbed run`")
    if any(limit.down < UNSHAPED for limit in scenario.limits.values()):
        raise TestbedError("a container cannot limit what it receives: use `scripts/testbed run`")
    net = network_of(scenario)
    token = new_token()
    settings = {**shaping.KERNEL_SETTINGS}
    del settings["ipv6/conf/all/disable_ipv6"]  # the engine does that
    if scenario.congestion:
        settings["ipv4/tcp_congestion_control"] = scenario.congestion
    volumes = [f"./testbed-{scenario.name}:{OUT}"]
    if (script := Path(scenario.job.name)).is_absolute():
        volumes.append(f"{script.parent}:{SCRIPTS}:ro")
    services = {}
    for node in scenario.nodes:
        plan = json.dumps(plan_of(scenario, net, node, rate_only), separators=(",", ":"))
        if len(plan) > MAX_PLAN:
            raise TestbedError(f"the timeline is too long for a compose file ({len(plan)} bytes)")
        services[node] = {
            "image": IMAGE,
            "build": {"context": str(ROOT), "dockerfile": "containers/Dockerfile"},
            "hostname": node,
            "init": True,
            "cap_add": ["NET_ADMIN"],
            "networks": {"lan": {"ipv4_address": net.address(node)}},
            "sysctls": {f"net.{path.replace('/', '.')}": v for path, v in settings.items()},
            "entrypoint": ["python3", "/opt/edgeagent/device.py"],
            "volumes": volumes,
            "stop_grace_period": "90s",
            "environment": {
                "EDGEAGENT_TOKEN": token,
                "OMP_NUM_THREADS": "1",
                "TESTBED_PLAN": plan,
            },
        }
    ipam = {"config": [{"subnet": SUBNET, "gateway": GATEWAY}]}
    lan = {"driver": "bridge", "ipam": ipam}
    head = f"# `docker compose -f THIS_FILE up --build` plays {scenario.name}; events and models go"
    head += f" to testbed-{scenario.name}/.\n# Made by scripts/testbed compose. It holds a token.\n"
    body = {"services": services, "networks": {"lan": lan}}
    return head + "\n".join(yaml(body)) + "\n"


def yaml(table: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return the lines of a table. Each `$` is doubled, since compose would replace variables."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value).replace('$', '$$')}")
    return lines
