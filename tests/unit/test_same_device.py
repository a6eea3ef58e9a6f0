"""What a trainer is told about other agents of its device."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from edgeagent import same_device
from edgeagent.handover import AgentsHere
from edgeagent.local import state_dir
from edgeagent.local.state_dir import claim_state_dir
from edgeagent.same_device import watch_same_device

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_trainer_is_told_when_agents_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_device, "POLL_SECONDS", 0.01)
    root, told = str(tmp_path), list[Any]()
    link = cast("Any", SimpleNamespace(send=told.append))

    async def becomes(length: int) -> None:
        for _ in range(1000):
            if len(told) >= length:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # both of two that come have been seen now

    async def life() -> None:
        mine = claim_state_dir(root, "lab", "ada")
        watching = asyncio.create_task(watch_same_device(root, link))
        await asyncio.sleep(0.05)
        assert told == []  # alone, as the trainer takes it to be
        others = [claim_state_dir(root, cluster, "bob") for cluster in ("lab", "home")]
        with monkeypatch.context() as elsewhere:  # homes may be shared by several machines
            elsewhere.setattr(state_dir, "this_machine", lambda: "another machine")
            others.append(claim_state_dir(root, "lab", "eve"))
        await becomes(1)
        assert told[-1] == AgentsHere(3)
        before = len(told)
        for other in others:
            other.release()
        await becomes(before + 1)
        assert told[-1] == AgentsHere(1)
        watching.cancel()
        mine.release()

    asyncio.run(life())
