"""Requests of the user: from the command socket to the node's events, and its answers back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from edgeagent import administration as module
from edgeagent.administration import Administration
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local.changes import ChangeStatus, NoSuchMember
from edgeagent.transport.token import parse_token
from protocols import events
from protocols.cluster.view import edge
from tests.unit.cli.samples import sample_status
from tests.unit.cli.test_changes import ALICE, BOB, DEED

if TYPE_CHECKING:
    from edgeagent.local.status_model import Status
    from edgeagent.shell import Shell

CAROL = DEED
FAYE = replace(CAROL, node=bytes([9]) * 32, name="faye")  # follows from outside
Wish = events.LinkWanted | events.ExpelWanted


@dataclass
class FakeHost:
    """An agent called alice, linked to bob and not to the third member."""

    token: bytes | None = bytes(16)
    phase: str = "training"
    taken: list[events.Event] = field(default_factory=list)
    answers: dict[events.Event, str] = field(default_factory=dict)
    takes_tokens: bool = True

    def __post_init__(self) -> None:
        self.left = False
        self.shell: Any = SimpleNamespace(handle=self.handle, watch=lambda: None)
        self.shell.node = self.new_node()
        self.administration = Administration(self)
        self.administration.watch(cast("Shell", self.shell))

    def new_node(self) -> Any:
        """Return a node that answers from `answers`."""
        view = SimpleNamespace(members=(ALICE, BOB, CAROL), edges=(edge(ALICE.node, BOB.node),))
        context = SimpleNamespace(
            node=ALICE.node,
            iteration=119,
            policy=SimpleNamespace(view=view, pulls=(SimpleNamespace(joiner=FAYE),)),
            config=SimpleNamespace(me=ALICE),
            election=SimpleNamespace(scheduler=BOB.node),
            name=lambda node: {ALICE.node: "alice", BOB.node: "bob"}[node],
        )
        wishes = SimpleNamespace(answer=self.answers.get)
        return SimpleNamespace(context=context, wishes=wishes, negotiator=None)

    def handle(self, event: events.Event) -> None:
        """Take an event as the shell does."""
        self.taken.append(event)
        if isinstance(event, events.TokenWanted) and self.takes_tokens:
            self.token = event.token
        self.shell.watch()

    def answer(self, text: str) -> None:
        """Have the node answer its newest wish, one step later."""
        self.answers[self.taken[-1]] = text
        self.shell.node.context.iteration += 1
        self.shell.watch()

    def status(self) -> Status:
        """Return a status."""
        return sample_status(phase=self.phase)

    async def leave(self) -> None:
        """Start to leave."""
        self.left = True


def on_a_loop(body: Callable[[FakeHost, Administration], Any], **options: Any) -> None:
    """Run `body` on a loop."""

    async def main() -> None:
        host = FakeHost(**options)
        body(host, host.administration)

    asyncio.run(main())


def state(change: ChangeStatus | None) -> str:
    """Return the state of a change that must exist."""
    assert change is not None
    return change["state"]


def test_a_link_is_asked_for_until_it_is_in_force() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        begun = administration.change_link("deed", True)
        assert host.taken == [events.LinkWanted(CAROL.node, True)]
        assert begun == {
            "number": 1,
            "state": "pending",
            "node": "deed",
            "text": "waiting for bob, the scheduler, and for the end of a step",
            "step": 0,
            "token": "",
        }
        host.shell.watch()
        assert administration.change(1) == begun
        host.shell.node.negotiator = object()
        text = (administration.change(1) or begun)["text"]
        assert text.startswith("waiting for the members")
        host.answer("")
        host.shell.node.context.iteration += 7
        host.shell.watch()
        done = administration.change(1)
        assert done == {**begun, "state": "done", "text": "", "step": 121}
        assert administration.change(1) is None, "an answer is given once"

    on_a_loop(body)


def test_a_link_is_removed_by_the_beginning_of_an_id() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        administration.change_link("b0b1", False)
        assert host.taken == [events.LinkWanted(BOB.node, False)]
        host.answer("without it the cluster would fall into two parts")
        change = administration.change(1)
        assert change is not None
        assert change["state"] == "refused"
        assert change["text"] == "without it the cluster would fall into two parts"

    on_a_loop(body)


@pytest.mark.parametrize(
    ("ask", "error", "expected"),
    [
        (lambda a: a.change_link("bob", True), EdgeAgentError, "alice is already linked to bob"),
        (lambda a: a.change_link("deed", False), EdgeAgentError, "alice is not linked to deed"),
        (lambda a: a.change_link("eve", True), NoSuchMember, "members: alice, bob, deed"),
        (lambda a: a.change_link("alice", True), UsageError, "is this agent itself"),
        (lambda a: a.expel("alice"), UsageError, "`edgeagent leave` takes it out"),
        (lambda a: a.expel("eve"), NoSuchMember, "no member is called 'eve'"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    ask: Callable[[Administration], ChangeStatus], error: type[EdgeAgentError], expected: str
) -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        with pytest.raises(error, match=expected):
            ask(administration)
        assert host.taken == []

    on_a_loop(body)


ASKS: list[Callable[[Administration], ChangeStatus]] = [
    lambda a: a.change_link("deed", True),
    lambda a: a.expel("bob"),
    lambda a: a.rotate_token(),
]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("starting", r"not training yet \(starting\)"),
        ("founding", r"not training yet \(founding\)"),
        ("joining", r"not training yet \(joining\)"),
        ("leaving", "this agent is leaving the cluster"),
    ],
)
def test_only_a_member_can_ask(
    ask: Callable[[Administration], ChangeStatus], phase: str, expected: str
) -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        with pytest.raises(EdgeAgentError, match=expected):
            ask(administration)
        host.shell = None
        with pytest.raises(EdgeAgentError):
            ask(administration)
        assert host.taken == []

    on_a_loop(body, phase=phase)


def test_an_expulsion_is_done_when_the_token_has_changed() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        assert administration.expel("bob")["state"] == "pending"
        assert host.taken == [events.ExpelWanted(BOB.node)]
        host.takes_tokens = False
        host.answer("")
        wanted = host.taken[1]
        assert isinstance(wanted, events.TokenWanted), "not before the member is out"
        assert len(host.taken) == 2
        change = administration.change(1)
        assert state(change) == "pending"
        assert change is not None
        assert change["token"] == "", "nobody has taken it over yet"
        host.token = wanted.token
        host.shell.node.context.iteration += 5
        host.shell.watch()
        done = administration.change(1)
        assert done is not None
        assert (done["state"], done["node"], done["step"]) == ("done", "bob", 121)
        assert parse_token(done["token"]) == wanted.token
        assert len(host.taken) == 2

    on_a_loop(body)


def test_a_device_that_follows_from_outside_can_be_expelled() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        assert administration.expel("faye")["state"] == "pending"
        assert host.taken == [events.ExpelWanted(FAYE.node)]

    on_a_loop(body)


def test_a_refused_expulsion_leaves_the_token() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        administration.expel("bob")
        host.answer("not now")
        change = administration.change(1)
        assert state(change) == "refused"
        assert host.token == bytes(16)
        assert len(host.taken) == 1

    on_a_loop(body)


def test_a_token_is_changed_and_told_to_who_asked_alone() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        tokens = []
        for number in (1, 2):
            assert administration.rotate_token()["number"] == number
            change = administration.change(number)
            assert state(change) == "done"
            assert change is not None
            tokens.append(change["token"])
            assert parse_token(change["token"]) == host.token
        assert tokens[0] != tokens[1]
        assert administration.change(1) is None
        assert not any(t in str(administration.status()) for t in tokens)

    on_a_loop(body)


def test_who_trains_without_a_token_has_none_to_change() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        with pytest.raises(EdgeAgentError, match="trains alone, without a token"):
            administration.rotate_token()

    on_a_loop(body, token=None)


@pytest.mark.parametrize("out", [False, True])
def test_a_wish_that_is_never_answered_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, out: bool
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)

    async def main() -> None:
        host = FakeHost(takes_tokens=False)
        host.administration.expel("bob")
        if out:
            host.answer("")
        for _ in range(10_000):
            if state(change := host.administration.change(1)) != "pending":
                break
            await asyncio.sleep(0.001)
        assert change is not None
        assert "not done after 0 s: still waiting for bob, the scheduler" in change["text"]
        assert change["text"].startswith("bob is out, but the token is the old one") == out
        assert "run `edgeagent token rotate`" in change["text"]
        assert change["token"] == ""

    asyncio.run(main())


def test_a_later_command_about_the_same_member_takes_the_place_of_the_one_before() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        administration.change_link("bob", False)
        administration.change_link("deed", True)
        administration.expel("bob")
        states = [administration.change(number) for number in (1, 2, 3)]
        assert [state(change) for change in states] == ["refused", "pending", "pending"]
        assert states[0] is not None
        assert states[0]["text"] == "a later command about bob took its place"

    on_a_loop(body)


def test_two_commands_do_not_expel_one_member_at_once() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        administration.expel("bob")
        with pytest.raises(EdgeAgentError, match="expelling bob already"):
            administration.expel("bob")
        host.takes_tokens = False
        host.answer("")
        with pytest.raises(EdgeAgentError, match="expelling bob already"):
            administration.change_link("bob", False)
        assert len(host.taken) == 2

    on_a_loop(body)


def test_a_device_that_joins_again_has_to_ask_again() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        administration.change_link("deed", True)
        host.shell.node = host.new_node()
        host.shell.watch()
        change = administration.change(1)
        assert state(change) == "refused"
        assert change is not None
        assert change["text"] == "this device had to join again meanwhile: ask once more"

    on_a_loop(body)


def test_only_so_many_requests_are_kept() -> None:
    def body(host: FakeHost, administration: Administration) -> None:
        for _ in range(module.MAX_CHANGES):
            administration.change_link("deed", True)
        with pytest.raises(EdgeAgentError, match="too many changes"):
            administration.rotate_token()
        host.answer("")
        assert administration.rotate_token()["number"] == module.MAX_CHANGES + 1
        assert administration.change(1) is None
        assert state(administration.change(2)) == "done"

    on_a_loop(body)


def test_status_and_leave_are_the_agents() -> None:
    async def main() -> None:
        host = FakeHost()
        assert host.administration.status() == sample_status()
        await host.administration.leave()
        assert host.left

    asyncio.run(main())
