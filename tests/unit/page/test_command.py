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
from edgeagent.local.api import LocalApi
from edgeagent.local.state_dir import claim_state_dir
from tests.unit.cli.samples import sample_status
from tests.unit.page.fakes import FakeHandler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

URL = "http://127.0.0.1:1/#code"


async def _address() -> str:
    return URL


async def _refuse() -> str:
    raise EdgeAgentError("cannot serve the page: no port is left")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of agents whose path is short enough for sockets; nobody has a screen."""
    with TemporaryDirectory(prefix="ea-") as folder:
        monkeypatch.setenv("EDGEAGENT_HOME", folder)
        for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(variable, raising=False)
        yield Path(folder)


def run(home: Path, *argv: str, opens: Callable[[], Awaitable[str]] | None = _address) -> int:
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
