"""An agent as a service starts it: the command of its file, run as the system would run it."""

from __future__ import annotations

import os
import plistlib
import sys
from functools import partial
from pathlib import Path

import pytest

from edgeagent.command_line import parse
from edgeagent.commands.service import planned
from edgeagent.services.systems import system_for
from edgeagent.services.units import Service
from tests.scenarios.cluster import SMALL, TOKEN, Agent, Cluster


def service_of(cluster: Cluster, folder: Path, name: str) -> Service:
    """Install a service with `edgeagent service install --dry-run`, and read its command back."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = ["--name", name, "--no-mdns", "--listen", "127.0.0.1:0", "--token-file", str(token)]
    options += ["--events", str(folder / f"{name}.events"), "--save", f"{name}.safetensors"]
    system = system_for("darwin", {"HOME": str(folder)}, 0)
    environment = cluster.environment({"EDGEAGENT_TOKEN": TOKEN})
    here = Path.cwd()
    os.chdir(folder)
    try:
        service, _ = planned(parse, [SMALL, *options], [], None, system, environment)
    finally:
        os.chdir(here)
    read = plistlib.loads(system.text(service))
    return Service(
        "x",
        tuple(read["ProgramArguments"]),
        read["WorkingDirectory"],
        tuple(read["EnvironmentVariables"].items()),
    )


def has_joined(agent: Agent, times: int) -> bool:
    """Whether so many starts of it have led to a membership."""
    return len(agent.all("joined")) >= times


def test_it_trains_stops_gracefully_and_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        service = service_of(cluster, tmp_path, "alice")
        assert service.command[0] == sys.executable
        for round_, begun in enumerate((0, 1)):
            agent = cluster.launch("alice", service.command, dict(service.environment), tmp_path)
            before = len(agent.all("left"))
            agent.wait_until("a start", partial(has_joined, agent, round_ + 1))
            at = agent.iteration
            agent.wait_steps(5)
            first = next(e["iteration"] for e in agent.all("step") if e["iteration"] > at)
            assert (first > 1) is bool(begun), "it went on from its file, or did not"
            assert agent.interrupt()[0] == 0, agent.describe()
            assert len(agent.all("left")) == before + 1
            assert agent.save_path.stat().st_size > 0


@pytest.mark.long
def test_all_agents_of_a_user_stop(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster:
        alice, bob = cluster.together("alice", "bob")
        carol = cluster.start("carol", "--cluster", "elsewhere")
        carol.wait("joined")
        done = cluster.command("stop-all")
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        assert sorted(said) == [
            "alice (cluster 'default') has left",
            "bob (cluster 'default') has left",
            "carol (cluster 'elsewhere') has left",
        ]
        for agent in (alice, bob, carol):
            assert agent.wait_exit() == 0, agent.describe()
            assert agent.save_path.stat().st_size > 0
