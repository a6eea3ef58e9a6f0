"""Starts agents on the nodes of an emulated network.

An agent is told nothing about the network, and gets none of this process's own settings.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeagent.launch import module_command, package_environment
from edgeagent.transport.token import new_token
from tests.scenarios import forking
from tests.scenarios.cluster import Agent

if TYPE_CHECKING:
    from tests.testbed.network import Network

NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts agents of one cluster that train `job`. Homes, events and logs go into `folder`, which
    has to exist; the cluster's token is in `token_file`."""

    net: Network
    folder: Path
    cluster: str
    job: str
    arguments: tuple[str, ...] = ()

    @property
    def token_file(self) -> Path:
        """The file with the token, which is made when it is first asked for."""
        path = self.folder / "token"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(new_token() + "\n")
        return path

    def start(
        self,
        node: str,
        options: Sequence[str] = (),
        *,
        name: str = "",
        module: str = "edgeagent",
        variables: Mapping[str, str] = NOTHING,
    ) -> Agent:
        """Start the agent of `node`, with more options of `edgeagent run`.

        name: that of its files, the node's name if it is ""; files of an earlier agent of that name
        are overwritten. module: run this module instead of the command `edgeagent`. variables: more
        variables of its environment.
        """
        name = name or node
        home = self.folder / node
        home.mkdir(exist_ok=True)
        events, log = self.folder / f"{name}.events.jsonl", self.folder / f"{name}.log"
        events.unlink(missing_ok=True)
        save = home / "model.safetensors"
        command = [*module_command(module), "run", self.job, "--name", node]
        command += ["--cluster", self.cluster, "--token-file", str(self.token_file)]
        command += ["--events", str(events), "--save", str(save), *options]
        command += ["--", *self.arguments] if self.arguments else []
        with log.open("wb") as output, forking.starts(spare=True):
            process = self.net.popen(
                node,
                command,
                cwd=home,
                env={**environment(home), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Agent(name, process, events, log, save, home)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of an agent: this one's, without its settings for edgeagent."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EDGEAGENT_")}
    kept = forking.quick(kept) if forking.USE.allowed else kept
    return package_environment({**kept, "EDGEAGENT_HOME": str(home), "OMP_NUM_THREADS": "1"})
