"""Users of a running cluster: links removed and added, a member expelled, the token changed.

Members that are not concerned must go on undisturbed, and all that go on must have equal digests.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from edgeagent.transport.token import parse_token
from tests.scenarios.cluster import SCRIPTS, SMALL, TOKEN, Agent, Cluster
from tests.scenarios.test_story import same_digests

QUIET_STEPS = 25  # steps to go on for after each change


def ask(cluster: Cluster, agent: Agent, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an `edgeagent` command for one agent."""
    return cluster.command(*words, "--name", agent.name)


def refused(ended: subprocess.CompletedProcess[str], status: int = 1) -> str:
    """Check that a command failed with one line, and return that line."""
    assert ended.returncode == status, ended
    assert ended.stdout == ""
    assert ended.stderr.startswith("edgeagent: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr


def links(cluster: Cluster, agent: Agent) -> list[str]:
    """Return the names of an agent's neighbours, sorted."""
    return sorted(link["peer"] for link in cluster.status(agent)["links"])


def wait_full(agents: Sequence[Agent]) -> None:
    """Wait until each two of the agents are linked."""
    for agent in agents:
        for other in agents:
            if other is not agent:
                agent.wait("link_up", node=other.name)


def wait_more(agent: Agent, event: str, node: str, before: int) -> None:
    """Wait for one more event about `node` than there were."""

    def seen() -> bool:
        return count(agent, event, node) > before

    agent.wait_until(f"another {event} of {node}", seen)


def count(agent: Agent, event: str, node: str) -> int:
    """Return how often an agent has written an event about `node`."""
    return sum(e["node"] == node for e in agent.all(event))


def check_undisturbed(agents: Sequence[Agent]) -> None:
    """Check that all agents go on as one cluster, and nobody was lost."""
    for agent in agents:
        agent.wait_steps(QUIET_STEPS)
        done = [e["iteration"] for e in agent.all("step")]
        assert done == list(range(done[0], done[0] + len(done))), "a step was lost or done twice"
        assert not agent.all("error"), agent.describe()
        assert all(e["reason"] != "failure" for e in agent.all("member_left"))
    assert same_digests(list(agents)) > 0


@pytest.mark.slow
def test_a_link_is_removed_and_added(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob, carol = agents = cluster.together("alice", "bob", "carol")
        wait_full(agents)
        line = refused(ask(cluster, alice, "link", "add", "bob"))
        assert line == "edgeagent: alice is already linked to bob\n"

        removed = ask(cluster, alice, "link", "remove", "bob")
        assert removed.returncode == 0, removed
        out = re.fullmatch(r"link to bob removed: in force since step (\d+)\n", removed.stdout)
        assert out is not None, removed.stdout
        assert int(out[1]) <= max(alice.iteration, bob.iteration) + 1
        alice.wait("link_down", node="bob")
        bob.wait("link_down", node="alice")
        check_undisturbed(agents)
        assert links(cluster, alice) == ["carol"]
        assert links(cluster, carol) == ["alice", "bob"]
        assert [agent.members for agent in agents] == [["alice", "bob", "carol"]] * 3

        line = refused(ask(cluster, bob, "link", "remove", "alice"))
        assert line == "edgeagent: bob is not linked to alice\n"
        assert "in two" in refused(ask(cluster, alice, "link", "remove", "carol"))
        assert "members: alice, bob, carol" in refused(ask(cluster, alice, "link", "add", "dave"))
        assert "itself" in refused(ask(cluster, alice, "link", "add", "alice"), 2)

        before = count(alice, "link_up", "bob"), count(bob, "link_up", "alice")
        node = cluster.status(alice)["id"]
        added = ask(cluster, bob, "link", "add", node[:16].upper())
        assert added.returncode == 0, added
        assert added.stdout.startswith("link to alice added: in force since step ")
        wait_more(alice, "link_up", "bob", before[0])
        wait_more(bob, "link_up", "alice", before[1])
        check_undisturbed(agents)
        assert links(cluster, alice) == ["bob", "carol"]


@pytest.mark.slow
def test_an_expelled_member_stays_out(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob, carol = cluster.together("alice", "bob", "carol")
        stay = [alice, bob]
        assert "edgeagent leave" in refused(ask(cluster, bob, "expel", "bob"), 2)
        expelled = ask(cluster, bob, "expel", "carol")
        assert expelled.returncode == 0, expelled
        token = expelled.stdout.removesuffix("\n")
        assert parse_token(token) != parse_token(TOKEN)
        assert "carol is expelled: the others train without it since step " in expelled.stderr
        assert carol.wait_exit() == 1, carol.describe()
        (line,) = carol.said("expelled")
        assert line == "edgeagent: a user has expelled this device from the cluster"
        assert carol.save_path.exists()
        assert [e["iteration"] for e in carol.all("left")] == [carol.iteration]
        for agent in stay:
            assert agent.wait("member_left", node="carol")["reason"] == "expelled"
        check_undisturbed(stay)

        elsewhere = {"EDGEAGENT_HOME": str(tmp_path / "elsewhere")}
        dave = cluster.start("dave", peers=[alice], token=token, environment=elsewhere)
        refusals = {
            TOKEN: "its token or its cluster name differs",
            token: "a user has expelled this device from the cluster: its key is barred",
        }
        for number, (known, text) in enumerate(refusals.items()):  # each with carol's home and key
            again = cluster.start(f"again-{number}", peers=stay, token=known)
            assert again.wait_exit() == 1
            assert again.said(text)
            assert not again.all("joined")
        assert sorted(dave.wait("joined")["members"]) == ["alice", "bob", "dave"]
        check_undisturbed([*stay, dave])
        for agent in cluster.agents:
            texts = agent.log, agent.events_path.read_text()
            assert not any(secret in text for text in texts for secret in (token, token[4:8]))


def has_changed(agent: Agent, times: int) -> bool:
    """Whether an agent has taken over `times` new tokens."""
    return len(agent.said("the cluster has a new token")) == times


@pytest.mark.slow
def test_the_token_is_changed_twice(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob = agents = cluster.together("alice", "bob")
        tokens = [TOKEN]
        for agent in agents:
            rotated = ask(cluster, agent, "token", "rotate")
            assert rotated.returncode == 0, rotated
            tokens.append(rotated.stdout.removesuffix("\n"))
            assert "Devices that start from now on need it" in rotated.stderr
        assert len({parse_token(token) for token in tokens}) == 3
        for agent in agents:
            agent.wait_until("both changes", partial(has_changed, agent, 2))

        newcomer = cluster.start("newcomer", peers=[alice], token=tokens[2])
        strangers = [
            cluster.start(f"stranger-{number}", peers=[agent], token=tokens[number])
            for number, agent in enumerate(agents)
        ]
        for stranger in strangers:
            assert stranger.wait_exit() == 1
            assert stranger.said("its token or its cluster name differs")
        assert sorted(newcomer.wait("joined")["members"]) == ["alice", "bob", "newcomer"]
        check_undisturbed([alice, bob, newcomer])


@pytest.mark.long
def test_who_trains_without_a_token_has_none_to_change(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        script = tmp_path / "train.py"
        text = (SCRIPTS / "ten_lines.py").read_text()
        assert "steps=120" in text
        script.write_text(text.replace("steps=120", "steps=1000000"))
        solo = cluster.plain("solo", str(script))
        solo.wait_iteration(3)
        line = refused(ask(cluster, solo, "token", "rotate"))
        assert "trains alone, without a token" in line
        assert "members: solo" in refused(ask(cluster, solo, "link", "add", "bob"))
        solo.wait_steps(3)
