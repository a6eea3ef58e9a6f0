"""The command line of `scripts/pictures`, which runs it in a network namespace of its own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from edgeagent.transport.token import new_token
from tests.scenarios.browser import Browser
from tests.scenarios.cluster import Cluster
from tests.testbed.pictures.terminal import Film, Pane

ROOT = Path(__file__).resolve().parents[3]
JOB = str(Path(__file__).with_name("large_state.py"))
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank")
DESKTOP, PHONE = (1200, 900), (390, 844)
SHOWN = "!document.querySelector('#main').hidden"
CURVE_STEPS = 60  # so many that the curves have a shape
PATIENCE_S = 300.0  # seven trainers start on few cores


def page(folder: Path) -> None:
    """Take the page of six devices: while they train, while one joins, after one was killed."""
    with TemporaryDirectory(prefix="ea-") as place:
        root = Path(place)
        with Cluster(root, job=JOB, options=("--steps", "100000")) as cluster:
            alice = cluster.start("alice")
            alice.wait("joined", PATIENCE_S)
            bob, *_ = [cluster.start(name, peers=[alice]) for name in NAMES[1:]]
            alice.wait_until("members", lambda: alice.members == sorted(NAMES), PATIENCE_S)
            with Browser(root / "desktop", *DESKTOP) as wide, Browser(root / "phone") as small:
                small.resize(*PHONE, phone=True)
                small.prefer(prefers_color_scheme="dark")
                for browser in (wide, small):
                    asked = cluster.command("page", "--no-open", "--name", "alice")
                    browser.open(asked.stdout.strip())
                    browser.wait(SHOWN)
                alice.wait_until("curves", lambda: alice.iteration > CURVE_STEPS, PATIENCE_S)
                shoot(folder, "training", wide, small)
                cluster.start("grace", peers=[alice])
                wide.wait("document.querySelector('#joins ul li')")
                shoot(folder, "joining", wide, small)
                alice.wait_members(*NAMES, "grace")
                bob.signal(signal.SIGKILL)
                alice.wait_members(*[n for n in NAMES if n != "bob"], "grace")
                alice.wait_steps(5)
                shoot(folder, "failed", wide, small)
    # What the documentation shows is the first screen.
    for whole, shown, size in (("joining", "", DESKTOP), ("training-phone", "-phone", PHONE)):
        picture = Image.open(folder / f"page-{whole}.png")
        picture.crop((0, 0, picture.width, size[1])).save(folder / f"page{shown}.png")


def shoot(folder: Path, moment: str, wide: Browser, small: Browser) -> None:
    """Save what both browsers show."""
    wide.picture(folder / f"page-{moment}.png")
    small.picture(folder / f"page-{moment}-phone.png")


def environment(home: str, name: str, token: str) -> dict[str, str]:
    """Return the environment of a device's shell."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EDGEAGENT_")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "PYTHONPATH": str(ROOT),
        "EDGEAGENT_HOME": home,
        "EDGEAGENT_NAME": name,
        "EDGEAGENT_TOKEN": token,
        "OMP_NUM_THREADS": "1",
    }


def session(folder: Path) -> None:
    """Film two devices: one trains, another joins, the first one leaves with Ctrl+C."""
    token = new_token()
    with TemporaryDirectory(prefix="ea-") as home:
        os.chdir(home)
        panes = [Pane(80, 14, n, environment(home, n, token)) for n in ("laptop", "desktop")]
        with panes[0] as laptop, panes[1] as desktop:
            film = Film(laptop, desktop)
            film.shoot(1.0)
            film.type(laptop, "edgeagent run digits --steps 2000\n")
            film.shoot(90.0, until="iteration")
            film.shoot(3.0)
            film.type(desktop, "edgeagent run digits\n")
            film.shoot(90.0, until="desktop has joined")
            film.shoot(6.0)
            film.type(laptop, "\x03")
            film.shoot(60.0, until="model saved")
            film.shoot(6.0)
            film.save(folder / "session.gif")
            film.type(desktop, "\x03")
            film.shoot(60.0, until="desktop$")


def narrow(folder: Path) -> None:
    """Take terminals of 80 and 40 columns that show a training and its status."""
    token = new_token()
    for columns in (80, 40):
        with TemporaryDirectory(prefix="ea-") as home:
            os.chdir(home)
            names = ("laptop", "desktop", "status")
            panes = [Pane(columns, 24, n, environment(home, n, token)) for n in names]
            with panes[0] as laptop, panes[1] as desktop, panes[2] as status:
                film = Film(*panes)
                laptop.type("edgeagent run digits --steps 100000\n")
                film.shoot(90.0, until="iteration")
                desktop.type("edgeagent run digits\n")
                film.shoot(90.0, until="has joined")
                status.type("clear; edgeagent status --name laptop\n")
                film.shoot(10.0)
                film.picture().save(folder / f"terminal-{columns}.png")


def main() -> int:
    """Make what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/pictures", description=__doc__)
    kinds = {"page": page, "session": session, "narrow": narrow}
    parser.add_argument("what", choices=list(kinds))
    where = ROOT / "pictures"
    parser.add_argument("--folder", type=Path, default=where, help="where to save (pictures)")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    kinds[args.what](folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
