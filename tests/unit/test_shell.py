"""The shell, in virtual time, with peers that lie, are late or are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import Mock, patch

from edgeagent import handover
from edgeagent.errors import EdgeAgentError
from edgeagent.network import member_of
from edgeagent.shell.rounds import FOLLOW_STILL_SECONDS
from edgeagent.shell.trainer_side import OwnState
from edgeagent.transport.complaints import LimitedLog
from protocols import effects, events, limits
from protocols.cluster.ancestry import NOTHING
from protocols.cluster.view import Member
from protocols.errors import RemoteProtocolError
from protocols.member.pull import Pull
from protocols.network.link_end import LinkEnd
from protocols.rounds.control_word import EMPTY
from protocols.scheduler.planning import Offer
from protocols.wire.bulk import BulkHeader, BulkKind
from tests.simulation.virtual.loop import VirtualLoop
from tests.simulation.virtual.trainer import MICRO_BATCHES
from tests.simulation.virtual.world import Host, World

if TYPE_CHECKING:
    import pytest

    from edgeagent.transport.api import Link, PeerInfo
    from protocols.rounds.control_word import ControlWord

STRANGER = Member(b"\1" * 32, 1, "stranger", "", ("10.0.0.9:1",), b"", sparse=False)

NEVER = 10**6  # an iteration that no cluster here comes to


def in_world(body: Callable[[World], Coroutine[None, None, None]]) -> None:
    """Run `body` in a world of its own."""

    async def main() -> None:
        world = World(0, 10_000)
        await body(world)
        await asyncio.gather(*(host.shell.close() for host in world.hosts))
        assert not world.broken, world.broken[0]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def refuse(certificate: bytes) -> bytes:
    """Refuse any certificate."""
    raise RemoteProtocolError("junk")


def said(host: Host) -> list[str]:
    """Return a list to which the lines of the host's shell are added from now on."""
    lines: list[str] = []
    host.shell.peers.lines = LimitedLog(lines.append, host.world.loop.time)
    return lines


def test_a_certificate_that_is_none_loses_no_other_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        (host,) = await world.cluster(1)
        lines = said(host)
        monkeypatch.setattr(host.network, "trust", refuse)
        report = effects.Report("link_up", {"node": "x"})
        host.shell._perform([effects.Trust(STRANGER), effects.Trust(STRANGER), report])
        assert host.all("link_up")[-1]["node"] == "x"
        assert lines == ["ignored what another agent asked for (Trust): junk"]

    in_world(body)


def test_a_link_that_has_become_slow_is_told_so_if_it_is_still_there() -> None:
    async def body(world: World) -> None:
        first, second = await world.cluster(2)
        links = first.shell.peers.links
        fell = effects.LinkFell(second.me.node, 5e4)
        first.shell._perform([fell, effects.LinkFell(bytes(32), 1.0)])
        assert links[second.me.node].incoming_rate == 5e4

    in_world(body)


def test_a_certificate_that_is_none_is_a_dial_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        (host,) = await world.cluster(1)
        lines = said(host)
        heard: list[events.Event] = []
        monkeypatch.setattr(host.network, "trust", refuse)
        monkeypatch.setattr(host.shell, "handle", heard.append)
        await host.shell.peers.dial(STRANGER)
        assert heard == [events.DialFailed(STRANGER.node)]
        assert lines == ["no link to stranger: junk"]

    in_world(body)


