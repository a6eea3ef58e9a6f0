"""Starts the trainer as a child of the agent, and makes sure that it ends.

The trainer is a process of its own, in a process group of its own, so that Ctrl+C in the terminal
reaches only the agent. It never outlives the agent: where the system can do it the trainer is
killed with the agent, elsewhere its end of the hand-over socket reads end-of-file (`lifetime.py`);
and an agent that ends in order ends it, too. The token is never passed to the trainer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeagent.config import (
    RUN_VARIABLE,
    SOCKET_VARIABLE,
    THREAD_VARIABLES,
    TOKEN_VARIABLE,
    trainer_config_text,
)
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.lifetime import dies_with_parent
from edgeagent.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeagent.config import TrainerConfig

BUILT_IN_JOBS = (
    "digits",
    "fashion-mnist",
    "fashion-alexnet",
    "cifar10",
    "speech-commands",
    "text",
    "text-lora",
)
JOBS_WITHOUT_DATA = ("digits",)  # those whose data set is part of this package
END_OF_FILE_GRACE_S = 2.0  # time to end by itself once the socket is closed
DEVICE_CHECK_S = 120.0  # for importing torch and starting CUDA, from a slow disk
TERMINATE_GRACE_S = 3.0  # for the trainer to end after SIGTERM, before SIGKILL
PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Child(Protocol):
    """The trainer process as the agent sees it; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


class OwnChild(Child, Protocol):
    """The same, as the process that has started it sees it."""

    def dismiss(self) -> None:
        """Ask it to end before it has begun to train; its exit status then counts as no failure."""


class TrainerProcess(subprocess.Popen[bytes]):
    """The trainer that `start_trainer` starts. `was_killed`: this process killed it, so its exit
    status is no failure of its own."""

    dismissed = was_killed = False

    def dismiss(self) -> None:
        """Ask it to end before it has begun to train; its exit status then counts as no failure."""
        self.dismissed = True
        self.terminate()

    def kill(self) -> None:
        """End it."""
        self.was_killed = True
        super().kill()


@dataclass(frozen=True, slots=True)
class Job:
    """The command that the trainer process runs: a built-in job's module or the user's script."""

    name: str
    command: tuple[str, ...]
    built_in: bool


def resolve_job(text: str, arguments: Sequence[str] = ()) -> Job:
    """Return the job called `text`: a built-in's name or a path; raise `UsageError` otherwise."""
    if text in BUILT_IN_JOBS:
        if arguments:
            raise UsageError(
                f"the built-in job {text} takes no arguments after --; only a script does"
            )
        return Job(text, (*module_command("edgeagent.trainer.jobs"), text), built_in=True)
    built_ins = ", ".join(BUILT_IN_JOBS)
    if os.path.isfile(text):
        name = os.path.splitext(os.path.basename(text))[0]
        command = (sys.executable, os.path.abspath(text), *arguments)
        return Job(name, command, built_in=False)
    if os.path.isdir(text):
        raise UsageError(f"{text} is a folder; give the path of a training script")
    if os.sep in text or text.endswith(".py"):
        raise UsageError(f"there is no script {text} (built-in jobs: {built_ins})")
    meant = did_you_mean(text, BUILT_IN_JOBS)
    raise UsageError(
        f"unknown job {text!r}: give one of {built_ins}, or a path to your script{meant}"
    )


def check_device(name: str, environment: Mapping[str, str]) -> str:
    """Ask torch, in a process of its own, whether a trainer can use the device called `name`.

    Returns what the user should know about it, "" if nothing. Raises `UsageError` if it cannot be
    used.
    """
    try:
        asked = subprocess.run(
            (*module_command("edgeagent.trainer.devices"), name),
            env=package_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEVICE_CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"--device {name}: torch did not answer within {DEVICE_CHECK_S:.0f} s: its disk or the "
            "device's driver may hang"
        ) from None
    except OSError as error:
        raise UsageError(f"--device {name}: torch cannot be asked about it: {error}") from None
    said = asked.stdout.strip()
    if asked.returncode == 0:
        return said
    lines = (said or asked.stderr.strip() or how_it_ended(asked.returncode)).splitlines()
    reason = lines[-1].removeprefix(f"device {name} ")
    raise UsageError(f"--device {name}: {reason}")


