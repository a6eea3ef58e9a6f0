"""The page of an agent in a real browser: what it shows, what its buttons do, what it refuses.

Skipped where there is no Chromium (Debian: chromium).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.scenarios.browser import Browser, found
from tests.scenarios.cluster import SMALL, Cluster
from tests.unit.page.fakes import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not found(), reason="no Chromium is installed (Debian: chromium)")

SHOWN = "!document.querySelector('#main').hidden"
PHONE = (360, 740)
WIDE = (1200, 900)


def test_a_cluster_seen_and_left_in_the_browser(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster, Browser(tmp_path) as browser:
        alice, bob = cluster.together("alice", "bob")
        bob.wait_steps(3)
        opened = cluster.command("page", "--no-open", "--name", "bob")
        assert (opened.returncode, opened.stderr) == (0, "")
        browser.open(opened.stdout.strip())
        browser.wait(SHOWN)
        assert browser.evaluate("location.hash") == ""
        assert "alice" in browser.text("#members")
        assert "bob" in browser.text("#picture")
        browser.wait("document.querySelector('#loss path')")

        browser.click("[aria-label='Remove link to alice']")
        assert "Remove the link to alice?" in browser.text("#dialog")
        browser.click("#dialog-yes")
        browser.wait("document.querySelector('#toasts [role=alert]')")  # they would be two parts

        browser.click("#quit")
        browser.press("Escape", 27)
        assert bob.running
        browser.click("#quit")
        browser.click("#dialog-yes")
        assert bob.wait_exit() == 0
        browser.wait("document.querySelector('#connection').dataset.state === 'ended'")
        assert alice.wait("member_left", node="bob")["reason"] == "leave"

        own = opened.stdout.partition("/#")[0]
        schemes = (own, own.replace("http", "ws", 1))
        assert all(address.startswith(schemes) for address in browser.requests)
        expected = [error for error in browser.errors if "409" not in error]
        assert expected == []


def findings(browser: Browser) -> list[str]:
    """Return what keeps somebody out of what is shown now, as axe finds it."""
    pytest.importorskip("axe_core_python")
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    browser.send("Page.setBypassCSP", enabled=True)  # axe itself reads text as HTML
    browser.evaluate(axe + "; true")
    found = browser.evaluate(
        "axe.run().then(r => r.violations.map(v => `${v.id}: ${v.nodes[0].html}`))"
    )
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        (WIDE, "light"),
        (PHONE, "dark"),
        pytest.param(WIDE, "dark", marks=pytest.mark.long),
        pytest.param(PHONE, "light", marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing(tmp_path: Path, size: tuple[int, int], scheme: str) -> None:
    with hostile() as url, Browser(tmp_path, *size) as browser:
        browser.resize(*size, phone=size == PHONE)
        browser.prefer(prefers_color_scheme=scheme)
        browser.open(url)
        browser.wait(SHOWN)
        browser.wait("document.querySelector('#joins ul li')")
        assert findings(browser) == []
        browser.evaluate("document.querySelector('[aria-label^=Expel]:not([hidden])').click()")
        browser.wait("document.querySelector('#dialog').open")
        assert findings(browser) == []
        browser.evaluate("document.querySelector('#dialog').append(document.createElement('img'))")
        assert findings(browser) == ["image-alt: <img>"]  # so it does look


def test_a_browser_elsewhere(tmp_path: Path) -> None:
    with Cluster(tmp_path, job=SMALL) as cluster, Browser(tmp_path, *PHONE) as browser:
        alice, bob = cluster.together("alice", "bob")
        bob.wait_steps(3)
        opened = cluster.command("page", "--remote", "--name", "bob")
        assert opened.returncode == 0
        url = opened.stdout.strip()
        origin = url.partition("/#")[0]
        assert origin.startswith("https://127.0.0.1:")

        browser.open(url)  # nobody vouches for the certificate, so the page is not shown
        browser.wait("document.title !== ''")
        assert "Privacy error" in browser.evaluate("document.title")

        browser.trust_all()
        browser.open("about:blank")
        browser.open(url)
        browser.wait(SHOWN)
        assert browser.fingerprint(origin) in opened.stderr
        assert "alice" in browser.text("#members")
        browser.click("#quit")
        browser.click("#dialog-yes")
        assert bob.wait_exit() == 0
        browser.wait("document.querySelector('#connection').dataset.state === 'ended'")
        assert alice.wait("member_left", node="bob")["reason"] == "leave"


@contextlib.contextmanager
def hostile() -> Iterator[str]:
    """Serve a page of names that try to do harm; yield its address."""
    command = [sys.executable, "-m", "tests.unit.page.fakes"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_hostile_names_phones_and_keyboards(tmp_path: Path) -> None:
    with hostile() as url, Browser(tmp_path, *PHONE) as browser:
        browser.resize(*PHONE, phone=True)
        browser.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
        browser.open(url)
        browser.wait(SHOWN)
        browser.wait("document.querySelector('#joins ul li')")
        assert HOSTILE in browser.text("#members")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert browser.evaluate("document.title") == "alice · edgeagent"
        assert browser.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        animated = "getComputedStyle(document.querySelector('.pull')).animationName"
        assert browser.evaluate(animated) == "none"
        refused = "try { document.body.innerHTML = '<b>'; 'read' } catch { 'refused' }"
        assert browser.evaluate(refused) == "refused"

        # The keyboard keeps its place while snapshots come.
        browser.evaluate("document.querySelector('[aria-label^=Expel]:not([hidden])').focus()")
        lines = "document.querySelector('#loss p').textContent"
        before = browser.evaluate(lines)
        browser.wait(f"{lines} !== {before!r}")
        assert browser.evaluate("document.activeElement.ariaLabel") == f"Expel {HOSTILE}"
        browser.evaluate("document.activeElement.click()")
        assert browser.evaluate("document.activeElement.id") == "dialog-no"
        browser.press("Escape", 27)
        assert browser.evaluate("document.activeElement.ariaLabel") == f"Expel {HOSTILE}"

        # A question may come before the browser has told that the one before was closed.
        browser.evaluate(
            "const expel = document.activeElement, dialog = document.querySelector('#dialog');"
            "expel.click(); dialog.close(); expel.click()"
        )
        browser.evaluate("document.querySelector('#dialog-yes').click()")
        browser.wait("document.querySelector('#dialog-token').value === 'ea1-new-token'")
        browser.press("Escape", 27)
        browser.wait("document.querySelector('#dialog-token').value === ''")
        assert [error for error in browser.errors if "TrustedHTML" not in error] == []

        browser.open("about:blank")
        browser.open(url)  # from the history of another user, say
        browser.wait("!document.querySelector('#notice').hidden")
        assert "used before" in browser.text("#notice")
