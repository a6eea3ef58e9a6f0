"""A Chromium without a window, steered over its debugging port: pages opened, read and clicked.

    with Browser(tmp_path) as browser:
        browser.open(url)
        browser.wait("document.querySelector('#main') && !document.querySelector('#main').hidden")
        browser.click("#quit")

`found()` returns the program, "" where none is installed. Nothing else is needed: the protocol is
JSON over a WebSocket, which aiohttp speaks.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.scenarios.processes import kill_session

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_S = 60.0  # as for agents: the machine may be busy
POLL_S = 0.05
OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def found() -> str:
    """Return the path of a Chromium, "" if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


class Browser:
    """One browser with one tab. All waits are bounded."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 900) -> None:
        self._profile = folder / "browser"
        self._size = (width, height)
        self._loop = asyncio.new_event_loop()
        self._count = 0
        self.errors: list[str] = []  # what the page wrote to its console as an error, or raised
        self.requests: list[str] = []  # addresses that it asked for

    def __enter__(self) -> Browser:
        command = [found(), *OPTIONS, f"--user-data-dir={self._profile}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # its sandbox refuses to run as root
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self._loop.run_until_complete(self._connect())
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
            self.resize(*self._size)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if hasattr(self, "_session"):
            self._loop.run_until_complete(self._session.close())
        self._process.send_signal(signal.SIGTERM)
        kill_session(self._process.pid)
        self._process.wait()
        self._loop.close()

    def trust_all(self) -> None:
        """Go on where the certificate is one that nobody vouches for, as a user may."""
        self.send("Security.enable")
        self.send("Security.setIgnoreCertificateErrors", ignore=True)

    def fingerprint(self, origin: str) -> str:
        """Return the SHA-256 of the certificate that `origin` has shown, as it is printed."""
        shown = self.send("Network.getCertificate", origin=origin)["tableNames"][0]
        return hashlib.sha256(base64.b64decode(shown)).digest().hex(":").upper()

    async def _connect(self) -> None:
        port_file = self._profile / "DevToolsActivePort"
        end = time.monotonic() + WAIT_S
        while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
            assert self._process.poll() is None, "the browser ended"
            assert time.monotonic() < end, "the browser does not start"
            await asyncio.sleep(POLL_S)
        port = port_file.read_text().splitlines()[0]
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
            tabs = await answer.json()
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self._socket = await self._session.ws_connect(address, max_msg_size=64 << 20)

    def send(self, method: str, **values: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        return self._loop.run_until_complete(self._send(method, values))

    async def _send(self, method: str, values: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": values})
        while True:
            said = json.loads(await asyncio.wait_for(self._socket.receive_str(), WAIT_S))
            if said.get("id") == self._count:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        values = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif said.get("method") == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])
        elif said.get("method") == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif said.get("method") == "Network.webSocketCreated":
            self.requests.append(values["url"])

    # --- what a user does -------------------------------------------------------------------------

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Give the tab this size, in pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def prefer(self, **features: str) -> None:
        """Set what the user prefers, such as `prefers_color_scheme="dark"`."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.send("Emulation.setEmulatedMedia", features=named)

    def open(self, url: str) -> None:
        """Open an address. The load need not be done when this returns."""
        self.send("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of an expression, awaited if it is a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true. What it raises, as it does while the
        page is being loaded, means not yet."""
        careful = (
            f"(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        )
        end = time.monotonic() + WAIT_S
        while not self.evaluate(careful):
            shown = "document.body.innerText.slice(0, 3000)"
            assert time.monotonic() < end, f"{expression}: {self.evaluate(shown)} {self.errors}"
            time.sleep(POLL_S)

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Click on an element, where it is."""
        quoted = json.dumps(selector)
        where = self.evaluate(
            f"(() => {{ const e = document.querySelector({quoted}); e.scrollIntoView();"
            " const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=where[0],
                y=where[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str, code: int) -> None:
        """Press a key, by its name and its number in Windows."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save what the tab shows, or the whole page, as PNG."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
