"""What follows from a pause for an agent: what its trainer is told, and what people are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from edgeagent.config import AgentConfig
from edgeagent.pausing import decision, watch
from edgeagent.pausing.decision import BEGIN_SECONDS, Facts, Reason, Wishes
from edgeagent.pausing.watch import PauseWatch, watch_pauses, wishes_of

if TYPE_CHECKING:
    from edgeagent.pausing.watch import PausedAgent

ALL = Wishes(battery=True, activity_s=60, metered=True)


class FakeAgent:
    """Notes what a pause does to an agent; `node` is what the watch sees of its node."""

    def __init__(self, *, alone: bool = False, departs: str = "", joins: bool = False) -> None:
        context = SimpleNamespace(is_alone=alone, departs=departs)
        under_way = SimpleNamespace(open={1: SimpleNamespace(outside="")} if joins else {})
        negotiator = SimpleNamespace(joins=under_way)
        node = SimpleNamespace(over=False, context=context, negotiator=negotiator)
        self.shell = SimpleNamespace(node=node, trainer=self)
        self.trainer_link = self.membership = self.observer = self
        self.is_holding = False
        self.work = self.rejoin = self.paused_now = False
        self.aside = self.let_out = 0
        self.lines: list[str] = []
        self.told: list[list[str]] = []

    def hold(self, *, work: bool, rejoin: bool) -> None:
        self.work, self.rejoin = work, rejoin
        self.let_out += self.is_holding and not work

    def pause(self, paused: bool) -> None:
        self.paused_now = paused

    def stand_aside(self) -> None:
        self.aside += 1

    def say(self, line: str) -> None:
        self.lines.append(line)

    def paused(self, reasons: list[str], text: str) -> None:
        self.told.append(reasons)


def acts(agent: FakeAgent, facts: Facts, seconds: tuple[float, ...] = (0.0, 99.0)) -> FakeAgent:
    """Show `facts` at these times, acting each time; return the agent."""

    async def body() -> None:
        pausing = PauseWatch(ALL, cast("PausedAgent", agent))
        loop = asyncio.get_running_loop()
        for second in seconds:
            loop.time = lambda now=second: now  # type: ignore[method-assign, misc] # a fake clock
            pausing.decision.see(second, facts)
            pausing.act()

    asyncio.run(body())
    return agent


def test_a_paused_device_keeps_work_from_its_trainer() -> None:
    agent = acts(FakeAgent(alone=True), Facts(True, 1e9, False))
    assert (agent.work, agent.rejoin, agent.paused_now, agent.aside) == (True, False, True, 0)
    assert agent.told == [["battery"]]


def test_a_newcomer_and_a_leave_are_not_kept_waiting() -> None:
    for agent in (FakeAgent(alone=True, joins=True), FakeAgent(departs="yielded")):
        assert acts(agent, Facts(True, 1e9, False)).work is False


def test_a_metered_device_stands_aside_and_lets_nobody_in() -> None:
    agent = acts(FakeAgent(joins=True), Facts(False, 1e9, True))
    assert (agent.work, agent.rejoin) == (True, True)
    assert agent.aside > 0


def test_others_do_not_wait_for_long_for_what_a_paused_device_was_given() -> None:
    agent = FakeAgent()
    agent.is_holding = True
    facts = Facts(None, 0.0, None)
    assert acts(agent, facts, (0.0, decision.HOLD_SECONDS - 1)).let_out == 0
    assert acts(agent, facts, (0.0, decision.HOLD_SECONDS)).let_out == 1
    assert agent.work is True, "what it is given next is kept again"
    times = (0.0, decision.HOLD_SECONDS, decision.HOLD_SECONDS + 1, 2 * decision.HOLD_SECONDS)
    agent.let_out = 0
    assert acts(agent, facts, times).let_out == 2
    alone = FakeAgent(alone=True)
    alone.is_holding = True
    assert acts(alone, facts, (0.0, 1e6)).let_out == 0


def test_before_there_is_a_node_there_is_nothing_to_tell_it() -> None:
    agent = FakeAgent()
    cast("Any", agent).shell = None
    assert acts(agent, Facts(True, 1e9, False)).work is True
    assert agent.paused_now is False


def test_what_is_not_known_is_said_once() -> None:
    agent = acts(FakeAgent(), Facts(), (0.0, 1.0, 2.0))
    assert len(agent.lines) == len(Reason)
    assert "--pause-on-battery has no effect" in agent.lines[0]
    assert not agent.work


def test_options_become_wishes() -> None:
    config = AgentConfig(pause_on_battery=True, pause_on_activity=9, pause_on_metered=True)
    assert wishes_of(config) == Wishes(True, 9, True)


def test_without_wishes_nothing_is_asked() -> None:
    asyncio.run(watch_pauses(AgentConfig(), cast("PausedAgent", None)))


def test_facts_are_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.0)
    monkeypatch.setattr("edgeagent.pausing.decision.BEGIN_SECONDS", 0.0)
    assert BEGIN_SECONDS > 0
    agent, asked = FakeAgent(), 0

    class Device:
        """Is on battery from the second time on; ends the test at the fourth."""

        def on_battery(self) -> bool:
            nonlocal asked
            asked += 1
            if asked == 4:
                raise KeyError("enough")
            return asked > 1

        idle_s = metered = on_battery

    config = AgentConfig(pause_on_battery=True)
    with pytest.raises(KeyError, match="enough"):
        asyncio.run(watch_pauses(config, cast("PausedAgent", agent), cast("Any", Device())))
    assert agent.told == [["battery"]]
