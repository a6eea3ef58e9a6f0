"""Agents of the synthetic job in an emulated network, for measurements.

    with Network(nodes, default=Link(rate=100 * MBIT)) as net, Lab(net, folder, job) as lab:
        agents = lab.start_all("a", "b", "c")

The `with` ends everything that was started. Measurements come from the agents' event files and from
the network's own counters; `status` is asked only for what those do not have.

No device stands by (`--standby never`) unless it is told to: what is measured is what all of them
do together, on links that are as slow as the measurement wants them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgeagent.local.api import fetch_status
from tests.scenarios.processes import kill_session
from tests.testbed.agents import Launcher

if TYPE_CHECKING:
    from edgeagent.local.status_model import Status
    from tests.scenarios.cluster import Agent
    from tests.testbed.network import Network

JOB = Path(__file__).resolve().parent / "synthetic.py"
CLUSTER = "lab"
WAIT_S = 120.0
VARIABLES = {"EDGEAGENT_STANDBY": "never"}


class Lab:
    """Starts agents in the namespaces of `net`; `job`: arguments of `script`."""

    def __init__(
        self, net: Network, folder: Path, job: Sequence[str], script: str = str(JOB)
    ) -> None:
        self.net = net
        self.job = tuple(job)
        self.agents: dict[str, Agent] = {}
        self._launcher = Launcher(net, folder, CLUSTER, script, self.job)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for agent in self.agents.values():
            kill_session(self.net.session(agent.process))
            agent.process.wait()

    def start(
        self,
        node: str,
        *options: str,
        module: str = "edgeagent",
        variables: Mapping[str, str] | None = None,
    ) -> Agent:
        """Start the agent of `node`, with more options of `edgeagent run`.

        module: run this module instead of the command `edgeagent`. variables: more variables of its
        environment.
        """
        self.agents[node] = self._launcher.start(
            node, options, module=module, variables={**VARIABLES, **(variables or {})}
        )
        return self.agents[node]

    def start_all(self, *nodes: str) -> list[Agent]:
        """Start these and wait until they train together."""
        agents = [self.start(node) for node in nodes]
        self.wait_together(*nodes)
        return agents

    def wait_together(self, *nodes: str, seconds: float = WAIT_S) -> None:
        """Wait until all of `nodes` are members of one cluster, for so many seconds at most."""
        for node in nodes:
            self.agents[node].wait_members(*nodes, seconds=seconds)

    def status(self, node: str) -> Status:
        """Return the status of the agent of `node`."""
        sockets = sorted(self.agents[node].home.rglob("agent.sock"))
        return fetch_status(str(sockets[0]))

    def wait(self, what: str, done: Callable[[], Any], seconds: float = WAIT_S) -> Any:
        """Wait until `done()` is true; return its value. Raises AssertionError if it never is."""
        deadline = time.monotonic() + seconds
        while not (value := done()):
            assert time.monotonic() < deadline, f"no {what} within {seconds} s"
            time.sleep(0.02)
        return value