def module_command(module: str) -> tuple[str, ...]:
    """Return the command that runs one of our modules.

    `-P` keeps the present folder off the path, so that a file in it never hides a package.
    """
    return (sys.executable, "-P", "-m", module)


def package_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` changed so that a child finds this package, installed or a checkout."""
    result = dict(environment)
    if os.path.basename(PACKAGE_PARENT) not in ("site-packages", "dist-packages"):
        before = result.get("PYTHONPATH")
        result["PYTHONPATH"] = PACKAGE_PARENT + (os.pathsep + before if before else "")
    return result


def trainer_environment(
    config: TrainerConfig, descriptor: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the trainer's environment: its configuration, its socket, its number of threads."""
    result = package_environment(environment)
    result.pop(TOKEN_VARIABLE, None)
    result[RUN_VARIABLE] = trainer_config_text(config)
    result[SOCKET_VARIABLE] = str(descriptor)
    if config.threads:
        result.update(dict.fromkeys(THREAD_VARIABLES, str(config.threads)))
    return result


def start_trainer(
    job: Job,
    config: TrainerConfig,
    environment: Mapping[str, str],
    *,
    stdout_to_stderr: bool = False,
) -> tuple[TrainerProcess, socket.socket]:
    """Start the trainer; return its process and the agent's end of the hand-over socket.

    With `stdout_to_stderr`, what the job prints goes to stderr, because stdout carries events.
    Raises `EdgeAgentError` if the trainer cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        process = TrainerProcess(
            job.command,
            env=trainer_environment(config, theirs.fileno(), environment),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if stdout_to_stderr else None,
            pass_fds=(theirs.fileno(),),
            process_group=0,
            preexec_fn=dies_with_parent(),
        )
    except OSError as error:
        ours.close()
        raise EdgeAgentError(f"cannot start {job.name}: {error.strerror}") from None
    finally:
        theirs.close()
    return process, ours


def stop_trainer(
    process: subprocess.Popen[bytes],
    *,
    end_of_file_s: float = END_OF_FILE_GRACE_S,
    terminate_s: float = TERMINATE_GRACE_S,
) -> int:
    """Wait for the trainer's end, forcing it step by step; return its exit status.

    Call this after the agent's end of the socket is closed.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(end_of_file_s)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(terminate_s)
    process.kill()
    return process.wait()


def how_it_ended(status: int) -> str:
    """Return an exit status in words; a negative one is a signal."""
    if status >= 0:
        return f"exit status {status}"
    hint = _SIGNALS.get(-status, "")
    return f"signal {-status}{hint and f' ({hint})'}"


# What a signal that ended a trainer usually means.
_SIGNALS: dict[int, str] = {
    signal.SIGKILL: "killed; often because memory was used up: see --dry-run",
    signal.SIGSEGV: "it crashed",
    signal.SIGABRT: "it crashed",
    signal.SIGBUS: "it crashed",
    signal.SIGTERM: "asked to end",
}


def check_protocols() -> None:
    """Raise `UsageError` if `import protocols` would find somebody else's package."""
    loaded = sys.modules.get("protocols")
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec("protocols")
    origin = spec.origin if spec is not None else None
    expected = os.path.join(PACKAGE_PARENT, "protocols", "__init__.py")
    if origin is not None and os.path.realpath(origin) == os.path.realpath(expected):
        return
    if not os.path.exists(expected):
        raise UsageError("edgeagent's package 'protocols' is missing: install edgeagent again")
    found = origin or "a namespace package"
    raise UsageError(
        f"another 'protocols' ({found}) hides edgeagent's own: rename it or take it off the path"
    )
