"""Records as plain values: they are read back as the same, and anything else is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, get_args

import pytest
from hypothesis import given, settings

from protocols import effects, events
from protocols.cluster.ancestry import Ancestor, Past
from protocols.cluster.ways import Way
from protocols.member.plain import from_plain, to_plain
from protocols.network.link_end import LinkEnd
from protocols.network.stretch import Carried, Stretch
from protocols.rounds import control_word
from protocols.rounds.control_word import ControlWord
from protocols.scheduler.planning import Found
from protocols.wire import messages as m
from protocols.wire.envelope import Envelope, Tags
from tests.unit.protocols.records import envelopes, member, plain

WORD = ControlWord(1, 2, b"\3", b"", float("inf"), b"\4", b"", True, settings=b"s", stop=True)
EVENTS: tuple[events.Event, ...] = (
    events.LinkUp(member(1)),
    events.LinkDown(b"n", LinkEnd.CUT),
    events.Silent(b"n"),
    events.Faulty(b"n", 'it said "no"'),
    events.DialFailed(b"n"),
    events.Located(b"n", ("10.0.0.1:1", "é:2"), 3, b"l"),
    events.Received(b"n", Envelope(plain(Tags), plain(m.PolicyBody))),
    events.Tick(),
    events.Contributed(3, (1, 2), -math.inf, b"\1", b"", False, 4, b"a", b"b", True),
    events.ChunksReady(3, (1, 2), b"\6", 4),
    events.TrainerEnded(),
    events.Progressed(3, 2, 4),
    events.RoundReduced(3, 1, WORD),
    events.Applied(3, b"meta", b"claim"),
    events.UpdateDelayed(3),
    events.PiecesTaken(3, b"pieces"),
    events.RoundDecided(3, 1, control_word.EMPTY),
    events.Published(3, 1),
    events.StripeArrived(3, 5),
    events.ShardArrived(b"n", 3, b"digest", None),
    events.ShardArrived(b"n", 3, b"digest", 1e9),
    events.ManifestReady(b"n", 7, (b"a", b"b")),
    events.OwnShardsHashed(7, (b"a", b"b")),
    events.SnapshotTaken(3, True),
    events.UpdateCopied(3),
    events.UpdateLogged(3, (b"a", b"b")),
    events.UpdateArrived(b"n", 3, 1, b"digest", None),
    events.UpdateArrived(b"n", 3, 1, b"digest", 1e9),
    events.Frozen(b"\7"),
    events.LeaveWanted(),
    events.YieldWanted(),
    events.AwayWanted(True),
    events.StandAside(),
    events.Measured((events.Incoming(b"n", None, 1.5, 3),), None, 0.25, 1.0),
    events.Measured((), None, None, None, (Stretch(0.5, (Carried(b"n", 3, 0.25),)),)),
    events.WaysFound(7, Found((Way(b"\0\0", b"\0\0", 2),), "drawn", 1.5)),
    events.LinkWanted(b"n", False),
    events.ExpelWanted(b"n"),
    events.TokenWanted(b"token 1"),
)


def through_json(value: object) -> Any:
    """Write and read a plain value."""
    return json.loads(json.dumps(value, allow_nan=False))


def test_every_event_is_among_the_samples() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(events.Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_back_as_they_were(event: events.Event) -> None:
    assert from_plain(events.Event, through_json(to_plain(event))) == event


@pytest.mark.parametrize("kind", m.MESSAGES)
def test_every_message_comes_back_as_it_was(kind: type[m.Message]) -> None:
    @settings(max_examples=10)
    @given(envelopes(kind))
    def check(envelope: Envelope) -> None:
        assert from_plain(Envelope, through_json(to_plain(envelope))) == envelope

    check()


def test_a_number_that_json_does_not_know_comes_back() -> None:
    event = events.Contributed(3, (), math.nan, b"", b"", False)
    back = from_plain(events.Event, through_json(to_plain(event)))
    assert math.isnan(back.loss_sum)


def test_values_of_reports_have_a_plain_form() -> None:
    told: dict[Any, Any] = {"id": b"\1", "many": [1, (2.5, math.inf)], "none": None, 3: {}}
    report = effects.Report("x", told)
    values: dict[str, Any] = {"id": "01", "many": [1, [2.5, "inf"]], "none": None, "3": {}}
    assert to_plain(report) == {"is": "Report", "event": "x", "values": values}


@pytest.mark.parametrize("odd", [{1, 2}, object(), events.Tick])
def test_what_has_no_plain_form_is_refused(odd: object) -> None:
    with pytest.raises(TypeError, match="no plain form"):
        to_plain(odd)


def test_what_is_long_becomes_its_length_and_digest() -> None:
    short = to_plain(events.Applied(1, b"x" * 9, b"y" * 8), 8, 2)
    assert short["meta"] == {"bytes": 9, "sha256": sha256(b"x" * 9).hexdigest()}
    assert short["claim"] == (b"y" * 8).hex()
    first = to_plain(events.ManifestReady(b"n", 7, (b"a", b"b", b"c")), 8, 2)["leaves"]
    other = to_plain(events.ManifestReady(b"n", 7, (b"a", b"b", b"d")), 8, 2)["leaves"]
    assert first["items"] == other["items"] == 3
    assert first["sha256"] != other["sha256"]


@dataclass(frozen=True)
class Odd:
    """A record with a field of a type that cannot be read."""

    value: complex


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (events.Event, {"is": "Envelope"}),
        (events.Event, {"is": "Report", "event": "x", "values": {}}),
        (events.Event, {}),
        (events.Event, None),
        (events.Event, []),
        (events.Tick, {"is": "Tick", "more": 1}),
        (events.Silent, {"is": "Silent"}),
        (events.Silent, {"is": "Silent", "node": "0g"}),
        (events.Silent, {"is": "Silent", "node": 7}),
        (events.AwayWanted, {"is": "AwayWanted", "away": 1}),
        (events.LinkDown, {"is": "LinkDown", "node": "", "why": "tired"}),
        (m.Message, {"is": "Tick"}),
        (Past, {"is": "Past", "iteration": True, "lineage": "", "ancestors": []}),
        (Past, {"is": "Past", "iteration": 0, "lineage": "", "ancestors": {}}),
        (float, "infinite"),
        (float, True),
        (float | None, "1"),
        (tuple[int, int], [1, 2]),
        (Odd, {"is": "Odd", "value": 1}),
    ],
)
def test_nothing_else_is_taken(kind: Any, value: object) -> None:
    with pytest.raises(ValueError):
        from_plain(kind, value)


def test_two_classes_of_one_name_are_told_apart() -> None:
    said, found = plain(m.Measured), events.Measured((), None, None, None)
    assert to_plain(said)["is"] == to_plain(found)["is"]
    assert from_plain(m.Message, to_plain(said)) == said
    assert from_plain(events.Event, to_plain(found)) == found
    with pytest.raises(ValueError, match="the fields of Measured"):
        from_plain(m.Message, to_plain(found))


def test_optional_values_come_back() -> None:
    past = Past(3, b"l", (Ancestor(b"k", 2),))
    assert from_plain(Past, through_json(to_plain(past))) == past
    assert from_plain(float | None, None) is None
    assert from_plain(float, 2) == 2.0
