"""The effects of an agent's life are performed in order: links closed, states kept, nodes begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from edgeagent.handover import LeaveAsked, SaveAside
from edgeagent.membership import Membership
from edgeagent.shell.trainer_side import OwnState
from edgeagent.transport.api import PeerInfo, Standing
from protocols import limits
from protocols.cluster import life
from protocols.cluster.ancestry import NOTHING, Ancestor, Past
from protocols.cluster.life import LifeState
from protocols.member.joining_table import JoiningState

if TYPE_CHECKING:
    import pytest

OLD, NEW, FILE = (bytes([k]) * limits.LINEAGE_BYTES for k in (1, 2, 3))
SPONSOR = PeerInfo(b"s" * 32, 1, "sponsor", (), b"")
MINE = PeerInfo(b"m" * 32, 1, "me", (), b"")


class FakeShell:
    """A shell that notes what its node is told."""

    def __init__(self, own: OwnState | None) -> None:
        self.node: Any = None
        self.own: OwnState | None = own
        self.trainer = SimpleNamespace(whole_state=lambda: self.own)
        self.told: list[str] = []
        self.dropping: asyncio.Event | None = None  # links are closed when this is set

    async def drop_links(self) -> None:
        self.node = None
        if self.dropping is not None:
            await self.dropping.wait()

    def join(self, sponsor: Any, incarnation: int) -> None:
        self.told.append(f"join {sponsor.name} as {incarnation}")
        self.node = SimpleNamespace(joining=SimpleNamespace(state=JoiningState.LINKING))

    def found(self, lineage: bytes, incarnation: int) -> None:
        self.told.append("found" if incarnation == 1 else f"found as {incarnation}")
        self.node = SimpleNamespace(joining=None)

    def give_way(self) -> None:
        self.told.append("give way")

    def leave(self) -> None:
        self.told.append("leave")

    def orphaned(self) -> None:
        self.told.append("orphaned")


class FakeAgent:
    """The part of an agent that a membership uses."""

    def __init__(self, own: OwnState | None, origin: Past = NOTHING, *, begun: bool = True) -> None:
        self.shell = FakeShell(own) if begun else None
        self.own, self.origin = own, origin
        self.sent: list[Any] = []
        self.lines: list[str] = []
        self.refused: list[float] = []
        self.ended: list[tuple[str, str, int]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.hello: Any = SimpleNamespace(micro_batches=4, micro_batch_size=8, meta=b"m", lacking=0)
        self.memory = object()
        self.compared: list[tuple[str, bytes]] = []
        self.trainer_status = 0
        self.trainer_link = SimpleNamespace(send=self.sent.append)
        self.observer = SimpleNamespace(say=self.lines.append, stands_by=self.stands_by)
        self.search = SimpleNamespace(refused=self.refused.append)
        self.transport = SimpleNamespace(trust=lambda cert: None, begin_anew=lambda number: None)
        self.state_dir = SimpleNamespace(begin_anew=self.begin_anew, incarnation=1)

    def stands_by(self, reason: str, text: str) -> None:
        assert reason in text
        self.lines.append(f"stands by: {reason}")

    def begin_anew(self) -> int:
        self.state_dir.incarnation += 1
        return int(self.state_dir.incarnation)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    def compare_scripts(self, name: str, theirs: bytes) -> None:
        self.compared.append((name, theirs))

    def make_shell(self, hello: Any, memory: Any) -> FakeShell:
        self.shell = FakeShell(self.own or OwnState(self.origin, b"m"))
        return self.shell

    def standing(self) -> Standing:
        return Standing(MINE, "founding", 0, 0, b"", b"", ())

    def end(self, why: str, message: str = "", status: int = 0) -> None:
        self.ended.append((why, message, status))

    @property
    def told(self) -> list[str]:
        """What its node was told."""
        assert self.shell is not None
        return self.shell.told

    async def rest(self) -> None:
        """Wait until everything that was begun has happened."""
        while self.tasks:
            await self.tasks.pop(0)


Story = Callable[[FakeAgent, Membership], Awaitable[None]]


def play(
    story: Story,
    own: OwnState | None,
    origin: Past = NOTHING,
    *,
    waits: bool = False,
    **options: Any,
) -> FakeAgent:
    """Run `story` with an agent whose trainer has `own`; `waits` as `Membership` has it."""

    async def run() -> FakeAgent:
        agent = FakeAgent(own, origin, **options)
        await story(agent, Membership(cast("Any", agent), waits=waits))
        await agent.rest()
        return agent

    return asyncio.run(run())


def cluster(past: Past) -> Standing:
    return Standing(SPONSOR, "member", past.iteration * 32, 2, past.lineage, b"", (), past)


TRAINED = OwnState(Past(50, OLD), b"m", trained=True)
APART = cluster(Past(80, NEW, (Ancestor(OLD, 30),)))
SAME = cluster(Past(80, NEW, (Ancestor(OLD, 50),)))


def test_it_founds_from_the_trainers_introduction_on() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        hello, agent.hello = agent.hello, None
        assert not member.job_known()
        member.found_cluster()
        assert agent.shell is None
        agent.hello = hello
        member.found_cluster()
        member.found_cluster()

    assert play(story, None, begun=False).told == ["found"]


def test_it_joins_once_the_trainer_has_answered() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        member.join_through(SAME)
        assert agent.sent == [SaveAside(False)]
        assert agent.told == []
        member.saved("", "")
        await agent.rest()
        assert not member.entered()
        assert agent.shell is not None
        agent.shell.node.joining.state = JoiningState.ENTERED
        assert member.entered()
        assert member.life.state is LifeState.MEMBER

    agent = play(story, TRAINED)
    assert agent.told == ["join sponsor as 1"]
    assert agent.compared == [("sponsor", b"")]
    assert agent.lines == []


def test_what_is_kept_of_its_own_training_is_said() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        member.join_through(APART)
        assert agent.sent == [SaveAside(True)]
        member.saved("x-before-joining" if len(agent.lines) == 0 else "", "")

    agent = play(story, TRAINED)
    assert "step 50, 1600 samples) is kept in x-before-joining" in agent.lines[0]


def test_without_a_file_to_save_to_the_loss_is_said() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        member.join_through(APART)
        member.saved("", "")

    assert "step 50, 1600 samples) is given up" in play(story, TRAINED).lines[0]


def test_only_members_of_the_own_cluster_are_linked() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        assert member.linked() == (), "no node"
        context = SimpleNamespace(is_member=True, near=(SPONSOR.node,))
        recovery = SimpleNamespace(is_cut_off=False)
        shell = cast("FakeShell", agent.shell)
        shell.node = SimpleNamespace(context=context, recovery=recovery, joining=None)
        assert member.linked() == (SPONSOR.node,)
        context.is_member = False
        assert member.linked() == (), "not in its cluster yet"
        context.is_member, recovery.is_cut_off = True, True
        assert member.linked() == (), "the cluster may go on without it"
        shell.node = None

    play(story, TRAINED)


def test_what_was_resumed_is_kept_unless_the_cluster_came_from_the_same_file() -> None:
    for others, keeps in ((Past(80, NEW), True), (Past(80, NEW, (Ancestor(FILE, 40),)), False)):

        async def story(agent: FakeAgent, member: Membership, others: Past = others) -> None:
            assert member.own().samples == 40 * 32
            member.join_through(cluster(others))

        assert play(story, None, Past(40, FILE), begun=False).sent == [SaveAside(keeps)]


def test_another_membership_is_another_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "REJOIN_SECONDS", 0.0)

    async def story(agent: FakeAgent, member: Membership) -> None:
        for _ in range(2):
            member.join_through(SAME)
            member.saved("", "")
            await agent.rest()
            member.join_failed("too slow", 15.0, False)
            await agent.rest()
            member._tick()

    agent = play(story, TRAINED)
    assert agent.told == ["join sponsor as 1", "join sponsor as 2"]
    assert agent.refused == [15.0, 15.0]
    assert agent.lines[0] == "the join failed: too slow; again in 15 s"


def test_a_cluster_is_founded_in_another_incarnation_than_that_of_a_member_before() -> None:
    """Its terms and fences have the same numbers as those before (protocol.md, H90)."""

    async def story(agent: FakeAgent, member: Membership) -> None:
        for _ in range(2):
            member._found()

    assert play(story, TRAINED).told == ["found", "found as 2"]


def test_who_lacks_parts_of_a_divided_optimizer_founds_no_cluster() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        agent.hello.lacking = 3
        assert not member.may_found()
        member.found_cluster()

    agent = play(story, None, Past(80, FILE), begun=False)
    ((why, message, status),) = agent.ended
    assert (why, status) == ("error", 1)
    assert "nobody is there to join who has the 3 parts of the optimizer's state" in message

    async def later(agent: FakeAgent, member: Membership) -> None:
        agent.hello.lacking = 3
        assert member.may_found(), "it has been a member since, and the others have the parts"

    play(later, TRAINED)


def test_a_device_that_stands_by_says_why_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "REJOIN_SECONDS", 0.0)

    async def story(agent: FakeAgent, member: Membership) -> None:
        for _ in range(2):
            member.join_through(SAME)
            member.saved("", "")
            await agent.rest()
            member.join_failed("slow links", 6.0, True)
            await agent.rest()
            member._tick()

    agent = play(story, TRAINED)
    assert agent.refused == [6.0, 6.0]
    assert [line for line in agent.lines if "slow links" in line] == ["stands by: slow links"]


def test_a_member_gives_way() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        member.found_cluster()
        member.join_through(APART)
        assert agent.told == ["found", "give way"]
        assert agent.sent == []
        member.departed("yielded", "")
        assert agent.sent == []  # its links are closed first
        await agent.rest()
        assert agent.sent == [SaveAside(True)]
        member.saved("x", "")
        await agent.rest()

    assert play(story, TRAINED).told[2:] == ["join sponsor as 2"]


def test_who_hangs_is_asked_for_a_sign_of_life_once_its_links_are_closed() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        member.found_cluster()
        member.departed("stalled", "")
        assert agent.sent == []
        await agent.rest()
        assert agent.sent == [SaveAside(False)]
        assert member.life.state is LifeState.HUNG

    assert "does not answer" in play(story, TRAINED).lines[0]


def test_who_leaves_while_its_links_are_being_closed_joins_nobody() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        assert agent.shell is not None
        agent.shell.dropping = asyncio.Event()
        member.join_through(SAME)
        member.saved("", "")
        await asyncio.sleep(0)
        member.leave()
        agent.shell.dropping.set()

    agent = play(story, TRAINED)
    assert agent.told == []
    assert agent.ended == [("left", "", 0)]


def test_a_node_is_told_to_leave_and_its_end_ends_the_agent() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        member.found_cluster()
        member.leave()
        assert agent.told == ["found", "leave"]
        assert agent.sent == [LeaveAsked()]
        agent.trainer_status = 1
        member.leave(trainer_gone=True)
        assert agent.told == ["found", "leave", "orphaned"]
        member.departed("left", "")
        member.join_through(SAME)

    assert play(story, TRAINED).ended == [("left", "", 1)]


def test_who_finds_nobody_ends_with_the_reason() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        assert member.may_found()
        member.given_up()

    ((why, message, status),) = play(story, OwnState(NOTHING, b"m")).ended
    assert (why, status) == ("error", 1)
    assert "nothing was trained here" in message


def test_a_refusal_ends_only_who_has_no_node() -> None:
    async def story(agent: FakeAgent, member: Membership) -> None:
        refusal = cast("Any", SimpleNamespace(exit_status=3, __str__=lambda _: "no"))
        assert member.not_let_in(refusal)
        member.found_cluster()
        assert not member.other_job(refusal)

    assert play(story, TRAINED).ended[0][2] == 3


def may_found_after(
    sponsor: Past, own: OwnState, *, waits: bool, overwritten: bool = False
) -> bool:
    """Return whether a device with the state `own` may found after its join of a cluster with the
    state `sponsor` has failed; `overwritten`: when a pull had begun."""
    found: list[bool] = []

    async def story(agent: FakeAgent, member: Membership) -> None:
        assert member.may_found()
        member.join_through(cluster(sponsor))
        member.saved("", "")
        await agent.rest()
        assert agent.shell is not None
        if overwritten:
            agent.shell.own = None
        member.join_failed("the link broke", 0.0, False)
        found.append(member.may_found())

    play(story, own, waits=waits)
    return found[0]


def test_who_waits_with_a_founder_that_is_lost_may_found() -> None:
    fresh, resumed = OwnState(NOTHING, b"m"), OwnState(Past(40, FILE), b"m")
    assert may_found_after(Past(0, NEW), fresh, waits=True)
    assert may_found_after(Past(40, NEW), resumed, waits=True)
    assert not may_found_after(Past(0, NEW), fresh, waits=False), "its training would not wait"
    assert not may_found_after(Past(1, NEW), fresh, waits=True), "that cluster has trained"
    assert not may_found_after(Past(41, NEW), resumed, waits=True)
    assert not may_found_after(Past(0, NEW), fresh, waits=True, overwritten=True)


def test_a_former_member_that_must_not_go_on_alone_does_not_wait_alone_either() -> None:
    async def story(agent: FakeAgent, _: Membership) -> None:
        member = Membership(cast("Any", agent), goes_on=False, waits=True)
        member.join_through(cluster(Past(0, NEW)))
        member.saved("", "")
        await agent.rest()
        assert not member.may_found()

    play(story, TRAINED)
