"""Advice to users who wait in vain: it is true, and its commands can be typed as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from edgeagent.advice import (
    after_failure,
    command,
    ended_too_early,
    internal_error,
    leaving_waits_for,
    nobody_found,
    of_life,
)
from edgeagent.config import AgentConfig
from edgeagent.recipe import Recipe
from protocols.cluster.life import Note, Say


def test_the_command_can_be_typed() -> None:
    script = AgentConfig(job="train", command=("my jobs/train.py", "--epochs", "5"))
    assert command(script, "10.0.0.1:7430") == (
        "edgeagent run 'my jobs/train.py' --peer 10.0.0.1:7430 -- --epochs 5"
    )
    digits = AgentConfig(job="digits", command=("digits",), cluster="the room")
    assert command(digits, "h:1") == "edgeagent run digits --peer h:1 --cluster 'the room'"
    recipe = Recipe("digits", (("--seed", "3"), ("--shard-optimizer", "")))
    same = AgentConfig(job="digits", command=("digits",), recipe=recipe)
    assert command(same, "h:1") == "edgeagent run digits --seed=3 --shard-optimizer --peer h:1"
    assert command(AgentConfig(), "h:1") == "EDGEAGENT_PEERS=h:1 python YOUR_SCRIPT"
    plain = AgentConfig(cluster="room")
    assert command(plain, "h:1").startswith("EDGEAGENT_CLUSTER=room EDGEAGENT_PEERS=h:1 ")


def test_multicast_is_blamed_only_if_it_is_used() -> None:
    assert "multicast" in nobody_found(AgentConfig(), "h:1")
    assert "multicast" not in nobody_found(AgentConfig(mdns=False), "h:1")


def node_of(members: int, iteration: int) -> Any:
    """Return as much of a node as the advice after a failure reads."""
    view = SimpleNamespace(members=range(members))
    policy = SimpleNamespace(view=view)
    return SimpleNamespace(
        context=SimpleNamespace(policy=policy, iteration=iteration, is_member=True)
    )


def test_what_is_left_after_a_failure() -> None:
    assert after_failure("", None) == after_failure("", node_of(1, 0)) == ""
    assert after_failure("", node_of(1, 1)).startswith("; nothing of what was trained is saved")
    alone = after_failure("/x/m-step-000006.safetensors", node_of(1, 7))
    assert alone == (
        "; what was trained after /x/m-step-000006.safetensors is not saved: go on from that file"
        " with --resume"
    )
    two, three = (after_failure("", node_of(count, 7)) for count in (2, 3))
    assert "but the other device goes on: start this device again" in two
    assert "but the 2 others go on" in three


def test_a_trainer_that_ended_too_early() -> None:
    assert ended_too_early("train", 1) == "train ended with exit status 1 before training began"
    killed = "signal 9 (killed; often because memory was used up: see --dry-run)"
    assert ended_too_early("train", -9) == f"train ended with {killed} before training began"
    assert ended_too_early("train", None) == "train ended before training began"
    assert "never called loader()" in ended_too_early("train", 0)


def test_an_internal_error_names_its_place() -> None:
    try:
        raise RuntimeError("oh")
    except RuntimeError as error:
        text = internal_error({"exception": error})
    assert text.startswith("internal error: RuntimeError('oh') (test_advice.py:")
    assert internal_error({"message": "odd"}) == "internal error: odd; please report it"
    text = internal_error({"message": "odd"}, "/tmp/x.trace")
    assert text == "internal error: odd; please report it with the trace in /tmp/x.trace"


def test_leaving_waits_for_a_trainer_that_hangs() -> None:
    assert leaving_waits_for("founding", None) == " before training begins"
    assert "which does not answer" in leaving_waits_for("founding", None, hangs=True)


def test_everything_that_a_life_says_has_words() -> None:
    for note in Note:
        text = of_life(Say(note, "x.safetensors", (4, 6)), (128, 192))
        assert text
        assert "None" not in text
    assert of_life(Say(Note.BROKEN_OFF), ()).endswith(": start again")
    kept = of_life(Say(Note.BROKEN_OFF, "x-before-joining"), ())
    assert kept.endswith("is in x-before-joining: start again with --resume")
    again = of_life(Say(Note.DIVERGED_AGAIN, iterations=(50, 1500)), ())
    assert "before step 51, pulled anew, and before step 1501" in again