def test_a_joiner_that_takes_nothing_is_cut_off_and_shards_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_SUBSCRIBER_QUEUE_BYTES", 1 << 16)

    async def body(world: World) -> None:
        first, second = await world.cluster(2)
        lines = said(first)
        shell, node = first.shell, second.me.node
        link = shell.peers.links[node]
        chunk = memoryview(bytes(1 << 14))

        def send(kind: BulkKind) -> None:
            shell.rounds.send_bulk(
                node, BulkHeader(kind, bytes(16), 0, 0, 0, 0, 1, len(chunk)), chunk
            )

        for _ in range(20):
            send(BulkKind.DOWN)  # to a member: its round ends only with them
        monkeypatch.setattr(shell.rounds, "_is_member", lambda node: False)
        assert shell.node is not None
        with monkeypatch.context() as patched:
            patched.setattr(shell.node.followers, "has_failed", lambda _: True)
            for _ in range(20):
                send(BulkKind.DOWN)  # nothing is sent to a joiner whose join has failed
        for _ in range(20):
            send(BulkKind.SHARD)
        for _ in range(4):
            send(BulkKind.DOWN)
        assert shell.peers.links[node] is link
        send(BulkKind.DOWN)
        assert node not in shell.peers.links
        assert lines == ["closed the link to n1: it reads too slowly what is sent to it"]
        first.gone = second.gone = "cut"  # what they make of it is not looked at
        first.shell.node = second.shell.node = None

    in_world(body)


def test_an_update_waits_for_a_joiner_that_reads_nothing_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        (host,) = await world.cluster(1)
        lines, done, began = said(host), asyncio.Event(), world.loop.time()
        link = Mock(bulk_bytes_sent=5)
        link.peer.name = "bob"
        behind = [link]
        link.cut.side_effect = lambda *_: behind.clear()
        rounds = host.shell.rounds
        monkeypatch.setattr(rounds._forwarding, "behind", lambda *_: list(behind))
        told: list[events.Event] = []
        handle = host.shell.handle

        def tell(event: events.Event) -> None:
            if isinstance(event, events.UpdateDelayed) and event.iteration >= NEVER:
                told.append(event)
            handle(event)

        monkeypatch.setattr(rounds._hub, "handle", tell)
        rounds.when_followed(NEVER, done.set)
        assert told == [events.UpdateDelayed(NEVER)]
        world.loop.call_later(20, setattr, link, "bulk_bytes_sent", 6)
        await done.wait()
        assert 20 + FOLLOW_STILL_SECONDS < world.loop.time() - began < 21 + FOLLOW_STILL_SECONDS
        assert lines == ["closed the link to bob: it reads nothing of what is sent to it"]
        # At once, when it has read a little more, and when the update is handed over.
        assert told == 3 * [events.UpdateDelayed(NEVER)]
        rounds.when_followed(NEVER + 1, done.set)
        assert len(told) == 3, "an update that is handed over at once is not worth a word"

    in_world(body)


def members(host: Host) -> list[str]:
    node = host.shell.node
    policy = node.context.policy if node is not None else None
    return [m.name for m in policy.view.members] if policy is not None else []


def test_a_member_whose_part_is_wrong_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is found in this node's own contribution, outside of any callback of the link."""

    async def body(world: World) -> None:
        hosts = await world.cluster(2)
        node = hosts[0].shell.node
        assert node is not None
        assert node.context.policy is not None
        root = node.context.policy.tree.root
        parent, child = sorted(hosts, key=lambda host: host.me.node != root)
        lines = said(parent)
        liar = child.shell.rounds.reducer
        honest = liar.contribute

        def lie(word: ControlWord) -> None:
            monkeypatch.setattr(liar, "contribute", honest)
            honest(replace(word, done=((1 << MICRO_BATCHES) - 1).to_bytes(1, "little")))

        monkeypatch.setattr(liar, "contribute", lie)
        await world.until(lambda: members(parent) == [parent.name])
        assert (
            f"closed the link to {child.name}: a control word with micro-batches of other"
            in lines[0]
        )
        await world.until(lambda: members(child) == [child.name])

    in_world(body)


def test_a_join_forgets_the_rounds_of_the_cluster_before() -> None:
    """Otherwise early chunks of the new cluster are dropped, as its lineage and iterations
    differ."""

    async def body(world: World) -> None:
        (first,) = await world.cluster(1)
        lonely = world.host()
        lonely.found()
        await world.until(lambda: lonely.trainer.iteration >= 5)
        rounds = [lonely.shell.rounds.reducer._round]
        lonely.join(first)
        rounds.append(lonely.shell.rounds.reducer._round)
        assert [r is None for r in rounds] == [False, True]
        lonely.shell.node = first.shell.node = None

    in_world(body)


