"""The local command socket: who may, what it answers, what is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeagent.cli import main
from edgeagent.commands import leave as leave_command
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local import state_dir
from edgeagent.local.api import LocalApi, NoAgent, ask_to_leave, choose_agent, fetch_status
from edgeagent.local.state_dir import RunningAgent, claim_state_dir
from tests.unit.cli.samples import sample_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.local.status_model import Status


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for a Unix socket."""
    folder = tempfile.mkdtemp(prefix="ea-")
    yield Path(folder)
    shutil.rmtree(folder)


class FakeAgent:
    """A handler that closes its interface when it is asked to leave."""

    def __init__(self, path: str, status: Status | None = None) -> None:
        self.api = LocalApi(path, self)
        self.left = asyncio.Event()
        self._status = status or sample_status()

    def status(self) -> Status:
        """Return a canned status."""
        return self._status

    async def leave(self) -> None:
        """Remember that it was asked."""
        self.left.set()


async def status_and_leave(path: str) -> None:
    """Serve, ask, be asked to leave, close."""
    agent = FakeAgent(path)
    await agent.api.start()
    try:
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert await asyncio.to_thread(fetch_status, path) == sample_status()
        assert not agent.left.is_set()
        await asyncio.to_thread(ask_to_leave, path)
        assert agent.left.is_set()
    finally:
        await agent.api.close()
    await agent.api.close()
    assert not os.path.exists(path)
    with pytest.raises(NoAgent, match="no agent answers"):
        await asyncio.to_thread(fetch_status, path)


def test_status_and_leave(short_path: Path) -> None:
    asyncio.run(status_and_leave(str(short_path / "s")))


def test_a_loss_that_is_no_number_is_null(short_path: Path) -> None:
    async def main(path: str) -> None:
        agent = FakeAgent(path, sample_status() | {"loss": float("nan")})
        await agent.api.start()
        try:
            assert (await asyncio.to_thread(fetch_status, path))["loss"] is None
        finally:
            await agent.api.close()

    asyncio.run(main(str(short_path / "s")))


