"""What users are told about the member that the others wait for, in a status and a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.local.waits import LET_IN, LET_IN_SECONDS, Waits
from edgeagent.planner.shares import STEPS_OF_ALL, ShareRule
from edgeagent.planner.work_cost import WorkCost
from protocols.member.joining_table import JoiningState
from protocols.network.heartbeats import Heartbeats
from protocols.network.measures import KeepingUp
from protocols.wire import messages as m
from tests.unit.protocols.test_monitor import three

if TYPE_CHECKING:
    from protocols.member.node import Node

US = 1_000_000


def slow_link(nodes: list[Node], badly_connected: int = 2) -> None:
    """Let the first node know that the links of one of the three nodes carry 2 Mbit/s."""
    names = [n.context.node for n in nodes]
    bad = names[badly_connected]
    nodes[0].context.now += 1.0
    for node in names:
        links = tuple(
            m.LinkRate(peer, *((80_000, 250_000) if bad in (peer, node) else (1_000, 25_000_000)))
            for peer in sorted(names)
            if peer != node
        )
        own = (9_000, 910_000) if node == names[0] else (US // 100, 9 * US // 10)
        said = m.Measured(links, 20_000, *own)
        if node == names[0]:
            nodes[0].monitor._said[node] = said
        else:
            nodes[0].monitor.heard(node, said)


def watched(nodes: list[Node], rule: ShareRule = STEPS_OF_ALL) -> tuple[Waits, list[str]]:
    lines: list[str] = []
    node = nodes[0]
    for k in range(4):
        node.context.pace.applied(node.context.now + k - 4)
    return Waits(lambda: node, Heartbeats(), 250_000, 0, lines.append, lambda: rule), lines


def test_status_and_terminal_say_the_same_and_the_end_of_it() -> None:
    hosts, nodes = three()
    slow_link(nodes)
    waits, lines = watched(nodes)
    name = hosts[2].me.name
    shown = waits.waiting()
    assert shown is not None
    assert (shown["cause"], shown["node"], shown["mbit_s"]) == ("link", name, 2.0)
    advice = waits.advice(shown)
    assert advice is not None
    assert advice["left_out"] == [name]
    assert advice["others"] == 2
    for k in range(12):
        waits.tell(k / 2)
    assert lines == [shown["text"], advice["text"]]
    nodes[0].monitor._said.clear()
    for k in range(12, 30):
        waits.tell(k / 2)
    assert lines[2:] == [f"no longer waiting for {name}"]


def test_advice_follows_from_what_the_job_says_about_shares() -> None:
    _, nodes = three()
    slow_link(nodes)
    found = []
    cost = WorkCost(square=0.5)
    for rule in (STEPS_OF_ALL, ShareRule(cost)):
        waits, _ = watched(nodes, rule)
        advice = waits.advice(waits.waiting())
        assert advice is not None
        found.append(advice["without_s"])
    each, odd = divmod(nodes[0].context.config.micro_batches, 2)
    assert not odd
    assert found[1] - found[0] == pytest.approx(
        0.02 * (cost.units(each, 2 * each) - each), rel=0.05
    )


def test_on_the_slow_device_the_others_wait() -> None:
    _, nodes = three()
    slow_link(nodes, badly_connected=0)
    waits, lines = watched(nodes)
    for k in range(12):
        waits.tell(k / 2)
    assert " for this device: its link takes 80.0 ms one way" in lines[0]
    assert lines[0].startswith("the others wait ")
    nodes[0].monitor._said.clear()
    for k in range(12, 30):
        waits.tell(k / 2)
    assert lines[-1] == "the others no longer wait for this device"


def test_what_stands_for_no_known_reason_goes_on() -> None:
    _, nodes = three()
    waits, lines = watched(nodes)
    node = nodes[0]
    node.monitor._said.clear()
    node.context.now += 10.0
    waits.tell(0.0)
    node.context.pace.applied(node.context.now)
    for k in range(8):
        waits.tell(float(k))
    assert lines == ["waiting 11 s: why is not known yet", "no longer waiting"]


def test_nothing_is_said_while_there_is_no_member() -> None:
    _, nodes = three()
    nothing = Waits(lambda: None, Heartbeats(), 1, 0, lambda line: None)
    nothing.tell(0.0)
    assert nothing.waiting() is None
    assert nothing.advice(None) is None
    waits, _ = watched(nodes)
    nodes[0].context.policy = None
    assert waits.waiting() is None
    assert waits.advice(None) is None


def trainer_of_second(nodes: list[Node], owed_s: float) -> None:
    """Let the first node hear that the trainer of the second has not answered for so long."""
    said = m.Measured((), 20_000, US // 100, US // 100, int(KeepingUp.SLOW), int(owed_s * US))
    nodes[0].monitor.heard(nodes[1].context.node, said)


def test_what_was_said_of_a_trainer_before_the_running_step_is_not_believed() -> None:
    _, nodes = three()
    waits, lines = watched(nodes)
    node = nodes[0]
    node.context.pace.applied(node.context.now)
    trainer_of_second(nodes, 40.0)
    node.context.now += 0.5
    waits.tell(0.5)
    assert waits.waiting() is None
    trainer_of_second(nodes, 1.0)
    node.context.now += 9.5
    shown = waits.waiting()
    assert shown is not None
    assert (shown["trainer"], shown["seconds"]) == (True, 10.5)
    waits.tell(10.0)
    assert lines[0] == shown["text"]


def test_who_is_let_in_says_once_what_it_waits_for() -> None:
    lines: list[str] = []
    context: Any = SimpleNamespace(policy=None, now=0.0, pace=SimpleNamespace(since=lambda _: 0.0))
    joining = SimpleNamespace(state=JoiningState.LINKING)
    node: Any = SimpleNamespace(context=context, joining=joining, monitor=None)
    waits = Waits(lambda: node, Heartbeats(), 1, 0, lines.append)
    for now in range(20):
        waits.tell(float(now))
    assert lines == []
    joining.state = JoiningState.WAITING
    waits.tell(20.0)
    waits.tell(20.0 + LET_IN_SECONDS / 2)
    assert lines == []
    for now in range(25, 90):
        waits.tell(float(now))
    assert lines == [LET_IN]
    joining.state = JoiningState.PULLING
    waits.tell(90.0)
    joining.state = JoiningState.WAITING
    for now in range(91, 100):
        waits.tell(float(now))
    assert lines == [LET_IN, LET_IN]
