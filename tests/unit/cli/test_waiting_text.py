"""The text that says which member the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from edgeagent.terminal.waiting_text import advice_text, waiting_text

from .samples import advice, waiting


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"seconds": 0.87, "step_s": 0.88},
            "waiting 0.87 s of each 0.88 s step for laptop3: its link carries 1.92 Mbit/s",
        ),
        ({}, "waiting 12 s for laptop3: its link carries 1.92 Mbit/s"),
        ({"late": True}, "waiting 12 s for laptop3: its link takes 80.0 ms one way"),
        (
            {"shared": True},
            "waiting 12 s for the link between laptop3 and alice: it carries 1.92 Mbit/s",
        ),
        ({"cause": "computing"}, "waiting 12 s for laptop3: it computes longest"),
        (
            {"cause": "computing", "trainer": True, "more": 1},
            "waiting 12 s for laptop3 and 1 more: its trainer has not answered",
        ),
        ({"cause": "silence"}, "waiting 12 s for laptop3: nothing is heard from it"),
        ({"cause": "joiner"}, "waiting 12 s for laptop3: it copies the training state to join"),
        ({"cause": "unknown", "node": ""}, "waiting 12 s: why is not known yet"),
        ({"cause": "silence", "node": "a\x1b[2J\n"}, "waiting 12 s for a [2J : nothing is heard"),
    ],
)
def test_who_is_waited_for_and_why(changes: dict[str, Any], text: str) -> None:
    assert waiting_text(waiting(**changes)).startswith(text)


def test_on_the_device_that_is_waited_for_the_others_wait() -> None:
    text = waiting_text(waiting(cause="computing"), here=True)
    assert text == "the others wait 12 s for this device: it computes longest"
    shared = waiting_text(waiting(shared=True), here=True)
    assert shared.startswith("the others wait 12 s for the link between this device and alice: ")


def test_advice_on_one_device_on_several_and_on_all() -> None:
    batch = "larger --global-batch on all devices would help"
    assert advice_text(advice(), "link") == (
        "laptop3 costs more than it gives, a step takes 0.88 s, about 18 ms without it. "
        f"A faster link (a cable) or a {batch}, or `edgeagent leave` on laptop3"
    )
    assert advice_text(advice(left_out=["a", "b\n"])) == (
        "a, b  cost more than they give, a step takes 0.88 s, about 18 ms without them. "
        f"A {batch}, or `edgeagent leave` on a, b "
    )
    assert "a, b, c and 2 more cost" in advice_text(advice(left_out=list("abcde")))
    assert advice_text(advice(alone="alice", alone_s=0.5)).startswith(
        "slower than alice alone (0.50 s): laptop3 costs more than it gives, a step takes 0.88 s"
    )
    assert advice_text(advice(alone="alice", others=1)) == (
        f"slower than alone: a step takes 0.88 s together, about 18 ms on alice alone. A {batch}"
    )
