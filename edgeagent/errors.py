"""Every error a user of edgeagent can meet, and the exit status each ends in.

    Exception
    +-- EdgeAgentError           exit status 1
        +-- UsageError           exit status 2: wrong option, file or model; nothing was started
        +-- JobMismatch          exit status 1: the cluster trains another job
        +-- JoinRefused          exit status 1: token, cluster name or version differ
        +-- AgentLost            exit status 1: the agent process ended under the trainer

Each message is one line that says what is wrong and what to do about it.
"""

from __future__ import annotations


class EdgeAgentError(Exception):
    """Base of every error edgeagent raises on purpose."""

    exit_status = 1


class UsageError(EdgeAgentError):
    """The command line, the configuration, the model or the data cannot be used as given."""

    exit_status = 2


class JobMismatch(EdgeAgentError):
    """The cluster trains a job whose fingerprint differs; the first difference is named. `batch`:
    its global batch and micro-batch in samples, if nothing else differs; the latter is None where
    it follows from the former."""

    def __init__(self, message: str, batch: tuple[int, int | None] | None = None) -> None:
        super().__init__(message)
        self.batch = batch


class JoinRefused(EdgeAgentError):
    """A cluster was found, but it does not admit this device."""


class AgentLost(EdgeAgentError):
    """The agent process has ended, so the trainer cannot go on."""
