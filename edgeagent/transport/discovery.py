"""Hints by multicast DNS: where agents of this cluster may be listening.

A hint is never trusted: all that follows from it is a question to the join listener at that
address. What is announced is a random instance name, the addresses, a version, and a tag that only
holders of the token can compute. Trouble with multicast (no network, port taken) leads to one line,
never to an exception.

A listener on loopback announces and looks on 127.0.0.1 only, also for IPv6 addresses. That works on
Linux even though `lo` lacks the MULTICAST flag, because the socket names the interface; `lo` must
be up. IPv6 multicast would need that flag and a route, so it is not used on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING, Any, TypeVar

from zeroconf import InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from edgeagent.config import join_address, listen_address, split_address
from edgeagent.errors import UsageError
from edgeagent.transport import bounds
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

SERVICE = "_edgeagent._tcp.local."
PAIRING_SERVICE = "_edgeagent-pair._tcp.local."
TXT_VERSION = b"1"


class Discovery:
    """Announces one join listener and reports those of others."""

    def __init__(
        self,
        tag: str,
        addresses: tuple[str, ...],
        found: Callable[[tuple[str, ...]], None],
        log: Callable[[str], None],
        *,
        listen: str = "",
        interface: str = "",
        service: str = "",
        otherwise: str = "name one with --peer HOST:PORT",
    ) -> None:
        """`tag` is `token.discovery_tag`, `addresses` are those that `TcpTransport.start` returned.

        `found` is called with the addresses of each other join listener that announces the same
        tag, when it appears and when its addresses change. `listen` is the value of `--listen`,
        `interface` that of `--interface`; they decide which interfaces are used.
        For pairing, `service` is `PAIRING_SERVICE`, `tag` the code's channel, and `addresses` are
        empty at the end that only looks. `otherwise`: what a user can do where multicast fails.
        """
        self._service_type = service or SERVICE
        self._tag = tag
        self._addresses = addresses
        self._found = found
        self._log = log
        self._listen = listen
        self._interface = interface
        self._otherwise = otherwise
        self._instance = f"{secrets.token_hex(8)}.{self._service_type}"
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._info: AsyncServiceInfo | None = None
        self._announcing: Awaitable[Any] | None = None
        self._retelling: asyncio.Task[None] | None = None
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, None] = {}  # names to resolve later
        self._known: dict[str, tuple[str, ...]] = {}  # with our tag
        self._former: dict[str, None] = {}  # with the tag of our cluster before its token changed
        self._strangers: dict[str, None] = {}  # with another tag
        self._warned = False

    @property
    def strangers(self) -> int:
        """How many agents of another cluster, or with another token, were seen."""
        return len(self._strangers)

    async def start(self) -> bool:
        """Announce and look; where multicast does not work, log one line and return False."""
        if self._interface and not self._addresses:
            return False  # the interface has no address at present, which the agent has said
        try:
            self._zeroconf = AsyncZeroconf(
                interfaces=self._interfaces(), ip_version=self._ip_version()
            )
            await self._zeroconf.zeroconf.async_wait_for_start()
            self._browser = AsyncServiceBrowser(
                self._zeroconf.zeroconf, self._service_type, handlers=[self._changed]
            )
            if self._addresses:
                self._info = self._service()
                # The name is random: no one else can have it and no one has to be asked about it.
                self._announcing = await self._zeroconf.async_register_service(
                    self._info, cooperating_responders=True
                )
        except Exception as error:  # zeroconf and the kernel raise many kinds
            self._log(
                f"cannot look for peers by multicast DNS ({_reason(error)}): {self._otherwise}"
            )
            await self.stop()
            return False
        return True

    def use_tag(self, tag: str) -> None:
        """Announce and look for `tag` from now on.

        What was found under the old tag is dropped, and every agent seen so far is looked at again.
        """
        if tag == self._tag:
            return
        self._tag = tag
        for name in self._known:
            _keep(self._former, name, None)
        seen = [*self._known, *self._strangers]
        self._known.clear()
        self._strangers.clear()
        if self._zeroconf is None:
            return
        for name in seen:
            self._look_at(self._zeroconf.zeroconf, name)
        if self._info is not None and (self._retelling is None or self._retelling.done()):
            self._retelling = asyncio.get_running_loop().create_task(self._retell())

    async def use_addresses(self, addresses: tuple[str, ...]) -> None:
        """Announce this device's new `addresses`, perhaps on another network, and look for all
        agents anew."""
        await self.stop()
        self._addresses = addresses
        for kept in (self._known, self._strangers, self._waiting):
            kept.clear()
        self._retelling = None
        await self.start()

    async def _retell(self) -> None:
        """Announce the current tag, again if it changes meanwhile."""
        told = ""
        with contextlib.suppress(Exception):  # as in `start`; members are linked without this
            while self._zeroconf is not None and told != self._tag:
                told = self._tag
                if self._announcing is not None:
                    await asyncio.shield(self._announcing)
                self._info = self._service()
                self._announcing = await self._zeroconf.async_update_service(self._info)

    async def stop(self) -> None:
        """Say goodbye on the network and close everything. Idempotent."""
        tasks = [*self._looking.values(), *([self._retelling] if self._retelling else [])]
        for task in tasks:
            task.cancel()
        zeroconf, self._zeroconf = self._zeroconf, None
        await asyncio.gather(*tasks, return_exceptions=True)
        self._looking.clear()
        if zeroconf is None:
            return
        if self._browser is not None:
            await self._browser.async_cancel()
        with contextlib.suppress(Exception):  # the network may be gone by now
            if self._announcing is not None and self._info is not None:
                await self._announcing
                await (await zeroconf.async_unregister_service(self._info))
        with contextlib.suppress(Exception):
            await zeroconf.async_close()

    def _service(self) -> AsyncServiceInfo:
        hosts = [split_address(address) for address in self._addresses]
        return AsyncServiceInfo(
            self._service_type,
            self._instance,
            port=hosts[0][1] if hosts else 0,
            properties={b"v": TXT_VERSION, b"tag": self._tag.encode()},
            server=f"{self._instance.split('.')[0]}.local.",
            parsed_addresses=[host for host, _ in hosts],
        )

    def _interfaces(self) -> InterfaceChoice | list[str]:
        hosts = self._listen_hosts()
        return hosts or InterfaceChoice.All

    def _ip_version(self) -> IPVersion:
        hosts = self._listen_hosts()
        if not hosts:
            return IPVersion.All if socket.has_ipv6 else IPVersion.V4Only
        versions = {ipaddress.ip_address(host).version for host in hosts}
        if versions == {4}:
            return IPVersion.V4Only
        return IPVersion.V6Only if versions == {6} else IPVersion.All

    def _listen_hosts(self) -> list[str]:
        """The addresses to which `--listen` or `--interface` restrict discovery; empty if they do
        not."""
        hosts = [split_address(address)[0] for address in self._addresses]
        if self._interface:
            return hosts
        if not self._listen:
            return []
        name = listen_address(self._listen)[0]
        if name in ("", "0.0.0.0", "::"):
            return []
        if all(ipaddress.ip_address(host).is_loopback for host in hosts):
            return ["127.0.0.1"]
        return hosts

    def _changed(
        self,
        zeroconf: Zeroconf,
        service_type: str,
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        if name == self._instance:
            return
        if state_change is ServiceStateChange.Removed:
            for kept in (self._known, self._former, self._strangers):
                kept.pop(name, None)
            return
        self._look_at(zeroconf, name)

    def _look_at(self, zeroconf: Zeroconf, name: str) -> None:
        """Resolve `name` now, or later if it is being resolved or too many others are."""
        if name in self._looking or len(self._looking) >= bounds.MAX_HINTS_AT_ONCE:
            _keep(self._waiting, name, None)
            return
        task = asyncio.get_running_loop().create_task(self._look(zeroconf, name))
        self._looking[name] = task
        task.add_done_callback(lambda _done: self._looked(zeroconf, name))

    def _looked(self, zeroconf: Zeroconf, name: str) -> None:
        self._looking.pop(name, None)
        if self._waiting and self._zeroconf is not None:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._look_at(zeroconf, following)

    async def _look(self, zeroconf: Zeroconf, name: str) -> None:
        info = AsyncServiceInfo(self._service_type, name)
        try:
            answered = await info.async_request(zeroconf, bounds.HINT_RESOLVE_SECONDS * 1000)
        except Exception:  # malformed answers come from anybody on the network
            return
        if not answered or info.port is None or info.properties.get(b"v") != TXT_VERSION:
            return
        if info.properties.get(b"tag") != self._tag.encode():
            self._note_stranger(name)
            return
        self._strangers.pop(name, None)
        addresses = _usable(info.parsed_scoped_addresses(), info.port)
        if not addresses or self._known.get(name) == addresses:
            return
        _keep(self._known, name, addresses)
        self._found(addresses)

    def _note_stranger(self, name: str) -> None:
        """Log once that an agent of another cluster is nearby. An agent that had our tag is not
        reported: it has a newer token, or has not taken over ours yet."""
        if self._known.pop(name, None) is not None:
            _keep(self._former, name, None)
        _keep(self._strangers, name, None)
        ours = self._service_type != PAIRING_SERVICE  # codes of others are nobody's business
        if ours and name not in self._former and not self._warned:
            self._warned = True
            self._log(
                "an agent of another cluster or token is nearby; "
                "if it should be in this one, compare its token and --cluster"
            )


def _keep(kept: dict[str, T], name: str, value: T) -> None:
    """Put `name` into `kept`, removing the oldest entry if there are too many."""
    if name not in kept and len(kept) >= bounds.MAX_HINTS_KEPT:
        kept.pop(next(iter(kept)))
    kept[name] = value


def _usable(hosts: list[str], port: int) -> tuple[str, ...]:
    found: list[str] = []
    for host in hosts:
        address = join_address(host, port)
        with contextlib.suppress(UsageError, ValueError):
            split_address(address)
            if port and not ipaddress.ip_address(host).is_unspecified:
                found.append(address)
    return tuple(found[: limits.MAX_ADDRESSES])


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__
