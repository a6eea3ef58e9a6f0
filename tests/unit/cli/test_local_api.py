"""The local command socket: who may use it, what it answers, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.cli import main
from edgeagent.commands import changing
from edgeagent.commands import leave as leave_command
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local import api, state_dir
from edgeagent.local.api import (
    LocalApi,
    NoAgent,
    ask_for_link,
    ask_to_leave,
    choose_agent,
    fetch_change,
    fetch_status,
)
from edgeagent.local.changes import Ambiguous, ChangeStatus, NoSuchMember, TokenShown
from edgeagent.local.state_dir import RunningAgent, claim_state_dir
from edgeagent.transport.token import new_token
from tests.unit.cli.samples import sample_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.local.changes import ChangeState
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
        self.asked: list[tuple[object, ...]] = []
        self.answer: ChangeStatus | EdgeAgentError = change("done", step=120)
        self.closes = False  # in the middle of a change
        self.polls = 0
        self.lines: list[str] = []

    def status(self) -> Status:
        """Return a canned status."""
        return self._status

    def trace(self) -> Iterator[str]:
        """Return canned lines, until one that fails."""
        if not self.lines:
            raise EdgeAgentError("nothing is recorded yet")
        return (line if line else self._fail() for line in self.lines)

    def _fail(self) -> str:
        raise RuntimeError("a bug")

    async def leave(self) -> None:
        """Remember that it was asked."""
        self.left.set()

    def change_link(self, asked: str, wanted: bool) -> ChangeStatus:
        """Begin, unless the answer is an error."""
        return self._begin(("link", asked, wanted))

    def expel(self, asked: str) -> ChangeStatus:
        """Begin, unless the answer is an error."""
        return self._begin(("expel", asked))

    def rotate_token(self) -> ChangeStatus:
        """Begin, unless the answer is an error."""
        return self._begin(("token",))

    def show_token(self) -> TokenShown:
        """Return a canned token, unless the answer is an error."""
        if isinstance(self.answer, EdgeAgentError):
            raise self.answer
        return TokenShown(token="ea1-shown")

    def change(self, number: int) -> ChangeStatus | None:
        """The last answer comes after some others."""
        if number != 7 or not isinstance(self.answer, dict):
            return None
        self.polls += 1
        if self.closes:
            asyncio.get_running_loop().create_task(self.api.close())
        return self.answer if self.polls > 2 else change("pending", text="waiting for bob")

    def _begin(self, asked: tuple[object, ...]) -> ChangeStatus:
        self.asked.append(asked)
        if isinstance(self.answer, EdgeAgentError):
            raise self.answer
        return change("pending", text="waiting for bob")


def change(state: ChangeState, **values: Any) -> ChangeStatus:
    """Return how far a change is."""
    status = ChangeStatus(number=7, state=state, node="bob", text="", step=0, token="")
    return {**status, **values}  # type: ignore[typeddict-item]


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


def post(path: bytes, body: bytes) -> bytes:
    """Return the bytes of a request with this body."""
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body)) + body


@pytest.mark.parametrize(
    ("request_bytes", "first"),
    [
        (b"GET /leave HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 405"),
        (b"GET /secrets HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (post(b"/link", b"{}"), b"HTTP/1.1 400"),
        (post(b"/link", b"[" * 4000), b"HTTP/1.1 400"),
        (post(b"/link", b"x" * 5000), b"HTTP/1.1 413"),
        (post(b"/link", b'{"node": "bob", "wanted": "yes"}'), b"HTTP/1.1 400"),
        (post(b"/expel", b""), b"HTTP/1.1 400"),
        (post(b"/expel", b'{"node": ""}'), b"HTTP/1.1 400"),
        (b"GET /expel HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 405"),
        (b"GET /changes/8 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (b"GET /changes/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (
            b"GET /changes/9999999999 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 404",
        ),
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
            assert agent.asked == []
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


def run_beside_agent(
    home: Path,
    argv: list[str],
    answer: ChangeStatus | EdgeAgentError | None = None,
    *,
    asked: list[tuple[object, ...]] | None = None,
    closes: bool = False,
    lines: tuple[str, ...] = (),
) -> int:
    """Run a command beside an agent that goes when it is asked to, and gives `answer`."""

    async def body() -> int:
        claimed = claim_state_dir(str(home), "default", "alice")
        agent = FakeAgent(claimed.socket_path)
        agent.answer = answer or agent.answer
        agent.asked = asked if asked is not None else agent.asked
        agent.closes = closes
        agent.lines = list(lines)
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
    monkeypatch.setattr(changing, "POLL_S", 0.001)
    return short_path


def test_status_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_beside_agent(home, ["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sample_status()
    assert run_beside_agent(home, ["status", "--name", "alice"]) == 0
    assert "alice in cluster default: training" in capsys.readouterr().out
    assert run_beside_agent(home, ["status", "--name", "bob"]) == 1
    assert "running: alice" in capsys.readouterr().err


LINES = tuple(json.dumps({"number": k, "x": "y" * 1000}) + "\n" for k in range(500))


def test_trace_command(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("old" * 1_000_000)
    path.chmod(0o644)
    assert run_beside_agent(home, ["status", "--trace"], lines=LINES) == 0
    assert capsys.readouterr().out == "".join(LINES)
    assert run_beside_agent(home, ["status", "--trace", str(path)], lines=LINES) == 0
    assert path.read_text() == "".join(LINES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert capsys.readouterr().out == ""


def test_an_agent_that_records_nothing_costs_no_file(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    assert run_beside_agent(home, ["status", "--trace", str(path)]) == 1
    assert "nothing is recorded yet" in capsys.readouterr().err
    assert not path.exists()
    assert main(["status", "--trace", str(path)]) == 1
    assert not path.exists()


def test_a_trace_that_breaks_off_is_an_error(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["status", "--trace", str(tmp_path / "trace")]
    assert run_beside_agent(home, argv, lines=(*LINES[:100], "")) == 1
    assert "no agent answers" in capsys.readouterr().err


def test_a_trace_without_end_is_cut(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_TRACE_BYTES", 1000)
    assert run_beside_agent(home, ["status", "--trace"], lines=LINES) == 1
    assert "is too long" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--json", "--watch"])
def test_a_trace_is_no_status(capsys: pytest.CaptureFixture[str], other: str) -> None:
    assert main(["status", "--trace", "-", other]) == 2
    assert "--trace goes with neither" in capsys.readouterr().err


def test_leave_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_beside_agent(home, ["leave"]) == 0
    assert capsys.readouterr().out == "alice has left\n"
    assert state_dir.running_agents(str(home)) == ()


def test_changes_are_asked_for_and_followed(short_path: Path) -> None:
    async def main(path: str) -> None:
        agent = FakeAgent(path)
        await agent.api.start()
        try:
            begun = await asyncio.to_thread(ask_for_link, path, "bob \N{SNOWMAN}", True)
            assert begun == change("pending", text="waiting for bob")
            assert agent.asked == [("link", "bob \N{SNOWMAN}", True)]
            for state in ("pending", "pending", "done"):
                assert (await asyncio.to_thread(fetch_change, path, 7))["state"] == state
            with pytest.raises(EdgeAgentError, match="knows of no such change"):
                await asyncio.to_thread(fetch_change, path, 8)
        finally:
            await agent.api.close()

    asyncio.run(main(str(short_path / "s")))


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["link", "add", "bob"], ("link", "bob", True)),
        (["link", "remove", "b0b1", "--name", "alice"], ("link", "b0b1", False)),
    ],
)
def test_link_command(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], asked: tuple[object, ...]
) -> None:
    seen: list[tuple[object, ...]] = []
    assert run_beside_agent(home, argv, asked=seen) == 0
    assert seen == [asked]
    captured = capsys.readouterr()
    how = "added" if asked[2] else "removed"
    assert captured.out == f"link to bob {how}: in force since step 120\n"
    assert captured.err == ""


@pytest.mark.parametrize("argv", [["expel", "bob"], ["token", "rotate", "--name", "alice"]])
def test_the_new_token_is_alone_on_stdout(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    token = new_token()
    seen: list[tuple[object, ...]] = []
    answer = change("done", step=120, token=token)
    assert run_beside_agent(home, argv, answer, asked=seen) == 0
    assert seen == [("expel", "bob") if argv[0] == "expel" else ("token",)]
    captured = capsys.readouterr()
    assert captured.out == f"{token}\n"
    assert token not in captured.err
    assert "Devices that start from now on need it" in captured.err
    assert max(map(len, captured.err.splitlines())) <= 100
    out = "edgeagent: bob is expelled: the others train without it since step 120\n"
    assert captured.err.startswith(out) == (argv[0] == "expel")


def test_the_present_token_is_shown_with_a_warning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_beside_agent(home, ["token", "show"], change("done")) == 0
    captured = capsys.readouterr()
    assert captured.out == "ea1-shown\n"
    assert captured.err.startswith("edgeagent: warning: whoever sees this token (on stdout) can")
    refused = EdgeAgentError("this agent trains alone, without a token: there is none to show")
    assert run_beside_agent(home, ["token", "show", "--name", "alice"], refused) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"edgeagent: {refused}\n")


CHANGING = [
    ["link", "add", "bob"],
    ["link", "remove", "bob"],
    ["expel", "bob"],
    ["token", "rotate"],
]


@pytest.mark.parametrize("argv", CHANGING)
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (EdgeAgentError("this agent is not training yet (joining): ask again when it is"), 1),
        (NoSuchMember("no member is called 'bob'; members: alice"), 1),
        (Ambiguous("several members match 'bob', say which by its id: bob (a), bob (b)"), 2),
    ],
)
def test_a_refusal_is_one_line(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    answer: EdgeAgentError,
    status: int,
) -> None:
    assert run_beside_agent(home, argv, answer) == status
    captured = capsys.readouterr()
    assert captured.err == f"edgeagent: {answer}\n"
    assert captured.out == ""


@pytest.mark.parametrize("argv", CHANGING)
def test_a_late_refusal_and_an_agent_that_ends_are_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    refused = change("refused", text="that would cut the cluster in two")
    assert run_beside_agent(home, argv, refused) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "edgeagent: that would cut the cluster in two\n")
    assert run_beside_agent(home, argv, closes=True) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "edgeagent: alice ended before it was done\n")


def test_who_waits_longer_than_a_moment_is_told_for_what(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "MOMENT_S", 0.0)
    assert run_beside_agent(home, ["link", "add", "bob"]) == 0
    assert capsys.readouterr().err == "edgeagent: waiting for bob\n"
    monkeypatch.setattr(changing, "WAIT_S", 0.0)
    assert run_beside_agent(home, ["link", "add", "bob"]) == 1
    assert "alice has not answered within 0 s" in capsys.readouterr().err
