"""Looks at this device: interfaces, ports, disk, memory, and torch in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from edgeagent.doctor.facts import Folder, Networks, TorchFact
from edgeagent.errors import UsageError
from edgeagent.launch import DEVICE_CHECK_S, how_it_ended, module_command, package_environment
from edgeagent.own_files import check_own
from edgeagent.terminal.text import clean
from edgeagent.transport.interface_ranking import ranked
from edgeagent.transport.interfaces import preferred_hosts, read_interfaces

if TYPE_CHECKING:
    from collections.abc import Mapping


def look_at_networks(only: str) -> Networks:
    """Return the interfaces; `only` is the value of `--interface`, "" for all of them."""
    interfaces, default = read_interfaces(), preferred_hosts()
    kept = tuple(one for one in interfaces if only in ("", one.name))
    order = tuple((interface.name, host) for interface, host in ranked(kept, default))
    return Networks(interfaces, order, default, only)


def look_at_folder(path: str, use: str, *, is_secret: bool = False) -> Folder:
    """Return how much room there is in a folder, or in the one in which it would be made.
    `is_secret`: keys are kept there, so it has to be this user's own."""
    place = os.path.abspath(path)
    while not os.path.exists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    problem = "" if os.access(place, os.W_OK | os.X_OK) else "it cannot be written to"
    if is_secret and os.path.exists(path):
        try:
            check_own(path)
        except UsageError as error:
            problem = str(error)
    try:
        free: int | None = shutil.disk_usage(place).free
    except OSError:
        free = None
    return Folder(path, use, free, problem)


async def look_at_torch(environment: Mapping[str, str]) -> TorchFact:
    """Return what torch says of itself; this takes seconds."""
    try:
        process = await asyncio.create_subprocess_exec(
            *module_command("edgeagent.trainer.torch_facts"),
            env=package_environment(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return TorchFact(problem=f"{sys.executable} cannot be started: {error.strerror}")
    try:
        async with asyncio.timeout(DEVICE_CHECK_S):
            said, complained = await process.communicate()
    except TimeoutError:
        return TorchFact(problem=f"importing torch takes more than {DEVICE_CHECK_S:.0f} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        values = json.loads(said.decode().splitlines()[-1])
        return TorchFact(str(values["version"]), tuple(map(str, values["devices"])))
    except (ValueError, LookupError, TypeError):
        lines = complained.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else how_it_ended(process.returncode or 0)
        return TorchFact(problem=f"{sys.executable} cannot import torch: {clean(reason)}")
