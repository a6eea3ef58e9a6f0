"""`edgeagent status` and `edgeagent leave` against living agents."""

from __future__ import annotations

import shlex
from pathlib import Path

from edgeagent.launch import module_command
from tests.scenarios.cluster import SMALL, TOKEN, Cluster


def test_status_and_leave(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob = cluster.together("alice", "bob")
        bob.wait_steps(3)

        status = cluster.status(bob)
        assert status["node"] == "bob"
        assert status["cluster"] == "default"
        assert status["phase"] == "training"
        assert status["scheduler"] == "alice"
        assert status["term"] == bob.all("joined")[0]["term"]
        assert status["iteration"] >= bob.all("step")[0]["iteration"]
        assert status["loss"] > 0
        assert status["samples_per_second"] > 0
        members = {member["name"]: member for member in status["members"]}
        assert sorted(members) == ["alice", "bob"]
        assert members["bob"]["me"]
        assert members["alice"]["scheduler"]
        assert sum(member["share"] for member in status["members"]) == 4
        assert [link["peer"] for link in status["links"]] == ["alice"]
        assert status["links"][0]["received_bytes"] > bob.all("joined")[0]["bytes"]
        assert status["tree"]["root"] in members
        assert status["pending"] == []

        several = cluster.command("status", "--json")
        assert several.returncode == 2
        assert several.stderr.count("\n") == 1
        assert "--name: alice, bob" in several.stderr

        left = cluster.command("leave", "--name", "bob")
        assert left.returncode == 0, left.stderr
        assert left.stdout == "bob has left\n"
        assert bob.wait_exit() == 0
        assert alice.wait("member_left", node="bob")["reason"] == "leave"
        alice.wait_steps(5)
        assert [m["name"] for m in cluster.status(alice)["members"]] == ["alice"]

        assert cluster.command("leave").returncode == 0
        assert alice.wait_exit() == 0
        nobody = cluster.command("status")
        assert nobody.returncode == 1
        assert "no agent runs on this device" in nobody.stderr


def test_a_reader_of_events_that_goes_away_changes_nothing(tmp_path: Path) -> None:
    """`edgeagent run digits --events - | head -n 2`: the training goes on to its end."""
    run = [*module_command("edgeagent"), "run", "digits", "--no-mdns", "--no-save"]
    run += ["--listen", "127.0.0.1:0", "--steps", "20", "--events", "-"]
    pipe = f"set -o pipefail; {shlex.join(run)} | head -n 2"
    with Cluster(tmp_path) as cluster:
        agent = cluster.launch("alice", ["bash", "-c", pipe], {"EDGEAGENT_TOKEN": TOKEN})
        assert agent.wait_exit() == 0, agent.log
        log = agent.log
        assert log.count('"event": ') == 2
        assert log.count("no more events are written to --events -: Broken pipe") == 1
        assert "done: 20 steps" in log
