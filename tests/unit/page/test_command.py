"""`edgeagent page`: what it prints, and when it opens a browser."""

from __future__ import annotations

import asyncio
import os
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from edgeagent.cli import main
from edgeagent.commands.page import has_screen
from edgeagent.errors import EdgeAgentError
from edgeagent.local.api import LocalApi, OpenPage, PageAddress
from edgeagent.local.state_dir import claim_state_dir
from tests.unit.cli.samples import sample_status
from tests.unit.page.fakes import FakeHandler

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "http://127.0.0.1:1/#code"
FAR_URL, FINGERPRINT = "https://192.168.1.20:7440/#code", "AB:CD:EF"


async def _address(*, remote: bool) -> PageAddress:
    return PageAddress(FAR_URL, FINGERPRINT) if remote else PageAddress(URL)


async def _refuse(*, remote: bool) -> PageAddress:
    assert not remote
    raise EdgeAgentError("cannot serve the page: no port is left")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of agents whose path is short enough for sockets; nobody has a screen."""
    with TemporaryDirectory(prefix="ea-") as folder:
        monkeypatch.setenv("EDGEAGENT_HOME", folder)
        for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(variable, raising=False)
        yield Path(folder)


def run(home: Path, *argv: str, opens: OpenPage | None = _address) -> int:
    """Run the command beside an agent."""

    async def body() -> int:
        claimed = claim_state_dir(str(home), "default", "alice")
        api = LocalApi(claimed.socket_path, FakeHandler(sample_status()), opens)
        await api.start()
        try:
            return await asyncio.to_thread(main, ["page", *argv])
        finally:
            await api.close()
            claimed.release()

    return asyncio.run(body())


def test_the_address_is_printed_and_opened(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    assert run(home, "--no-open") == 0
    assert capsys.readouterr() == (URL + "\n", "")
    assert run(home) == 0
    assert "no browser was found" in capsys.readouterr().err
    assert opened == []
    monkeypatch.setitem(os.environ, "DISPLAY", ":0")
    assert run(home) == 0
    assert capsys.readouterr() == (URL + "\n", "")
    assert opened == [URL]


def test_for_a_browser_elsewhere_the_fingerprint_is_printed_and_none_opens_here(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _url: pytest.fail("a browser opens"))
    monkeypatch.setitem(os.environ, "DISPLAY", ":0")
    assert run(home, "--remote") == 0
    said = capsys.readouterr()
    assert said.out == FAR_URL + "\n"
    assert "go on only if its SHA-256 fingerprint is" in said.err
    assert FINGERPRINT in said.err


def test_why_there_is_no_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(home, opens=_refuse) == 1
    assert capsys.readouterr().err == "edgeagent: cannot serve the page: no port is left\n"
    assert run(home, opens=None) == 1
    assert "has no page" in capsys.readouterr().err
    assert main(["page"]) == 1
    assert "no agent runs on this device" in capsys.readouterr().err


def test_where_a_window_can_open() -> None:
    assert not has_screen({}, "linux")
    assert has_screen({"DISPLAY": ":0"}, "linux")
    assert has_screen({"WAYLAND_DISPLAY": "wayland-0"}, "linux")
    assert has_screen({}, "darwin")
