"""Who gets what from the server of the page, and that no reader or name can do harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from edgeagent.errors import EdgeAgentError
from edgeagent.local.changes import NoSuchMember
from edgeagent.page import live, server, site
from edgeagent.page.live import ENDED, MAX_QUEUE, MAX_VIEWERS, NOT_LET_IN
from tests.unit.page.fakes import HOSTILE, TOKEN, Served, hostile_status

WAIT_S = 30.0


class Client:
    """A browser that says whatever it is told to."""

    def __init__(self, served: Served, session: aiohttp.ClientSession) -> None:
        self.served = served
        self.session = session
        self.bearer = ""

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Ask as the page does, but for `headers`; return status, JSON or text, headers."""
        sent = {"Origin": self.served.address, "Authorization": f"Bearer {self.bearer}"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent |= headers
        kept = {name: value for name, value in sent.items() if value}
        url = self.served.address + path
        async with self.session.request(method, url, data=data, headers=kept) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text, answer.headers

    async def enter(self) -> None:
        """Exchange the code of a new address."""
        code = (await self.served.server.open()).url.partition("#")[2]
        status, said, _ = await self.ask("POST", "/session", {"code": code})
        assert status == 200, said
        self.bearer = said["bearer"]

    def live(self, **headers: str) -> Any:
        """Return the opening of a WebSocket."""
        sent = {"Origin": self.served.address} | headers
        kept = {name: value for name, value in sent.items() if value}
        return self.session.ws_connect(f"{self.served.address}/live", headers=kept, max_msg_size=0)

    async def watch(self) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket and say the bearer."""
        opened: aiohttp.ClientWebSocketResponse = await self.live()
        await opened.send_json({"bearer": self.bearer})
        return opened


@contextlib.asynccontextmanager
async def browsing(served: Served | None = None) -> AsyncIterator[Client]:
    """Serve a page, with a browser that is not let in yet."""
    async with served or Served() as running, aiohttp.ClientSession() as session:
        yield Client(running, session)


def run(body: Callable[[Client], Awaitable[None]], served: Served | None = None) -> None:
    """Run a test's body with a browser, within bounds."""

    async def main() -> None:
        async with browsing(served) as client:
            await asyncio.wait_for(body(client), WAIT_S)

    asyncio.run(main())


ACTS = (
    ("POST", "/leave", None),
    ("POST", "/link", {"node": "bob", "wanted": True}),
    ("POST", "/expel", {"node": "bob"}),
    ("GET", "/changes/7", None),
    ("GET", "/trace", None),
)


@pytest.mark.parametrize(("method", "path", "body"), ACTS)
def test_without_a_bearer_nothing_is_told_or_done(method: str, path: str, body: Any) -> None:
    async def test(client: Client) -> None:
        for authorization in ("", "Bearer ", "Bearer wrong", "Basic eA==", "Bearer " + "x" * 3000):
            status, said, _ = await client.ask(method, path, body, Authorization=authorization)
            assert (status, "edgeagent page" in said["error"]) == (401, True)
        await client.enter()
        status, said, _ = await client.ask(method, path, body, Authorization=client.bearer)
        assert status == 401  # the kind is missing
        assert client.served.handler.asked == []
        status, _, _ = await client.ask(method, path, body)
        assert status in (200, 202)

    run(test)


@pytest.mark.parametrize(("method", "path", "body"), [*ACTS, ("GET", "/", None)])
def test_another_host_is_refused(method: str, path: str, body: Any) -> None:
    """DNS rebinding: the user's browser believes that the page belongs to the other name."""

    async def test(client: Client) -> None:
        await client.enter()
        for host in ("evil.example", "evil.example:80", "localhost.evil.example"):
            for origin in (client.served.address, f"http://{host}"):
                status, _, _ = await client.ask(method, path, body, Host=host, Origin=origin)
                assert status == 403
        assert client.served.handler.asked == []

    run(test)


@pytest.mark.parametrize("origin", ["", "null", "http://evil.example", "http://localhost:1"])
def test_another_origin_can_change_nothing(origin: str) -> None:
    """CSRF: another page asks, even if it had the bearer."""

    async def test(client: Client) -> None:
        await client.enter()
        for method, path, body in ACTS[:3]:
            status, _, _ = await client.ask(method, path, body, Origin=origin)
            assert status == 403
        code = (await client.served.server.open()).url.partition("#")[2]
        status, _, _ = await client.ask("POST", "/session", {"code": code}, Origin=origin)
        assert status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.live(Origin=origin)
        assert client.served.handler.asked == []

    run(test)


def test_a_code_opens_one_page() -> None:
    async def test(client: Client) -> None:
        code = client.served.url.partition("#")[2]
        status, said, _ = await client.ask("POST", "/session", {"code": code})
        assert status == 200
        client.bearer = said["bearer"]
        opened = await client.watch()
        await opened.receive_json()
        status, said, _ = await client.ask("POST", "/session", {"code": code})
        assert (status, "used before" in said["error"]) == (403, True)
        client.served.observer.say("hurry")
        while (message := await opened.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert opened.close_code == NOT_LET_IN, message
        assert (await client.ask("POST", "/leave"))[0] == 401

    run(test)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{}", b'{"code": 1}', b"[" * 4000, b"\xff"])
def test_a_strange_code_is_refused(body: bytes) -> None:
    async def test(client: Client) -> None:
        assert (await client.ask("POST", "/session", body))[0] == 400
        assert (await client.ask("POST", "/session", b"x" * 5000))[0] == 413
        assert (await client.ask("GET", "/session"))[0] == 405
        assert (await client.ask("GET", "/nothing"))[0] == 401

    run(test)


def test_the_files_keep_the_browser_in() -> None:
    async def test(client: Client) -> None:
        for path in site.FILES:
            status, text, headers = await client.ask("GET", path, Origin="", Authorization="")
            assert status == 200
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "require-trusted-types-for 'script'" in policy
            assert f"ws://{client.served.address.removeprefix('http://')};" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "style="):
                assert bad not in text, (path, bad)
            assert "https://" not in text, path
        _, page, _ = await client.ask("GET", "/")
        assert page.count("<script") == page.count("<script type=") == 1

    run(test)


def test_a_page_sees_what_happens() -> None:
    async def test(client: Client) -> None:
        await client.enter()
        opened = await client.watch()
        first = await opened.receive_json()
        assert first["status"]["node"] == "alice"
        assert first["linked"] == ["bob", "carol"]
        assert first["times"][1] == {
            "name": "bob",
            "computing_ms": 32.5,
            "waiting_ms": 9.575,
            "transfer_ms": 2.425,
        }
        client.served.step(121, 0.5)
        client.served.observer.say("bob has joined")
        second = await opened.receive_json()
        assert [point[:2] for point in second["curve"]] == [[121, 0.5]]
        assert [line[2] for line in second["lines"]] == ["bob has joined"]
        await client.served.server.close()
        while (message := await opened.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, ENDED)

    run(test)


def test_changes_and_their_refusals() -> None:
    async def test(client: Client) -> None:
        await client.enter()
        status, said, _ = await client.ask("POST", "/expel", {"node": "bob"})
        assert (status, said["state"]) == (202, "pending")
        status, said, headers = await client.ask("GET", "/changes/7")
        assert (status, said["token"], headers["Cache-Control"]) == (200, TOKEN, "no-store")
        assert (await client.ask("GET", "/changes/8"))[0] == 404
        assert (await client.ask("POST", "/link", {"node": "bob"}))[0] == 400
        assert (await client.ask("POST", "/link", b"x" * 5000))[0] == 413
        handler = client.served.handler
        for refusal, expected in ((NoSuchMember("nobody"), 404), (EdgeAgentError("not now"), 409)):
            handler.refusal = refusal
            status, said, _ = await client.ask("POST", "/link", {"node": "bob", "wanted": False})
            assert (status, said["error"]) == (expected, str(refusal))
        status, text, headers = await client.ask("GET", "/trace")
        assert (status, text) == (200, '{"trace": 1}\n{}\n')
        assert "default-src 'none'" in headers["Content-Security-Policy"]

    run(test)


def test_names_are_cleaned_and_stay_text() -> None:
    async def test(client: Client) -> None:
        await client.enter()
        shown = await (await client.watch()).receive_json()
        assert [m["name"] for m in shown["status"]["members"]][1:] == [HOSTILE, "mal lory root"]
        assert shown["status"]["tree"]["parents"]["mal lory root"] == HOSTILE
        assert shown["reasons"] == ["rooted at alice", f"{HOSTILE} is slow"]

    run(test, Served(hostile_status()))


@pytest.mark.parametrize("said", ["", "{}", '{"bearer": "x"}', "[1]", '{"bearer": 1}', "[" * 400])
def test_a_socket_without_a_bearer_is_closed(said: str) -> None:
    async def test(client: Client) -> None:
        opened = await client.live()
        await opened.send_str(said)
        assert (await opened.receive()).type is aiohttp.WSMsgType.CLOSE
        assert opened.close_code == NOT_LET_IN

    run(test)


def test_a_socket_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HELLO_S", 0.05)

    async def test(client: Client) -> None:
        opened = await client.live()
        assert (await opened.receive()).type is aiohttp.WSMsgType.CLOSE
        assert opened.close_code == NOT_LET_IN

    run(test)


def test_sockets_are_bounded() -> None:
    async def test(client: Client) -> None:
        await client.enter()
        opened = [await client.watch() for _ in range(MAX_VIEWERS)]
        for each in opened:
            await each.receive_json()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await client.live()
        await opened[0].close()
        while True:  # the agent hears of it in its own time
            with contextlib.suppress(aiohttp.WSServerHandshakeError):
                await (await client.live()).close()
                break

    run(test)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(site, "KEEPALIVE_S", 2 * WAIT_S)  # else it is closed for idleness

    async def test(client: Client) -> None:
        port = int(client.served.address.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        for _, each in [*idle, (reader, writer)]:
            each.close()

    run(test)


def test_a_slow_reader_is_dropped_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LEAST_S", 0.001)
    monkeypatch.setattr(live, "EVERY_S", 0.002)
    monkeypatch.setattr(live, "SEND_S", 4 * WAIT_S)  # else it is dropped for its silence

    async def test(client: Client) -> None:
        await client.enter()
        large = client.served.handler.shown
        large["pending"] = [
            {"kind": "x" * 400, "node": "y" * 400, "phase": "z" * 400, "pull": None}
        ] * 32
        host, _, port = client.served.address.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            head = (
                f"GET /live HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {client.served.address}\r\n"
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            said = json.dumps({"bearer": client.bearer}).encode()
            frame = bytes([0x81, 0x80 | len(said)]) + bytes(4) + said  # masked with zeros
            await asyncio.to_thread(slow.sendall, head.encode() + frame)
            page = client.served.server._site
            assert page is not None
            viewers = page._live._viewers
            quick = await client.watch()
            await quick.receive_json()
            assert len(viewers) == 2
            while len(viewers) > 1:
                await quick.receive_json()
                assert all(viewer._queue.qsize() <= MAX_QUEUE for viewer in viewers)
            await quick.receive_json()

    run(test)


def test_a_failing_snapshot_ends_the_page_and_not_the_agent() -> None:
    async def test(client: Client) -> None:
        await client.enter()
        opened = await client.watch()
        await opened.receive_json()
        client.served.handler.shown = {}  # type: ignore[typeddict-item]  # as no agent says it
        client.served.observer.say("hurry")
        assert (await opened.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        lines = [text for _, _, text in client.served.server._history.lines]
        assert lines[-1].startswith("the page has failed: KeyError")

    run(test)


def test_nothing_listens_before_it_is_asked_for() -> None:
    async def test(client: Client) -> None:
        handler, folder = client.served.handler, client.served.folder.name
        unasked = server.PageServer(handler, client.served.observer, folder)
        assert unasked._server is None
        await unasked.close()
        before, after = await asyncio.gather(unasked.open(), unasked.open())
        assert before.url.partition("#")[0] == after.url.partition("#")[0]
        assert before != after
        with pytest.raises(EdgeAgentError, match="no address that others reach"):
            await unasked.open(remote=True)
        await unasked.close()
        await unasked.close()

    run(test)
