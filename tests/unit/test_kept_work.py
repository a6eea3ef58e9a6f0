"""Who is there, as a founder reads it from its node, and work that waits for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from edgeagent.assembly import Present
from edgeagent.shell.kept_work import KeptWork, present
from protocols import effects, events
from protocols.cluster.view import Member
from protocols.scheduler.join import Join, JoinState

WORK = effects.GiveWork(0, (0, 1), 3)


def join(number: int, state: JoinState, *, copied: bool = False, gathers: bool = False) -> Join:
    """Return the join of a newcomer; `gathers`: it waits for others with which it will copy."""
    newcomer = Member(bytes([number]) * 32, 1, f"n{number}", "", (), b"", sparse=False)
    waits_until = 9.0 if gathers else None
    return Join(number, newcomer, (), 60.0, state, copied=copied, waits_until=waits_until)


def node(*joins: Join, members: int = 1, leads: bool = True) -> Any:
    """Return the part of a node that is looked at."""
    view = SimpleNamespace(members=[None] * members)
    open_joins = SimpleNamespace(open={each.number: each for each in joins})
    return SimpleNamespace(
        over=False,
        context=SimpleNamespace(policy=SimpleNamespace(view=view)),
        negotiator=SimpleNamespace(joins=open_joins) if leads else None,
    )


BEGINS = join(1, JoinState.LINKED)
COPIES = join(2, JoinState.COPYING)
HAS_COPIED = join(3, JoinState.LINKED, copied=True)
GATHERS = join(4, JoinState.LINKED, gathers=True)
PULLS = join(5, JoinState.PULLING)
CAUGHT_UP = join(6, JoinState.CAUGHT_UP)


@pytest.mark.parametrize(
    ("joins", "copying"),
    [
        ([], False),
        ([BEGINS], False),
        ([COPIES], True),
        ([GATHERS], True),
        ([HAS_COPIED], False),
        ([COPIES, HAS_COPIED], True),
        # Each of these needs a step to get on, and so does the copy of whoever begins with it.
        ([COPIES, BEGINS], False),
        ([COPIES, PULLS], False),
        ([COPIES, CAUGHT_UP], False),
    ],
)
def test_who_is_there_and_who_gets_on_without_a_step(joins: list[Join], copying: bool) -> None:
    assert present(node(*joins)) == Present(1, len(joins), copying)


def keeping() -> tuple[KeptWork, Mock, list[effects.GiveWork]]:
    """Return what keeps the first work of a founder that waits for one more device, with its hub,
    and what it gives to the trainer."""
    given: list[effects.GiveWork] = []
    hub = Mock(node=node())
    kept = KeptWork(hub, 2, Mock(), given.append)
    kept.founded()
    kept.give(WORK)
    return kept, hub, given


def test_who_has_no_links_yet_is_not_there() -> None:
    coming = [join(1, JoinState.INTRODUCING), join(2, JoinState.LINKING)]
    assert present(node(*coming, members=2)) == Present(2, 0, False)
    assert present(node(members=2, leads=False)) == Present(2, 0, False)
    outside = replace(join(3, JoinState.COPYING), outside="its link is slow")
    assert present(node(outside, BEGINS)) == Present(1, 1, False), "it is not to enter"


def in_loop(body: Any) -> None:
    """Run `body`, which needs the clock of a loop."""

    async def run() -> None:
        body()

    asyncio.run(run())


def test_work_waits_and_goes_in_its_order() -> None:
    def body() -> None:
        given: list[effects.GiveWork] = []
        hub, observer = Mock(node=node()), Mock()
        kept = KeptWork(hub, 2, observer, given.append)
        kept.founded()
        more = effects.GiveWork(0, (2,), 3)
        kept.give(WORK)
        kept.give(more)
        assert given == []
        hub.node = node(BEGINS)
        kept.look()
        assert given == [WORK, more]
        assert [call.args for call in observer.assembling.call_args_list] == [(2, 1), (2, 2)]
        kept.give(WORK)
        kept.hand_back()
        assert given == [WORK, more, WORK]
        hub.handle.assert_not_called()

    in_loop(body)


def test_work_that_is_handed_back_was_not_begun() -> None:
    def body() -> None:
        kept, hub, given = keeping()
        kept.hand_back()
        nothing = events.Contributed(0, (), 0.0, b"", b"", True, 3)
        hub.handle.assert_called_once_with(nothing)
        hub.node = node(BEGINS)
        kept.look()
        assert given == []

    in_loop(body)


def test_work_of_a_node_that_is_gone_is_forgotten() -> None:
    def body() -> None:
        kept, _hub, given = keeping()
        kept.drop()
        kept.look()
        assert given == []
        kept.give(WORK)
        assert given == [WORK], "that of a joiner is given at once"

    in_loop(body)
