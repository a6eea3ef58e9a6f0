"""Agents in containers: the timeline as in namespaces, and as a compose file has it played.

The tests run on a container engine of their own, which they start and end. Where none can start,
they skip themselves and say why.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgeagent.demo.view import PlainView
from edgeagent.transport.token import new_token
from tests.scenarios.cluster import Agent
from tests.scenarios.processes import living
from tests.testbed import compose, results, shaping
from tests.testbed.agents import environment
from tests.testbed.calibrate import calibrate
from tests.testbed.containers import ROOT, ContainerNetwork
from tests.testbed.engine import Engine, own_engine
from tests.testbed.namespaces import TestbedError, existing, unusable
from tests.testbed.network import MBIT, Link
from tests.testbed.play import Player, network_of
from tests.testbed.scenario import Event, Scenario, parse

WAIT_S = 60.0
VALUES: dict[str, Any] = {
    "nodes": ["alice", "bob", "carol"],
    "end_s": 600,
    "job": {"name": "digits", "steps": 100000, "options": ["--threads", "1"]},
    "network": {"rate": 50},
    "event": [
        {"at_s": 1, "do": "join", "node": "carol"},
        {"at_s": 2, "do": "rate", "between": ["alice", "carol"], "rate": 20},
        {"at_s": 3, "do": "kill", "node": "bob"},
    ],
}

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if why := unusable():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(own_engine())
        except TestbedError as error:
            pytest.skip(f"no container engine starts here: {error}")
        yield started
    assert not Path(started.host.removeprefix("unix://")).parent.exists()


def scenario(**changes: Any) -> Scenario:
    return parse({**VALUES, **changes}, "x.toml", "smoke")


def test_a_node_is_a_container_that_can_shape_its_own_network(
    engine: Engine, tmp_path: Path
) -> None:
    link = Link(20 * MBIT, 0.001)
    with ContainerNetwork(["a", "b"], default=link, engine=engine, folder=tmp_path) as net:
        said = engine.docker("exec", net.namespace("a"), "tc", "class", "show", "dev", "lan0")
        assert "ceil 20Mbit" in said
        engine.docker(
            *("exec", net.namespace("a"), "tc", "class", "change", "dev", shaping.DEVICE),
            *("parent", "1:1", "classid", "1:101", "htb", "rate", "7mbit"),
        )
        outside = net.command("a", ["tc", "class", "show", "dev", "lan0"])
        assert "rate 7Mbit" in subprocess.run(outside, capture_output=True, text=True).stdout
        script = "import os, time; os.fork(); time.sleep(1000)"
        process = net.popen("a", [sys.executable, "-c", script])
        process.send_signal(signal.SIGCONT)  # waits until it is there
        session = net.session(process)
        assert session != process.pid
        theirs, ours = (os.readlink(f"/proc/{pid}/ns/pid") for pid in (session, os.getpid()))
        assert theirs != ours
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM
        names = [net.namespace(node) for node in net.nodes]
        assert engine.docker("ps", "--format={{.Names}}").split() == names[::-1]
    assert not engine.docker("ps", "--all", "--quiet")
    assert not any(process.session == session for process in living())
    assert not [name for name in existing() if name in names]


def test_a_join_and_a_death_in_containers(engine: Engine, tmp_path: Path) -> None:
    played_one = scenario(network={"rate": 50, "delay_ms": 2})
    join, rate, kill = played_one.timeline
    with network_of(played_one, partial(ContainerNetwork, engine=engine, folder=tmp_path)) as net:
        calibrate(net)
        player = Player(played_one, net, tmp_path, PlainView(sys.stderr))
        played = player.played
        alice, bob = (player.start(node).agent for node in played_one.starters)
        for starter in (alice, bob):
            starter.wait_members("alice", "bob")
        played.began_t = time.time()
        player.do(join)
        carol = played.lives[-1].agent
        for member in (alice, bob, carol):
            member.wait_members("alice", "bob", "carol")
        player.do(rate)
        carol.wait_steps(2)
        player.do(kill)
        for member in (alice, carol):
            member.wait_members("alice", "carol")
            member.wait_steps(2)
        played.ended_t = time.time()
        for life in (played.lives[0], played.lives[2]):
            player.do(Event(4, "ctrl-c", node=life.node))
            assert life.agent.wait_exit() == 0
        played.sent = net.counters()
        result = results.summary(played_one, played)
    assert result["problems"] == []
    assert result["digests_equal"]
    states = {name: node["state"] for name, node in result["nodes"].items()}
    assert states == {"alice": "left", "bob": "killed", "carol": "left"}
    assert "carol" in [found["node"] for found in result["joins"]]
    assert {"node": "bob", "reason": "failure"}.items() <= result["stalls"][0].items()
    assert min(result["sent_bytes"].values()) > 0, "every pair has talked"
    assert not engine.docker("ps", "--all", "--quiet")


@pytest.mark.long
def test_containers_play_a_compose_files_part_by_themselves(engine: Engine, tmp_path: Path) -> None:
    played = scenario()
    settings = {**environment(tmp_path), "EDGEAGENT_TOKEN": new_token()}
    device = [sys.executable, str(ROOT / "containers" / "device.py")]
    agents = {}
    with ContainerNetwork(played.nodes, default=Link(), engine=engine, folder=tmp_path) as net:
        for node in played.nodes:
            plan = json.dumps(compose.plan_of(played, network_of(played), node, rate_only=False))
            here = {"TESTBED_PLAN": plan.replace(compose.DEVICE, shaping.DEVICE)}
            with (tmp_path / f"{node}.log").open("wb") as log:
                process = net.popen(
                    node,
                    device,
                    cwd=tmp_path,
                    env=settings | here,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            agents[node] = agent(node, process, tmp_path)
        alice, bob, carol = agents.values()
        carol.wait("joined")
        assert bob.wait_exit() == 0, "it was killed as it should"
        for member in (alice, carol):
            member.wait_members("alice", "carol")
            member.wait_steps(2)
        said = engine.docker("exec", net.namespace("carol"), "tc", "class", "show", "dev", "lan0")
        assert ["ceil 50Mbit" in said, "ceil 20Mbit" in said] == [True, True]
        for member in (alice, carol):
            member.signal(signal.SIGTERM)  # as `docker compose down` does
            assert member.wait_exit() == 0, member.log
            assert member.all("left")
    common = alice.digests.keys() & carol.digests.keys()
    assert common
    assert all(alice.digests[k] == carol.digests[k] for k in common)


def agent(node: str, process: subprocess.Popen[bytes], folder: Path) -> Agent:
    events, log = folder / f"{node}.events.jsonl", folder / f"{node}.log"
    return Agent(node, process, events, log, folder / node / "model.safetensors", folder)


def test_a_compose_file_has_all_of_a_scenario() -> None:
    text = compose.compose_text(scenario(job={"name": "digits", "steps": 9, "arguments": ["$x"]}))
    assert text.count("cap_add:") == 3
    assert '"10.90.0.3"' in text
    assert "$$x" in text
    plans = [json.loads(json.loads(line.split(": ", 1)[1])) for line in text.splitlines()
             if line.lstrip().startswith("TESTBED_PLAN:")]  # fmt: skip
    assert [[step["do"] for step in plan["timeline"]] for plan in plans] == [
        ["shape"],
        ["kill"],
        ["join", "shape"],
    ]


def test_what_containers_cannot_do_is_refused() -> None:
    for changes in (
        {"network": {"rate": 50, "medium": 80}},
        {"limit": [{"node": "bob", "down": 20}]},
    ):
        with pytest.raises(TestbedError, match="use `scripts/testbed run`"):
            compose.compose_text(scenario(**changes))
