"""The flight recorder: its bounds, what it drops and shortens, and that it keeps no secrets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols import effects, events
from protocols.cluster.ancestry import Past
from protocols.errors import RemoteProtocolError
from protocols.member import recorder as module
from protocols.member.context import NodeConfig
from protocols.member.node import Node
from protocols.member.recorder import Entry, FoundCalled, JoinCalled, PingCalled, Recorder
from protocols.rounds.control_word import ControlWord
from protocols.rounds.round import RoundSpec, Spread
from protocols.wire import messages as m
from protocols.wire.envelope import Envelope
from tests.unit.protocols.records import LINEAGE, member, star_policy, tags

if TYPE_CHECKING:
    from protocols.network.routing import Router


def repr_of(value: object) -> str:
    return f"{value!r:.60}"


TOKEN = b"a secret that nobody may read"


class FakeNode:
    """A node that answers every event as the test says."""

    def __init__(self, *answers: list[effects.Effect] | Exception) -> None:
        self._answers = list(answers)

    def handle(self, now: float, event: events.Event) -> list[effects.Effect]:
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


def recorded(
    recorder: Recorder, event: events.Event, *answers: list[effects.Effect] | Exception
) -> Entry:
    """Record one event with these effects; return its entry."""
    recorder.handle(cast("Node", FakeNode(*answers)), 1.5, event)
    return recorder.entries()[-1]


def start(recorder: Recorder) -> int | None:
    return recorder.replays_from


def sent(message: m.Message) -> effects.Send:
    return effects.Send(b"n", Envelope(tags(), message))


def received(message: m.Message) -> events.Received:
    return events.Received(b"n", Envelope(tags(), message))


def node(router: Router | None = None) -> Node:
    config = NodeConfig(member(1), 5, 100, 8, 32, 100)
    return Node(config, StandardPlanner(), router)


def test_calls_and_effects_are_kept_as_they_are() -> None:
    recorder, made = Recorder(), node()
    wanted = recorder.found(made, 1.0, LINEAGE, Past(), b"meta", bytes(32))
    recorder.ping(made, 1.5)
    again = recorder.handle(made, 2.0, events.Tick())
    other = node(made.context.router)
    joins = recorder.join(other, 3.0, member(2))
    first, ping, tick, join = recorder.entries()
    config = made.context.config
    assert first.call == FoundCalled(config, True, LINEAGE, Past(), b"meta", bytes(32))
    assert first.effects == tuple(wanted)
    assert (ping.number, ping.now, ping.call) == (2, 1.5, PingCalled())
    assert tick == Entry(3, 2.0, events.Tick(), tuple(again), "", False)
    assert join.call == JoinCalled(config, made.context.router.is_new, member(2))
    assert join.effects == tuple(joins)


def test_what_the_node_raises_is_kept_and_raised() -> None:
    recorder = Recorder()
    with pytest.raises(RemoteProtocolError):
        recorded(recorder, events.Tick(), RemoteProtocolError("odd"))
    (entry,) = recorder.entries()
    assert (entry.effects, entry.error) == (None, "RemoteProtocolError: odd")


def test_only_the_newest_are_kept() -> None:
    recorder = Recorder(most=3)
    for _ in range(5):
        recorded(recorder, events.Tick())
    assert [entry.number for entry in recorder.entries()] == [3, 4, 5]
    assert (recorder.dropped, len(recorder)) == (2, 3)


BIG = [
    events.Applied(1, bytes(2000)),
    events.PiecesTaken(1, bytes(2000)),
    events.RoundReduced(1, 0, ControlWord(1, 1, b"", b"", 0.0, bytes(2000), b"", True)),
    events.Contributed(1, (), 0.0, b"", bytes(2000), True),
    events.Contributed(1, tuple(range(250)), 0.0, b"", b"", True),
    events.ManifestReady(b"n", 1, (bytes(32),) * 30),
    events.Located(b"n", ("x" * 2000,), 1, b""),
    events.Measured((events.Incoming(b"n", None, None, 0),) * 8, None, None, None),
]
SPREAD = Spread(tuple(range(250)), None, ())
BIG_MESSAGES = [
    m.Manifest(1, (bytes(32),) * 30),
    m.PolicyBody(star_policy(4)),
    m.StatePieces(1, bytes(2000), b""),
]


@pytest.mark.parametrize("event", [*BIG, *map(received, BIG_MESSAGES)], ids=repr_of)
def test_the_bytes_that_events_keep_are_bounded(event: events.Event) -> None:
    recorder = Recorder(most_bytes=20_000)
    for _ in range(100):
        recorded(recorder, event)
    assert 2 <= len(recorder) <= 10


@pytest.mark.parametrize(
    "effect",
    [
        *map(sent, BIG_MESSAGES),
        effects.BeginTraining(1, True, bytes(2000), 9),
        effects.SendShards(b"n", 1, 1, 1, tuple(range(250))),
        effects.StartRound(RoundSpec(b"", 1, 1, 1, 0, None, (), (), 5, True, (SPREAD,))),
    ],
    ids=repr_of,
)
def test_the_bytes_that_effects_keep_are_bounded(effect: effects.Effect) -> None:
    recorder = Recorder(most_bytes=20_000)
    for _ in range(100):
        recorded(recorder, events.Tick(), [effect])
    assert 2 <= len(recorder) <= 10


def test_a_message_to_many_is_counted_once() -> None:
    recorder = Recorder(most_bytes=20_000)
    message = sent(m.StatePieces(1, bytes(2000), b""))
    for _ in range(3):
        recorded(recorder, events.Tick(), [message] * 10)
    assert len(recorder) == 3


@dataclass(frozen=True, slots=True)
class Odd:
    """An event with fields of types that no real event has."""

    things: dict[str, str] | None
    one: str


def test_fields_of_other_kinds_count_nothing() -> None:
    recorder = Recorder(most_bytes=10 * module.NOMINAL_BYTES)
    for number in range(10):
        recorded(recorder, cast("events.Event", Odd({"a": "b" * 500} if number % 2 else None, "")))
    assert len(recorder) == 10
    recorded(recorder, cast("events.Event", Odd(None, "b" * 500)))
    assert len(recorder) == 8


def test_an_entry_that_is_too_large_is_shortened() -> None:
    recorder, made = Recorder(most_entry_bytes=5000), node()
    recorder.found(made, 1.0, LINEAGE, Past(), b"meta", bytes(32))
    assert start(recorder) == 1
    entry = recorded(recorder, events.Applied(7, bytes(9000)), [effects.KeepUpdate(7)])
    assert entry.is_short
    assert isinstance(entry.call, dict)  # plain values
    assert (entry.call["is"], entry.call["iteration"]) == ("Applied", 7)
    assert entry.call["meta"]["bytes"] == 9000
    assert entry.effects == [{"is": "KeepUpdate", "iteration": 7, "stripes": []}]
    assert start(recorder) is None
    recorder.join(node(), 2.0, member(2))
    assert start(recorder) == 3


def test_a_node_with_an_old_router_can_only_be_replayed_after_its_first() -> None:
    recorder, made = Recorder(most=3), node()
    recorder.found(made, 1.0, LINEAGE, Past(), b"", bytes(32))
    made.context.router.stamp((LINEAGE, 1, 1, 1, 1, 0), b"n", m.Dropped())
    recorder.join(node(made.context.router), 2.0, member(2))
    recorded(recorder, events.Tick())
    assert start(recorder) == 1
    recorded(recorder, events.Tick())
    assert start(recorder) is None


# --- secrets --------------------------------------------------------------------------------------


def token_message(token: bytes = TOKEN) -> m.NewToken:
    return m.NewToken(token, 1, 2, 3, ())


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        (events.TokenWanted(TOKEN), []),
        (received(token_message()), []),
        (events.Tick(), [effects.UseToken(TOKEN)]),
        (events.Tick(), [sent(m.Dropped()), sent(token_message()), effects.FreezeRound()]),
        (received(token_message()), [effects.UseToken(TOKEN), sent(token_message())]),
    ],
)
def test_no_token_is_kept(event: events.Event, wanted: list[effects.Effect]) -> None:
    for recorder in (Recorder(), Recorder(most_entry_bytes=0)):
        entry = recorded(recorder, event, wanted)
        assert TOKEN not in repr(entry).encode()
        assert TOKEN.hex() not in repr(entry)
        assert "token 1" in repr(entry) or b"token 1".hex() in repr(entry)
        assert wanted == [*wanted]  # the effects that are done are the right ones
        with pytest.raises(RemoteProtocolError):
            recorded(recorder, events.TokenWanted(TOKEN), RemoteProtocolError("odd"))
        assert TOKEN not in repr(recorder.entries()).encode()


def test_the_node_itself_gets_the_token() -> None:
    recorder, made = Recorder(), node()
    recorder.found(made, 1.0, LINEAGE, Past(), b"", bytes(32))
    wanted = recorder.handle(made, 2.0, events.TokenWanted(TOKEN))
    assert effects.UseToken(TOKEN) in wanted


def test_tokens_that_differ_have_names_that_differ() -> None:
    recorder = Recorder()
    names = [recorded(recorder, events.TokenWanted(b"t%d" % (k % 3))).call for k in range(6)]
    assert names[:3] == names[3:] == [events.TokenWanted(b"token %d" % k) for k in (1, 2, 3)]


def test_the_names_of_tokens_are_bounded() -> None:
    recorder = Recorder()
    for k in range(module.MOST_NAMES + 1):
        recorded(recorder, events.TokenWanted(b"t%d" % k))
    assert len(recorder._names) == module.MOST_NAMES
    entry = recorded(recorder, events.TokenWanted(b"t0"))  # it was forgotten and gets a new name
    assert entry.call == events.TokenWanted(b"token %d" % (module.MOST_NAMES + 2))


def test_every_record_with_a_token_is_known() -> None:
    """A new event, effect or message with a token needs a line in the recorder."""
    kinds: list[Any] = [*get_args(events.Event), *get_args(effects.Effect), *m.MESSAGES]
    words = ("token", "secret", "password", "key")
    found = [k for k in kinds if any(w in f.name for f in fields(k) for w in words)]
    assert found == [events.TokenWanted, effects.UseToken, m.NewToken]
