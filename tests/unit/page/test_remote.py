"""The page for browsers of other devices: by TLS, at one address, with a certificate that stays."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.page import certificate, remote
from edgeagent.page.certificate import FILE_NAME, page_certificate
from edgeagent.page.live import ENDED
from tests.unit.page.fakes import Served
from tests.unit.page.test_server import ACTS, Client

WAIT_S = 30.0


def run(body: Any) -> None:
    """Run a test's body with a browser elsewhere, which trusts what was printed and no more."""

    async def main() -> None:
        async with Served(remote=True) as served:
            digest = bytes.fromhex(served.fingerprint.replace(":", ""))
            connector = aiohttp.TCPConnector(ssl=aiohttp.Fingerprint(digest))
            async with aiohttp.ClientSession(connector=connector) as session:
                await asyncio.wait_for(body(Client(served, session)), WAIT_S)

    asyncio.run(main())


async def enter(client: Client) -> None:
    """Exchange the code of the address that was printed."""
    code = client.served.url.partition("#")[2]
    status, said, _ = await client.ask("POST", "/session", {"code": code})
    assert status == 200, said
    client.bearer = said["bearer"]


def test_a_browser_elsewhere_sees_the_page_and_can_act() -> None:
    async def test(client: Client) -> None:
        assert client.served.address.startswith("https://127.0.0.1:")
        status, text, headers = await client.ask("GET", "/")
        assert (status, "<title>" in text) == (200, True)
        where = client.served.address.removeprefix("https://")
        assert f"connect-src 'self' wss://{where};" in headers["Content-Security-Policy"]
        for method, path, body in ACTS:
            assert (await client.ask(method, path, body))[0] == 401
        await enter(client)
        opened = await client.watch()
        assert (await opened.receive_json())["status"]["node"] == "alice"
        client.served.observer.say("bob has joined")
        lines: list[str] = []
        while "bob has joined" not in lines:
            lines = [line[2] for line in (await opened.receive_json())["lines"]]
        for method, path, body in ACTS:
            assert (await client.ask(method, path, body))[0] in (200, 202)
        await client.served.server.close()
        while (message := await opened.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, ENDED)

    run(test)


def test_other_names_and_origins_are_refused() -> None:
    async def test(client: Client) -> None:
        await enter(client)
        own = client.served.address
        port = own.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", f"localhost:{port}", "127.0.0.1:1"):
            for origin in (own, f"https://{host}"):
                for method, path, body in (*ACTS, ("GET", "/", None)):
                    said = await client.ask(method, path, body, Host=host, Origin=origin)
                    assert said[0] == 403
        for origin in ("", "null", "https://evil.example", own.replace("https", "http")):
            for method, path, body in ACTS[:3]:
                assert (await client.ask(method, path, body, Origin=origin))[0] == 403
        assert client.served.handler.asked == []

    run(test)


def test_strangers_do_not_keep_out_who_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_UNKNOWN", 4)

    async def test(client: Client) -> None:
        await enter(client)
        opened = await client.watch()
        await opened.receive_json()
        port = int(client.served.address.rpartition(":")[2])
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        late = await asyncio.open_connection("127.0.0.1", port)
        assert await strangers[0][0].read() == b""  # the oldest has to go
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        greeted = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert await strangers[1][0].read() == b""
        assert (await client.ask("POST", "/leave"))[0] == 202
        client.served.observer.say("hurry")
        await opened.receive_json()
        for _, writer in (*strangers, late, greeted):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    run(test)


def test_who_speaks_no_tls_gets_nothing() -> None:
    async def test(client: Client) -> None:
        port = int(client.served.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await reader.read()
        writer.close()

    run(test)


def test_it_moves_with_the_device_and_says_if_there_is_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(client: Client) -> None:
        served = client.served
        first = served.address
        again = await served.server.open(remote=True)
        assert again.url.startswith(first)
        assert again.fingerprint == served.fingerprint
        served.host = "127.0.0.2"
        moved = await served.server.open(remote=True)
        assert moved.url.startswith("https://127.0.0.2:")
        assert moved.fingerprint != served.fingerprint
        with pytest.raises(aiohttp.ClientError):
            await client.ask("GET", "/")
        served.host = ""
        with pytest.raises(EdgeAgentError, match="no address that others reach"):
            await served.server.open(remote=True)
        served.host = "192.0.2.1"  # of nobody
        with pytest.raises(EdgeAgentError, match="cannot serve the page at 192"):
            await served.server.open(remote=True)

        def unknown() -> str:
            raise OSError("no list of addresses")

        monkeypatch.setattr(served.server, "_where", unknown)
        with pytest.raises(EdgeAgentError, match="no list of addresses"):
            await served.server.open(remote=True)

    run(test)


def read(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / FILE_NAME).read_bytes())


def test_the_certificate_stays_as_long_as_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = page_certificate(str(tmp_path), "192.168.1.20")
    assert first == page_certificate(str(tmp_path), "192.168.1.20")
    assert os.stat(first.path).st_mode & 0o777 == 0o600
    digest = read(tmp_path).fingerprint(hashes.SHA256()).hex().upper()
    assert first.fingerprint.replace(":", "") == digest
    other = page_certificate(str(tmp_path), "fd00::7")
    assert other.fingerprint != first.fingerprint
    names = read(tmp_path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["fd00::7"]
    monkeypatch.setattr(certificate, "_LEFT", datetime.timedelta(days=400))
    assert page_certificate(str(tmp_path), "fd00::7") != other
    monkeypatch.undo()
    for damaged in (b"", b"no certificate", (tmp_path / FILE_NAME).read_bytes()[:300]):
        (tmp_path / FILE_NAME).write_bytes(damaged)
        found = page_certificate(str(tmp_path), "fd00::7")
        assert found == page_certificate(str(tmp_path), "fd00::7")
    with pytest.raises(UsageError, match="cannot write"):
        page_certificate(str(tmp_path / "nowhere"), "fd00::7")
