"""Nodes of simulated histories are recorded, written, read and replayed with the same effects."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from edgeagent.planner.standard import StandardPlanner
from edgeagent.trace import Trace, read_trace, trace_lines
from protocols import events
from protocols.member.neighbours import Neighbours
from protocols.member.recorder import Recorder
from tests.simulation.replay import Recorded, main, replay
from tests.simulation.virtual.loop import VirtualLoop
from tests.simulation.virtual.world import World as VirtualWorld
from tests.simulation.world import Host, World
from tests.unit.protocols.clusters import ENDLESS, enter, go_on, settle

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.member.node import Node

ABOUT = {"node": "n", "planner": StandardPlanner().inputs}
TOKENS = (bytes(range(100, 132)), bytes(range(150, 182)))


class RecordedWorld(World):
    """A small world with a recorder for each device."""

    def __init__(self, seed: int, most: int = 100_000) -> None:
        super().__init__(seed, steps=ENDLESS)
        self.recorders: dict[bytes, Recorder] = {}
        self._most = most

    def add(self, number: int, incarnation: int = 1, neighbours: tuple[str, ...] = ()) -> Host:
        host = super().add(number, incarnation, neighbours)
        assert host.node is not None
        recorder = self.recorders.setdefault(host.me.node, Recorder(self._most, 1 << 30))
        host.node = cast("Node", Recorded(host.node, recorder))
        return host

    def text(self, host: Host) -> str:
        return "".join(trace_lines(self.recorders[host.me.node], self.now, ABOUT))

    def trace(self, host: Host) -> Trace:
        return read_trace(self.text(host).splitlines())


def history(seed: int, most: int = 100_000) -> tuple[RecordedWorld, list[Host]]:
    """Play a history of four devices with joins, new tokens, measurements, a death and a leave."""
    world = RecordedWorld(seed, most)
    hosts = [world.found()]
    for number in range(1, 4):
        hosts.append(world.join(number, hosts[0]))
        enter(world, hosts[-1])
        settle(world)
    for token in TOKENS:
        hosts[1].handle(events.TokenWanted(token))
        go_on(world, 3)
    for host in hosts:
        host.handle(events.Measured((events.Incoming(b"x" * 32, 0.1, 1e6, 7),), 0.1, 0.2, 0.3))
        assert host.node is not None
        host.perform(host.node.ping(host.clock()))
    go_on(world, 3)
    world.kill(hosts[0])
    settle(world)
    hosts[2].handle(events.LeaveWanted())
    world.run(lambda: hosts[2].gone == "left")
    settle(world)
    return world, hosts


@pytest.mark.parametrize("seed", [1, 2])
def test_a_founder_and_joiners_are_replayed_with_the_same_effects(seed: int) -> None:
    world, hosts = history(seed)
    for host in hosts:
        trace = world.trace(host)
        assert trace.replays_from == 1
        assert len(trace.lines) > 100
        assert replay(trace) is None


def test_a_planted_difference_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world, hosts = history(3)
    path = tmp_path / "trace"
    path.write_text(world.text(hosts[1]), encoding="utf-8")
    assert main(str(path)) == 0
    trace = world.trace(hosts[1])
    changed = next(k for k, x in enumerate(trace.lines) if isinstance(x.call, events.Applied))
    line = trace.lines[changed]
    lines = list(trace.lines)
    lines[changed] = replace(line, effects=(line.effects or [])[:-1])
    found = replay(Trace(trace.header, tuple(lines)))
    assert found is not None
    assert found.line.number == line.number
    assert f"entry {line.number}" in str(found)
    # a change of the code, too
    deadly = Neighbours.link_down
    monkeypatch.setattr(Neighbours, "link_down", lambda *_: None)
    found = replay(trace)
    assert found is not None
    assert isinstance(found.line.call, events.LinkDown)
    assert main(str(path)) == 1
    monkeypatch.setattr(Neighbours, "link_down", deadly)
    assert replay(trace) is None


def test_the_traces_hold_no_token() -> None:
    world, hosts = history(4)
    for host in hosts:
        text = world.text(host).lower()
        assert b"token 1".hex() in text
        assert '"newtoken"' in text
        assert '"usetoken"' in text
        for token in TOKENS:
            assert host.token != token or host.token == TOKENS[-1]
            assert token.hex() not in text
            assert token.decode("latin-1").lower() not in text
            assert json.dumps(token.decode("latin-1"))[1:-1].lower() not in text
            for skipped in range(3):  # base64 depends on the position modulo 3
                code = base64.b64encode(b"\0" * skipped + token).decode()[4:-4].lower()
                assert code not in text
        events_of_tokens = [x.call for x in world.trace(host).lines if "Token" in str(x.call)]
        assert len(dict.fromkeys(str(x) for x in events_of_tokens)) >= 2


def test_what_has_lost_its_beginning_can_only_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, hosts = history(5, most=50)
    trace = world.trace(hosts[1])
    assert trace.replays_from is None
    assert len(trace.lines) == 50
    assert trace.lines[0].number == trace.header["dropped"] + 1 > 1
    with pytest.raises(ValueError, match="can only be read"):
        replay(trace)
    path = tmp_path / "trace"
    path.write_text(world.text(hosts[1]), encoding="utf-8")
    assert main(str(path)) == 2
    assert "can only be read" in capsys.readouterr().err


def test_a_policy_of_the_users_own_is_needed_again() -> None:
    world, hosts = history(6)
    trace = world.trace(hosts[0])
    header = {**trace.header, "planner": {**trace.header["planner"], "custom": True}}
    with pytest.raises(ValueError, match="the policy that planned"):
        replay(Trace(header, trace.lines))
    assert replay(Trace(header, trace.lines), StandardPlanner()) is None


def test_a_device_that_begins_again_is_replayed_from_its_last_fresh_node() -> None:
    world, hosts = history(7)
    first = world.trace(hosts[3]).header["entries"]
    for incarnation in (1, 2):  # the same incarnation keeps its router, the next has a new one
        hosts[3] = world.join(3, hosts[1], incarnation=incarnation)
        enter(world, hosts[3])
        go_on(world, 2)
    trace = world.trace(hosts[3])
    assert trace.replays_from == 1
    assert replay(trace) is None
    recorder = world.recorders[hosts[3].me.node]
    while recorder.dropped < first:
        recorder._bytes -= recorder._kept.popleft()[-1]
        recorder._dropped += 1
    trace = world.trace(hosts[3])
    assert trace.replays_from is not None
    assert trace.replays_from > first + 1
    assert replay(trace) is None


def test_the_shells_nodes_are_replayed() -> None:
    """The nodes of real shells in virtual time are recorded, with all that the shells tell them."""

    async def body() -> None:
        world = VirtualWorld(0, 10_000)
        hosts = await world.cluster(3)
        await asyncio.sleep(3.0)
        for host in hosts:
            trace = read_trace(list(host.shell.trace()))
            assert trace.replays_from == 1
            assert len(trace.lines) > 30
            assert replay(trace) is None
        await asyncio.gather(*(host.shell.close() for host in world.hosts))
        assert not world.broken, world.broken[0]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(body())
