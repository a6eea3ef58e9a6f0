"""What else hears of an agent's events, where the user asks for it: `--metrics` and `--log-dir`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.log_dir import LogDir
from edgeagent.metrics_server import MetricsServer, is_loopback, metrics_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.config import AgentConfig
    from edgeagent.event_file import EventWriter
    from edgeagent.local.status_model import Status


class Recorders:
    """The recorders of one agent, called `name`."""

    def __init__(
        self, config: AgentConfig, name: str, events: EventWriter, status: Callable[[], Status]
    ) -> None:
        self._config = config
        self._name = name
        self._events = events
        self._status = status
        self._metrics: MetricsServer | None = None
        self._log_dir: LogDir | None = None

    async def start(self, say: Callable[[str], None]) -> None:
        """Begin; `say` shows the user a line. Raises `UsageError` if a folder or a port cannot be
        had."""
        config = self._config
        if config.log_dir:
            self._log_dir = LogDir(config.log_dir, self._name, self._events, say)
        if config.metrics:
            self._metrics = MetricsServer(config.metrics, self._events, self._status)
            url = await self._metrics.start()
            host, _ = metrics_address(config.metrics)
            seen = "" if is_loopback(host) else ", which everybody in the network can read"
            say(f"metrics for Prometheus at {url}{seen}")

    async def close(self) -> None:
        """Stop serving and write the last lines. Idempotent."""
        if self._metrics is not None:
            await self._metrics.close()
        self.flush()

    def flush(self) -> None:
        """Write the last lines, also where there is no time for more."""
        if self._log_dir is not None:
            self._log_dir.close()
