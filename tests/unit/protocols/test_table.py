"""State tables: what they allow, refuse and draw."""

from __future__ import annotations

import pytest

from protocols.errors import LocalProtocolError
from protocols.table import Row, StateTable

LAMP: StateTable[str] = StateTable(
    "lamp",
    Row("off", "press", ("on",)),
    Row("on", "press", ("off", "on")),
    Row("on", "drop", ("broken",)),
)


def test_the_first_row_begins() -> None:
    assert LAMP.initial == "off"


def test_moves_of_the_table_are_taken() -> None:
    assert LAMP.step("off", "press", "on") == "on"
    assert LAMP.step("on", "press", "off") == "off"
    assert LAMP.step("on", "press", "on") == "on"


@pytest.mark.parametrize(
    ("state", "event", "then"),
    [
        ("off", "press", "off"),
        ("off", "drop", "broken"),
        ("broken", "press", "on"),
        ("on", "fly", "off"),
    ],
)
def test_other_moves_are_bugs_of_ours(state: str, event: str, then: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"lamp: no move from {state} by {event}"):
        LAMP.step(state, event, then)


def test_allows_says_whether_an_event_means_anything() -> None:
    allowed = [
        (s, e) for s in ("off", "on", "broken") for e in ("press", "drop") if LAMP.allows(s, e)
    ]
    assert allowed == [("off", "press"), ("on", "press"), ("on", "drop")]


def test_the_diagram_shows_every_move_the_beginning_and_the_ends() -> None:
    assert LAMP.mermaid().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> off",
        "    off --> on: press",
        "    on --> off: press",
        "    on --> on: press",
        "    on --> broken: drop",
        "    broken --> [*]",
    ]
