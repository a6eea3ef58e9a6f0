"""What was trained is put aside before another state replaces it, on every way into a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from edgeagent import membership
from edgeagent.handover import SaveAside
from edgeagent.membership import Membership
from edgeagent.trainer_side import OwnState
from edgeagent.transport.api import PeerInfo, Standing
from protocols import limits
from protocols.cluster.ancestry import NOTHING, Ancestor, Past

if TYPE_CHECKING:
    import pytest

    from edgeagent.agent import Agent

OLD, NEW, FILE = (bytes([k]) * limits.LINEAGE_BYTES for k in (1, 2, 3))
SPONSOR = PeerInfo(b"s" * 32, 1, "sponsor", (), b"")
MINE = PeerInfo(b"m" * 32, 1, "me", (), b"")


class FakeShell:
    """A shell without a node; it notes whom it joins."""

    def __init__(self, own: OwnState | None) -> None:
        self.node: Any = None
        self.trainer = SimpleNamespace(whole_state=lambda: own)
        self.own = own
        self.joined: list[bytes] = []

    @property
    def spoilt(self) -> bool:
        return self.own is None

    async def drop_links(self) -> None:
        self.node = None

    def join(self, sponsor: Any, incarnation: int) -> None:
        self.joined.append(sponsor.node)

    def give_way(self) -> None:
        self.joined.append(b"gives way")


class FakeAgent:
    """As much of an agent as a membership sees; what is spawned runs in `rest`."""

    def __init__(self, own: OwnState | None, origin: Past = NOTHING, *, begun: bool = True) -> None:
        self.shell = FakeShell(own) if begun else None
        self.own, self.origin = own, origin
        self.sent: list[Any] = []
        self.lines: list[str] = []
        self.refused: list[float] = []
        self.ended: list[str] = []
        self.work: list[Any] = []
        self.spawn: Callable[[Any], None] = self.work.append
        self.hello = SimpleNamespace(micro_batches=4, micro_batch_size=8, meta=b"m")
        self.memory = object()
        self.departing = self.leaving = False
        self.compared: list[tuple[str, bytes]] = []
        self.trainer_status = 0
        self.trainer_link = SimpleNamespace(send=self.sent.append)
        self.observer = SimpleNamespace(say=self.lines.append)
        self.search = SimpleNamespace(refused=self.refused.append)
        self.transport = SimpleNamespace(trust=lambda cert: None, begin_anew=lambda number: None)
        self.state_dir = SimpleNamespace(begin_anew=lambda: 2, incarnation=1)

    def compare_scripts(self, name: str, theirs: bytes) -> None:
        self.compared.append((name, theirs))

    def make_shell(self, hello: Any, memory: Any) -> FakeShell:
        self.shell = FakeShell(self.own or OwnState(self.origin, b"m"))
        return self.shell

    def standing(self) -> Standing:
        return Standing(MINE, "founding", 0, 0, b"", b"", ())

    def end(self, why: str, message: str = "", status: int = 0) -> None:
        self.ended.append(message)

    def rest(self) -> None:
        while self.work:
            asyncio.run(self.work.pop(0))


def set_up(
    own: OwnState | None, origin: Past = NOTHING, *, begun: bool = True, goes_on: bool = True
) -> tuple[FakeAgent, Membership]:
    agent = FakeAgent(own, origin, begun=begun)
    return agent, Membership(cast("Agent", agent), goes_on=goes_on)


def cluster(past: Past) -> Standing:
    return Standing(SPONSOR, "member", past.iteration * 32, 2, past.lineage, b"", (), past)


TRAINED = OwnState(Past(50, OLD), b"m", trained=True)
APART = cluster(Past(80, NEW, (Ancestor(OLD, 30),)))
SAME = cluster(Past(80, NEW, (Ancestor(OLD, 50),)))


def test_who_is_let_go_waits_for_its_trainer_until_that_answers() -> None:
    agent, member = set_up(TRAINED)
    waits = [member.awaits_trainer]
    member.departed("stalled", "")
    asyncio.run(agent.work.pop())
    assert agent.sent == [SaveAside(False)]
    waits.append(member.awaits_trainer)
    member.saved("", "")
    waits.append(member.awaits_trainer)
    assert waits == [False, True, False]
    agent.work.pop().close()  # it joins again


def test_what_the_cluster_has_needs_no_file() -> None:
    agent, member = set_up(TRAINED)
    member.join_through(SAME)
    assert agent.sent == [SaveAside(False)]
    assert agent.shell is not None
    assert agent.shell.joined == []  # not before the trainer has answered
    member.saved("", "")
    agent.rest()
    assert agent.shell.joined == [SPONSOR.node]
    assert agent.lines == []


def test_what_was_trained_apart_is_kept_by_who_joins_again() -> None:
    agent, member = set_up(TRAINED)
    member.join_through(APART)
    assert agent.sent == [SaveAside(True)]
    member.saved("x-before-joining", "")
    agent.rest()
    assert "step 50, 1600 samples) is kept in x-before-joining" in agent.lines[0]
    assert agent.shell is not None
    assert agent.shell.joined == [SPONSOR.node]


def test_without_a_file_to_save_to_the_loss_is_said() -> None:
    agent, member = set_up(TRAINED)
    member.join_through(APART)
    member.saved("", "")
    agent.rest()
    assert "step 50, 1600 samples) is given up" in agent.lines[0]


def test_who_gives_way_keeps_what_it_has_then() -> None:
    agent, member = set_up(TRAINED)
    assert agent.shell is not None
    agent.shell.node = SimpleNamespace(context=SimpleNamespace(is_member=True))
    member.join_through(APART)
    assert agent.shell.joined == [b"gives way"]
    assert agent.sent == []
    member.departed("yielded", "")
    assert agent.sent == [SaveAside(True)]


def test_what_was_resumed_is_kept_unless_the_cluster_came_from_the_same_file() -> None:
    resumed = Past(40, FILE)
    for others, keeps in ((Past(80, NEW), True), (Past(80, NEW, (Ancestor(FILE, 40),)), False)):
        agent, member = set_up(None, resumed, begun=False)
        assert member.own().samples == 40 * 32
        member.join_through(cluster(others))
        assert agent.sent == [SaveAside(keeps)]


def test_a_newcomer_and_half_a_state_have_nothing_to_keep() -> None:
    for agent, member in (set_up(None, begun=False), set_up(None)):
        member.join_through(APART)
        assert agent.sent == [SaveAside(False)]
        member.saved("", "")
        agent.rest()
        assert agent.lines == []
        assert agent.shell is not None
        assert agent.shell.joined == [SPONSOR.node]


def test_what_cannot_be_kept_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REJOIN_SECONDS", 0.0)
    agent, member = set_up(TRAINED)
    for _ in range(2):
        member.join_through(APART)
        member.saved("", "cannot save x: No space left on device")
        agent.rest()
    assert agent.shell is not None
    assert agent.shell.joined == []
    assert agent.refused == [membership.KEEP_AGAIN_SECONDS] * 2
    assert len(agent.lines) == 1  # said once
    assert "No space left" in agent.lines[0]


def test_who_founds() -> None:
    newcomer, trained = OwnState(NOTHING, b"m"), TRAINED
    assert set_up(newcomer, begun=False)[1].may_found()
    assert set_up(newcomer)[1].may_found()
    assert set_up(trained)[1].may_found()
    assert not set_up(trained, goes_on=False)[1].may_found()  # it waits for the others
    assert not set_up(None)[1].may_found()  # half a state
    agent, member = set_up(newcomer)
    member.join_through(APART)  # let in: there is a cluster
    assert not member.may_found()
    member.given_up()
    assert "nothing was trained here" in agent.ended[0]


def test_who_gives_up_says_where_its_state_lies() -> None:
    agent, member = set_up(TRAINED)
    member.join_through(APART)
    member.saved("x-before-joining", "")
    agent.rest()
    assert agent.shell is not None
    agent.shell.own = None
    agent.shell.trainer.whole_state = lambda: None
    member.given_up()
    assert "in x-before-joining: start again with --resume" in agent.ended[0]


def test_what_is_not_asked_any_more_is_not_joined() -> None:
    agent, member = set_up(TRAINED)
    member.join_through(SAME)
    agent.departing = True
    member.saved("", "")
    assert not agent.work


def test_a_refusal_for_a_while_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REJOIN_SECONDS", 0.0)
    agent, member = set_up(TRAINED)
    member.join_failed("too slow", 15.0)
    agent.rest()
    assert agent.refused == [15.0]
    assert agent.lines == ["the join failed: too slow; again in 15 s"]


def diverged(agent: FakeAgent, member: Membership, iteration: int) -> None:
    """The state that this device has at `iteration` was found to differ."""
    assert agent.shell is not None
    own = OwnState(Past(iteration, OLD), b"m", trained=True)
    agent.shell.trainer = SimpleNamespace(whole_state=lambda: own)
    member.departed("diverged", "")


def test_a_state_that_differs_once_is_pulled_anew_and_one_that_differs_again_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "REJOIN_SECONDS", 0.0)
    agent, member = set_up(None)
    diverged(agent, member, 500)
    agent.rest()
    assert agent.refused == [0.0]
    diverged(agent, member, 500 + membership.DIVERGED_AGAIN_STEPS)
    agent.rest()
    assert agent.refused == [0.0, 0.0]
    assert not agent.ended
    diverged(agent, member, 501 + membership.DIVERGED_AGAIN_STEPS)
    assert "differed from that of the others again (before step 1501" in agent.ended[0]


def test_who_leaves_with_a_state_that_differs_ends_with_an_error() -> None:
    agent, member = set_up(None)
    agent.leaving = True
    diverged(agent, member, 500)
    assert "use the model that another device has saved" in agent.ended[0]
    assert not agent.work
