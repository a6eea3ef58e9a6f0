"""The text that says where two states differ, whatever a peer has sent."""

from __future__ import annotations

from collections.abc import Mapping

import msgpack
import pytest

from edgeagent.state_difference import where
from edgeagent.trainer.meta import StateMeta

GROUPS = ({"lr": 0.01, "betas": (0.9, 0.999)}, {"lr": 0.01, "momentum": 0.9})


def meta(*groups: Mapping[str, object], **changes: object) -> bytes:
    """The scalars of a small state."""
    values = {"iteration": 7, "skipped": 0, "presence": b"", "scalar_slots": ((0, "step", 7),)}
    values |= {"schedule": {"last_epoch": 7, "base_lrs": [0.1, 0.2]}, **changes}
    return StateMeta(groups=groups or GROUPS, **values).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (
            meta(GROUPS[0], {"lr": 0.02, "momentum": 0.9}),
            "parameter group 1.lr: 0.01 here and 0.02 there",
        ),
        (
            meta({"lr": 0.01, "betas": (0.9, 0.99)}, GROUPS[1]),
            "parameter group 0.betas[2]: 0.999 here and 0.99 there",
        ),
        (meta(skipped=2), "the count of skipped steps: 0 here and 2 there"),
        (
            meta(schedule={"last_epoch": 8, "base_lrs": [0.1, 0.2]}),
            "the learning-rate schedule.last_epoch: 7 here and 8 there",
        ),
        (meta(scalar_slots=((0, "step", 8),)), "optimizer slot 0[2]: 7 here and 8 there"),
        (
            meta(loss_scale={"scale": 2.0}),
            "the gradient scaler: None here and [2, 'scale', 2.0] there",
        ),
    ],
)
def test_the_first_scalar_that_differs_is_named_with_both_values(theirs: bytes, said: str) -> None:
    assert where("", meta(), theirs) == said


def test_a_tensor_is_named_too() -> None:
    assert where("model.0.weight", meta(), meta()) == "the tensor model.0.weight"
    both = where("x\x1b[2J", meta(), meta(skipped=1))
    assert both == "the count of skipped steps: 0 here and 1 there; the tensor x [2J"
    assert where("", meta(), meta()) == "not known"


@pytest.mark.parametrize(
    "theirs",
    [b"", b"\xc1", b"\x07", b"\x91" * 5000, msgpack.packb({"a": 1})],
    ids=["nothing", "malformed", "a number", "deep", "a dictionary"],
)
def test_scalars_that_cannot_be_read_are_said_to_be_so(theirs: bytes) -> None:
    assert where("", meta(), theirs) == "scalars that cannot be read"


def test_values_of_a_peer_are_short_and_printable() -> None:
    theirs = msgpack.packb([1, "\x1b[31m" + "x" * 1000])
    said = where("", meta(), theirs)
    assert said.startswith("the iteration: 7 here and ")
    assert said.isprintable()
    assert len(said) < 100
    more = msgpack.packb([*msgpack.unpackb(meta(), raw=False, use_list=True), None, "more"])
    assert where("", meta(), more) == "scalars"
