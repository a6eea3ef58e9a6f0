"""Shared memory passes between two owners and shows each the other's writes."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace

import numpy as np
import pytest

from edgeagent.errors import AgentLost, EdgeAgentError
from edgeagent.handover import HANDOVER_VERSION, Hello
from edgeagent.shared_memory import (
    attach_shared_memory,
    create_shared_memory,
    mapped_bytes,
    receive_descriptors,
    region_sizes,
    send_descriptors,
    wait_for_descriptors,
)

HELLO = Hello(HANDOVER_VERSION, 1, (), 100, (), "float32", 48, 16, 4, 8, 0, 0, b"")


def test_both_ends_see_the_same_memory() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        trainer = create_shared_memory(HELLO.state_bytes, HELLO.elements, HELLO.accumulate)
        send_descriptors(ours, trainer)
        ours.sendall(b"frame")
        agent = attach_shared_memory(HELLO, receive_descriptors(theirs))
        assert theirs.recv(100) == b"frame"
    trainer.close_descriptors()
    agent.close_descriptors()
    agent.close_descriptors()
    assert [len(region.view()) for region in agent.regions()] == [100, *[192] * 4, 64, 0, 0]
    trainer.contribution.array("float32")[:] = np.arange(48)
    agent.reduced[1].array("float32")[5] = 7.0
    agent.state.view()[99] = 9
    assert agent.contribution.array("float32")[47] == 47.0
    assert trainer.reduced[1].array("float32")[5] == 7.0
    assert trainer.state.view()[99] == 9
    assert bytes(trainer.reduced[0].view()) == bytes(192)


def test_no_elements_still_maps_a_page() -> None:
    memory = create_shared_memory(0, 0, "float64")
    assert mapped_bytes(0) == mapped_bytes(1) == mapped_bytes(4096)
    assert memory.state.array("float64").size == 0
    assert len(memory.contribution.view()) == 0
    memory.close_descriptors()


def test_memory_is_given_back() -> None:
    memory = create_shared_memory(0, 5 * 1024, "float32")
    region = memory.replay
    region.array("float32")[:] = 1.0
    region.release(4, 3 * 4096 - 4)  # of which the second page is whole
    assert [region.array("float32")[at] for at in (1023, 1024, 2047, 2048)] == [1, 0, 0, 1]
    region.release()
    assert not region.array("float32").any()
    memory.close_descriptors()


def test_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    memory = create_shared_memory(10, 4, "float32")
    memory.state.view()[:] = b"0123456789"
    assert bytes(os.pread(memory.state.descriptor, 10, 0)) == b"0123456789"
    memory.close_descriptors()


def test_not_enough_memory_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(EdgeAgentError, match=r"cannot reserve 1\.0 MB"):
        create_shared_memory(1 << 20, 4, "float32")


@pytest.mark.parametrize(
    ("size", "elements", "dtype"), [(-1, 1, "float32"), (1, -1, "float32"), (1, 1, "int8")]
)
def test_impossible_layouts(size: int, elements: int, dtype: str) -> None:
    with pytest.raises(EdgeAgentError):
        region_sizes(size, elements, dtype)


def test_too_small_or_too_few() -> None:
    memory = create_shared_memory(10, 4, "float32")
    descriptors = [os.dup(region.descriptor) for region in memory.regions()]
    with pytest.raises(EdgeAgentError, match="smaller"):
        attach_shared_memory(replace(HELLO, state_bytes=1 << 20), descriptors)
    with pytest.raises(EdgeAgentError, match="did not pass"):
        attach_shared_memory(HELLO, descriptors[:2])
    for descriptor in descriptors:
        os.close(descriptor)
    memory.close_descriptors()


def test_something_else_on_the_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hello")
        with pytest.raises(EdgeAgentError):
            receive_descriptors(theirs)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(EOFError):
            receive_descriptors(theirs)
    memory = create_shared_memory(1, 1, "float32")
    with pytest.raises(AgentLost):
        send_descriptors(ours, memory)
    memory.close_descriptors()


def test_waiting_without_holding_the_loop() -> None:
    async def main() -> tuple[int, ...]:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with ours, theirs:
            task = asyncio.create_task(wait_for_descriptors(theirs))
            await asyncio.sleep(0)
            memory = create_shared_memory(10, 4, "float32")
            send_descriptors(ours, memory)
            memory.close_descriptors()
            return await task

    for descriptor in asyncio.run(main()):
        assert os.fstat(descriptor).st_size == mapped_bytes(10)
        os.close(descriptor)
