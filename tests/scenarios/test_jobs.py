"""Built-in jobs with real agents: a language model on two devices, and on devices whose text
differs.

Both devices must end with the same state, which shows that nothing in the job depends on the device
that computes it; and text that differs must be refused before anything is trained on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import Cluster
from tests.variants import variants

STEPS = 60  # enough that the second device, on a busy machine, is a member before they are over
BATCH = ("--global-batch", "16", "--micro-batch", "4")
TEXT = b"A room full of laptops trains one model. " * 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Agents that train on a small text, for a few steps."""
    (tmp_path / "text").write_bytes(TEXT)
    options = ("--data", str(tmp_path / "text"), *BATCH, "--steps", str(STEPS))
    with Cluster(tmp_path, job="text", options=options) as cluster:
        yield cluster


@pytest.mark.parametrize("job", variants(["text"], long=["text-lora"]))
def test_two_devices_end_with_the_same_language_model(cluster: Cluster, job: str) -> None:
    agents = cluster.together("alice", "bob", job=job)
    for agent in agents:
        assert agent.wait_exit() == 0, agent.describe()
        assert agent.said("nats a byte, perplexity")
        scores = {event["name"]: event["value"] for event in agent.all("evaluated")}
        assert set(scores) == {"validation loss", "perplexity"}
        assert scores["validation loss"] < agents[0].losses[1]
    alice, bob = agents
    assert bob.digests[STEPS] == alice.digests[STEPS]
    assert bob.save_path.read_bytes() == alice.save_path.read_bytes()
    assert max(event["members"] for event in bob.all("step")) == 2


@pytest.mark.long
def test_a_device_with_another_text_is_turned_away(cluster: Cluster) -> None:
    founder = cluster.start("alice")
    founder.wait("joined")
    with founder.held():
        other = cluster.folder / "other"
        other.write_bytes(TEXT[:-2] + b"! ")
        stranger = cluster.start("bob", "--data", str(other), "--join-only", peers=[founder])
        stranger.wait_said("the data set is another one: its content differs")
    assert founder.wait_exit() == 0, founder.describe()
    assert founder.members == ["alice"]
