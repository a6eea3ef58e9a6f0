"""The trainer as a child: what it is given, and that it ends with the agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from edgeagent.config import TrainerConfig, trainer_config_from
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.launch import (
    Job,
    check_protocols,
    package_environment,
    start_trainer,
    stop_trainer,
)

if TYPE_CHECKING:
    import socket

TELL = """
import json, os, socket, sys
agent = socket.socket(fileno=int(os.environ["EDGEAGENT_SOCKET"]))
told = {"environment": dict(os.environ), "group": os.getpgid(0) == os.getpid()}
agent.sendall(json.dumps(told).encode() + b"\\n")
"""
WAIT = "agent.recv(1)\n"  # until end-of-file
IGNORE = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LINGER = "import signal\nsignal.pause()\n"


def script(*parts: str) -> Job:
    """Return a job that runs this code."""
    return Job("fake", (sys.executable, "-c", "".join(parts)), built_in=False)


def first_line(ours: socket.socket) -> str:
    """Return what the child says first."""
    ours.settimeout(60)
    with ours.makefile("r") as file:
        return file.readline()


def test_the_child_gets_its_configuration_and_ends_at_end_of_file() -> None:
    config = TrainerConfig(job="fake", steps=3, threads=2, arguments=("a",))
    environment = {**os.environ, "EDGEAGENT_TOKEN": "secret"}
    process, ours = start_trainer(script(TELL, WAIT), config, environment)
    with ours:
        told = json.loads(first_line(ours))
        assert process.poll() is None
    assert stop_trainer(process, end_of_file_s=60) == 0
    assert told["group"]
    assert trainer_config_from(told["environment"]) == config
    assert "EDGEAGENT_TOKEN" not in told["environment"]
    assert told["environment"]["OMP_NUM_THREADS"] == "2"
    assert "secret" not in json.dumps(told)


def test_a_child_that_lingers_is_terminated() -> None:
    process, ours = start_trainer(script(TELL, LINGER), TrainerConfig(), os.environ)
    with ours:
        first_line(ours)
    assert stop_trainer(process, end_of_file_s=0.01, terminate_s=60) == -signal.SIGTERM


def test_a_child_that_ignores_all_is_killed() -> None:
    process, ours = start_trainer(script(IGNORE, TELL, LINGER), TrainerConfig(), os.environ)
    with ours:
        first_line(ours)
    assert stop_trainer(process, end_of_file_s=0.01, terminate_s=0.01) == -signal.SIGKILL


def test_a_command_that_cannot_start() -> None:
    with pytest.raises(EdgeAgentError, match="cannot start fake: No such file"):
        start_trainer(Job("fake", ("/no/such",), built_in=False), TrainerConfig(), os.environ)


def test_stdout_stays_free_for_events() -> None:
    code = (
        "import os, sys\n"
        "from edgeagent.launch import *\n"
        "from edgeagent.config import TrainerConfig\n"
        "job = Job('fake', (sys.executable, '-c', 'print(1)'), False)\n"
        "process, ours = start_trainer(job, TrainerConfig(), os.environ, stdout_to_stderr=True)\n"
        "sys.exit(process.wait(60))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=package_environment(os.environ),
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"1\n")


def test_no_threads_given_leaves_the_environment_alone() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    process, ours = start_trainer(script(TELL), TrainerConfig(), environment)
    with ours:
        told = json.loads(first_line(ours))
    assert stop_trainer(process, end_of_file_s=60) == 0
    assert "OMP_NUM_THREADS" not in told["environment"]


def test_our_own_protocols_package_is_accepted() -> None:
    check_protocols()


def test_a_foreign_protocols_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "protocols", json)
    with pytest.raises(UsageError, match="another 'protocols'"):
        check_protocols()