def test_who_founds_again_forgets_the_updates_of_the_cluster_before() -> None:
    """Otherwise one of them could be applied in the place of one with the same number, as it could
    at a device that stands by, or was expelled, and then goes on alone."""

    async def body(world: World) -> None:
        _, second = await world.cluster(2)
        shell, node = second.shell, second.shell.node
        assert node is not None
        at = node.context.iteration
        await shell.drop_links()
        trainer = shell.trainer
        trainer._kept[at + 1] = shell.rounds.reducer.kept(at - 1)
        trainer._hashed = at
        trainer._words[at] = EMPTY
        shell.found(b"anew" * 4, 2)
        assert not any((trainer._kept, trainer._hashed, trainer._words))
        world.hosts[0].gone = second.gone = "cut"  # what they make of it is not looked at
        world.hosts[0].shell.node = shell.node = None

    in_world(body)


def test_links_that_are_being_opened_are_given_up_with_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next node would take what becomes of them for its own."""

    async def body(world: World) -> None:
        (host,) = await world.cluster(1)
        begun, ended = asyncio.Event(), list[str]()

        async def dial(peer: PeerInfo) -> Link:
            begun.set()
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                ended.append("given up")
                raise
            raise EdgeAgentError(f"no way to {peer.name}")

        monkeypatch.setattr(host.network, "dial", dial)
        monkeypatch.setattr(host.network, "trust", lambda _: b"")
        host.shell.peers.perform(effects.Dial(STRANGER))
        await begun.wait()
        await host.shell.drop_links()
        host.shell.found(b"anew" * 4, 2)
        heard: list[events.Event] = []
        monkeypatch.setattr(host.shell, "handle", heard.append)
        await asyncio.sleep(2)
        assert ended == ["given up"]
        assert events.DialFailed(STRANGER.node) not in heard
        assert not host.shell.peers._dials
        host.gone, host.shell.node = "cut", None

    in_world(body)


def test_a_link_that_comes_up_while_there_is_no_node_is_closed() -> None:
    async def body(world: World) -> None:
        (host,) = await world.cluster(1)
        await host.shell.drop_links()
        link, closed = Mock(), asyncio.Event()

        async def close(*, flush: bool) -> None:
            assert not flush
            closed.set()

        link.close = close
        host.shell.link_up(link)
        await closed.wait()
        assert not host.shell.peers.links
        host.shell.link_down(link, "closed by us", LinkEnd.CUT)
        host.gone = "cut"

    in_world(body)


def test_no_timer_is_left_after_the_end() -> None:
    async def body(world: World) -> None:
        first, _second = await world.cluster(2)
        await first.shell.close()
        first.shell._ping()
        first.shell._arm()
        assert first.shell._timer is None or first.shell._timer.cancelled()
        assert first.shell._ping_timer is None or first.shell._ping_timer.cancelled()

    in_world(body)


def test_lines_of_a_kind_are_said_now_and_then() -> None:
    lines: list[str] = []
    now = [0.0]
    some = LimitedLog(lines.append, lambda: now[0])
    for _ in range(5):
        some.say("a", "one")
    some.say("b", "other")
    now[0] = 100.0
    some.say("a", "one")
    assert lines == ["one", "other", "one (4 more of this kind before)"]


def test_who_joins_again_is_somebody_else_but_keeps_its_state() -> None:
    async def body(world: World) -> None:
        first, second = await world.cluster(2)
        shell, node = second.shell, second.shell.node
        assert node is not None
        assert not shell.spoilt
        iteration = node.context.iteration
        await shell.drop_links()
        assert not shell.spoilt  # what it pulled once has been a member's state since
        assert shell.trainer.own_state is not None
        assert shell.trainer.own_state.past.iteration == iteration
        shell.trainer.received(handover.Applied(iteration, 0, False, b"late"))
        assert shell.trainer.own_state.past.iteration == iteration + 1
        assert shell.trainer.own_state.meta == b"late"
        shell.join(member_of(first.me), 7)
        assert shell.node is not None
        assert shell.node.context.config.me.incarnation == 7
        assert shell.node.context.router.incarnation == 7
        first.gone = second.gone = "cut"  # what they make of it is not looked at
        first.shell.node = second.shell.node = None

    in_world(body)


def test_a_member_that_is_let_go_at_a_boundary_has_the_state_and_history_of_that_boundary() -> None:
    async def body(world: World) -> None:
        _, second, _ = await world.cluster(3)
        shell, node = second.shell, second.shell.node
        assert node is not None
        node.context.constants = b"of the cluster"
        node.departure.stand_by(asyncio.get_running_loop().time(), "slow links")
        shell.handle(events.Tick())
        await world.until(lambda: node.over)
        assert not node.context.is_member
        assert node.was_member
        await shell.drop_links()
        own = shell.trainer.own_state
        assert own is not None
        assert (own.past, own.commit) == (node.context.past, node.context.commit)
        assert own.past.iteration == second.trainer.iteration
        assert shell._config.constants == b"of the cluster"

    in_world(body)


def test_nobody_goes_on_from_a_state_that_the_others_have_refuted() -> None:
    async def body(world: World) -> None:
        first, _ = await world.cluster(2)
        own, trainer = OwnState(NOTHING, b""), first.shell.trainer
        node = SimpleNamespace(was_member=False, joining=SimpleNamespace(is_refuted=True))
        hub = SimpleNamespace(node=node)
        with patch.object(trainer, "_hub", hub), patch.object(trainer, "own_state", own):
            trainer.note_own_state()
            assert trainer.own_state is None
        first.gone = "cut"
        first.shell.node = None

    in_world(body)


def test_whose_state_differed_does_not_rely_on_its_frozen_weights() -> None:
    async def body(world: World) -> None:
        first, second = await world.cluster(2)
        shell, node = second.shell, second.shell.node
        assert node is not None
        node.context.constants = b"of the cluster"
        node.context.diverged = True  # as a fault in memory may have changed them
        await shell.drop_links()
        shell.join(member_of(first.me), 7)
        assert shell.node is not None
        assert shell.node.context.config.constants == b""
        first.gone = second.gone = "cut"  # what they make of it is not looked at
        first.shell.node = second.shell.node = None

    in_world(body)


def pull_of_frozen(*, are_right: bool) -> Pull:
    """Return a pull of a state that begins with a frozen shard."""
    return Pull(
        2, 16, (), lambda *_: Offer(b"", "", None, 0.0, 0), lambda *_: {}, 1, are_right=are_right
    )


def test_who_joins_again_says_which_frozen_weights_it_has_now() -> None:
    async def body(world: World) -> None:
        first, second = await world.cluster(2)
        shell, node = second.shell, second.shell.node
        assert node is not None
        node.context.constants = b"of the cluster"  # pulled, in the place of its own
        await shell.drop_links()
        shell.join(member_of(first.me), 7)
        assert shell.node is not None
        assert shell.node.context.config.constants == b"of the cluster"
        shell.trainer.own_state = None  # as if another pull had begun and broken off
        joining = shell.node.joining
        assert joining is not None
        joining.pull = pull_of_frozen(are_right=True)
        await shell.drop_links()
        shell.join(member_of(first.me), 8)
        assert shell.node.context.config.constants == b"of the cluster"  # it left them as they were
        joining = shell.node.joining
        assert joining is not None
        joining.pull = pull_of_frozen(are_right=False)
        await shell.drop_links()
        shell.join(member_of(first.me), 9)
        assert shell.node.context.config.constants == b""
        first.gone = second.gone = "cut"  # what they make of it is not looked at
        first.shell.node = second.shell.node = None

    in_world(body)
