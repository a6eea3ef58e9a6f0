"""Finds an agent of a cluster and asks it for the recipe of the job, once.

The agents are found by multicast DNS, or named. Who is asked, and this device, prove the cluster's
token to each other first; nobody is admitted to anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from edgeagent.errors import EdgeAgentError
from edgeagent.transport import bounds
from edgeagent.transport.api import PeerInfo
from edgeagent.transport.discovery import Discovery
from edgeagent.transport.identity import renew_identity
from edgeagent.transport.join_client import ask_recipe
from edgeagent.transport.join_streams import JoinSecret
from edgeagent.transport.token import discovery_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeagent.recipe import Recipe


class Told(NamedTuple):
    """A recipe, the name of the device that has told it, and where that was."""

    recipe: Recipe
    name: str
    address: str


async def find_recipe(
    token: bytes, cluster: str, name: str, addresses: Sequence[str], *, mdns: bool
) -> Told:
    """Return the recipe of the first agent of `cluster` that tells one: of those at `addresses`
    (HOST:PORT), or with `mdns` of those that are announced within `RECIPE_FIND_SECONDS`.

    `token` has `TOKEN_BYTES` bytes. `name` is that of this device. Raises `EdgeAgentError`: the
    reason of the last one that was asked, or that there is none.
    """
    secret = JoinSecret(token, cluster)
    found: asyncio.Queue[tuple[str, ...]] = asyncio.Queue(bounds.MAX_HINTS_AT_ONCE)
    trouble: list[str] = []

    def note(where: tuple[str, ...]) -> None:
        if not found.full():
            found.put_nowait(where)

    with tempfile.TemporaryDirectory() as folder:  # a key of its own, which nobody knows later
        identity = renew_identity(folder)
        me = PeerInfo(identity.node, 0, name, (), identity.certificate)
        last: EdgeAgentError | None = None
        for address in addresses:
            try:
                return await _told(address, me, secret)
            except EdgeAgentError as error:
                last = error
        if not mdns:
            raise last or EdgeAgentError("no address of an agent to ask is known")
        discovery = Discovery(discovery_tag(token, cluster), (), note, trouble.append)
        if not await discovery.start():
            raise EdgeAgentError(trouble[-1])
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(bounds.RECIPE_FIND_SECONDS):
                    while True:
                        for address in await found.get():
                            try:
                                return await _told(address, me, secret)
                            except EdgeAgentError as error:
                                last = error
        finally:
            await discovery.stop()
    raise last or EdgeAgentError(f"no agent of cluster {cluster!r} was found")


async def _told(address: str, me: PeerInfo, secret: JoinSecret) -> Told:
    standing, recipe = await ask_recipe(address, me, secret)
    if recipe is None:
        raise EdgeAgentError(
            f"{standing.me.name} at {address} does not tell its job: it was started without "
            "`edgeagent run`, or its script is too long"
        )
    return Told(recipe, standing.me.name, address)