def test_a_stale_socket_is_replaced(short_path: Path) -> None:
    path = str(short_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert os.path.exists(path)
    asyncio.run(status_and_leave(path))


def test_a_living_agents_socket_is_not_taken(short_path: Path) -> None:
    path = str(short_path / "s")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(EdgeAgentError, match="another agent listens"):
            asyncio.run(FakeAgent(path).api.start())


def test_a_file_in_the_way_is_kept(short_path: Path) -> None:
    path = short_path / "s"
    path.write_text("precious")
    with pytest.raises(EdgeAgentError, match="is no socket"):
        asyncio.run(FakeAgent(str(path)).api.start())
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket(short_path: Path) -> None:
    with pytest.raises(UsageError, match="EDGEAGENT_HOME"):
        asyncio.run(FakeAgent(str(short_path / ("x" * 120))).api.start())


def test_a_folder_that_is_not_there(short_path: Path) -> None:
    with pytest.raises(EdgeAgentError, match="cannot listen"):
        asyncio.run(FakeAgent(str(short_path / "no" / "s")).api.start())


def test_closing_leaves_a_successors_socket_alone(short_path: Path) -> None:
    path = str(short_path / "s")

    async def body() -> None:
        agent = FakeAgent(path)
        await agent.api.start()
        os.rename(path, path + ".old")  # keeps the inode in use
        Path(path).touch()
        await agent.api.close()

    asyncio.run(body())
    assert os.path.exists(path)


def raw_request(path: str, data: bytes) -> bytes:
    """Send raw bytes, return the answer until end-of-file."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(path)
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while chunk := client.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    ("request_bytes", "first"),
    [
        (b"GET /leave HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 405"),
        (b"GET /secrets HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (b"\x00\xff" * 50 + b"\r\n\r\n", b"HTTP/1.0 400"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.0 400"),
    ],
)
def test_bad_requests_do_no_harm(short_path: Path, request_bytes: bytes, first: bytes) -> None:
    path = str(short_path / "s")

    async def body() -> bytes:
        agent = FakeAgent(path)
        await agent.api.start()
        try:
            answer = await asyncio.to_thread(raw_request, path, request_bytes)
            assert await asyncio.to_thread(fetch_status, path) == sample_status()
            assert not agent.left.is_set()
            return answer
        finally:
            await agent.api.close()

    answer = asyncio.run(body())
    assert answer.startswith(first) or answer == b""


def serve_once(path: str, answer: bytes) -> bytes:
    """Answer one connection on `path` with raw bytes; return the error the client reports."""

    async def body() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(serve, path)
        async with server:
            with pytest.raises(EdgeAgentError) as caught:
                await asyncio.to_thread(fetch_status, path)
        return str(caught.value)

    return asyncio.run(body()).encode()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 500 Oh no\r\nContent-Length: 0\r\n\r\n", b"answered 500 Oh no"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{]}", b"is no edgeagent agent"),
        (b"SSH-2.0-hello\r\n\r\n", b"no agent answers"),
        (b"", b"no agent answers"),
    ],
)
def test_the_client_survives_strange_answers(
    short_path: Path, answer: bytes, expected: bytes
) -> None:
    assert expected in serve_once(str(short_path / "s"), answer)


def agents(*names: str) -> list[RunningAgent]:
    """Return running agents called `cluster/name`."""
    found = []
    for slot, name in enumerate(names, 1):
        cluster, _, own = name.partition("/")
        found.append(RunningAgent(cluster, own, slot, 1, f"{name}.sock"))
    return found


def test_the_only_agent_needs_no_name() -> None:
    assert choose_agent(agents("c/alice"), None).name == "alice"


def test_several_agents_need_a_name() -> None:
    both = agents("c/alice", "c/bob")
    with pytest.raises(UsageError, match="say which with --name: alice, bob"):
        choose_agent(both, None)
    assert choose_agent(both, "bob").socket_path == "c/bob.sock"
    with pytest.raises(NoAgent, match="no agent called 'carol' runs on this device; running: al"):
        choose_agent(both, "carol")
    with pytest.raises(NoAgent, match="edgeagent run JOB"):
        choose_agent([], None)


def test_equal_names_are_told_apart_by_their_cluster() -> None:
    both = agents("c/alice", "d/alice")
    with pytest.raises(UsageError, match="c/alice, d/alice"):
        choose_agent(both, "alice")
    assert choose_agent(both, "d/alice").cluster == "d"


def run_beside_agent(home: Path, argv: list[str]) -> int:
    """Run a command beside an agent that goes when it is asked to."""

    async def body() -> int:
        claimed = claim_state_dir(str(home), "default", "alice")
        agent = FakeAgent(claimed.socket_path)
        await agent.api.start()

        async def go() -> None:
            await agent.left.wait()
            await agent.api.close()

        going = asyncio.create_task(go())
        try:
            return await asyncio.to_thread(main, argv)
        finally:
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
            await agent.api.close()
            claimed.release()

    return asyncio.run(body())


@pytest.fixture
def home(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands look for agents."""
    monkeypatch.setenv("EDGEAGENT_HOME", str(short_path))
    monkeypatch.setattr(leave_command, "POLL_S", 0.001)
    return short_path


def test_status_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_beside_agent(home, ["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sample_status()
    assert run_beside_agent(home, ["status", "--name", "alice"]) == 0
    assert "alice in cluster default: training" in capsys.readouterr().out
    assert run_beside_agent(home, ["status", "--name", "bob"]) == 1
    assert "running: alice" in capsys.readouterr().err


def test_leave_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_beside_agent(home, ["leave"]) == 0
    assert capsys.readouterr().out == "alice has left\n"
    assert state_dir.running_agents(str(home)) == ()
