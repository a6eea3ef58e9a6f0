"""What is read of a system's answers, with fake systems; none of them is this machine's."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgeagent.pausing.decision import Facts, Wishes
from edgeagent.pausing.facts import Linux, Mac, facts_of, printed, this_device

if TYPE_CHECKING:
    from collections.abc import Sequence


class Programs:
    """Programs that are installed, with what they print."""

    def __init__(self, **answers: str | None) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> str | None:
        self.asked.append(" ".join(command))
        if command[:2] == ("loginctl", "show-session"):
            return self.answers.get(f"session_{command[2]}")
        return self.answers.get(command[0])


def supply(sysfs: Path, name: str, **values: str) -> None:
    """Make a power supply in a tree like /sys."""
    folder = sysfs / "class" / "power_supply" / name
    folder.mkdir(parents=True, exist_ok=True)
    for what, value in values.items():
        (folder / what).write_text(value + "\n")


def linux(sysfs: Path | str = "/nowhere", display: str = "", **answers: str | None) -> Linux:
    """Return a device with these programs."""
    return Linux(Programs(**answers), str(sysfs), {"DISPLAY": display})


def test_power_of_a_laptop(tmp_path: Path) -> None:
    device = linux(tmp_path)
    assert device.on_battery() is None, "there is no such folder"
    supply(tmp_path, "AC", type="Mains", online="1")
    assert device.on_battery() is False, "a device without a battery"
    supply(tmp_path, "BAT0", type="Battery", status="Not charging")
    assert device.on_battery() is False
    supply(tmp_path, "AC", online="0")
    assert device.on_battery() is True
    supply(tmp_path, "BAT0", status="Discharging")
    assert device.on_battery() is True
    supply(tmp_path, "ucsi-1", type="USB", online="1")
    assert device.on_battery() is False, "charged by USB-C"


def test_power_without_a_mains_entry(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert linux(tmp_path).on_battery() is True
    supply(tmp_path, "BAT0", status="Charging")
    assert linux(tmp_path).on_battery() is False


def test_the_battery_of_a_mouse_is_none(tmp_path: Path) -> None:
    supply(tmp_path, "hid-1", type="Battery", scope="Device", status="Discharging")
    assert linux(tmp_path).on_battery() is False
    supply(tmp_path, "strange", status="Discharging")
    assert linux(tmp_path).on_battery() is False


def test_last_use_by_x11_and_gnome() -> None:
    assert linux(display=":0", xprintidle="2500\n").idle_s() == 2.5
    assert linux(xprintidle="2500\n", gdbus="(uint64 7000,)\n").idle_s() == 7.0
    assert linux(display=":0", gdbus="(uint64 7000,)\n").idle_s() == 7.0
    assert linux(display=":0", xprintidle="??").idle_s() is None
    assert linux(gdbus="(uint64 -1,)").idle_s() is None
    assert linux().idle_s() is None


def test_last_use_by_logind() -> None:
    now_us = int(time.monotonic() * 1e6)

    def session(hint: str, ago_s: float, kind: str = "user", state: str = "active") -> str:
        since = max(0, now_us - int(ago_s * 1e6))
        return f"Class={kind}\nState={state}\nIdleHint={hint}\nIdleSinceHintMonotonic={since}\n"

    two = "1 1000 alice seat0 tty2\n 7 1000 alice - pts/0\n"
    assert linux(loginctl="").idle_s() == math.inf, "nobody is logged in"
    idle = linux(loginctl=two, session_1=session("yes", 9), session_7=session("yes", 5)).idle_s()
    assert idle is not None
    assert 4.9 < idle < 9
    device = linux(loginctl=two, session_1=session("no", 0), session_7=session("yes", 5))
    assert device.idle_s() == 0.0
    manager = session("no", 0, kind="manager")
    closing = session("no", 0, state="closing")
    assert linux(loginctl=two, session_1=manager, session_7=closing).idle_s() == math.inf
    assert linux(loginctl=two).idle_s() == math.inf, "sessions that ended meanwhile"


@pytest.mark.parametrize(
    ("answers", "metered"),
    [
        ({"busctl": "u 1\n"}, True),
        ({"busctl": "u 2\n"}, False),
        ({"busctl": "u 3\n"}, True),
        ({"busctl": "u 4\n"}, False),
        ({"busctl": "u 0\n"}, None),
        ({"busctl": "u 9\n", "nmcli": "yes\n"}, True),
        ({"nmcli": "no (guessed)\n\nunknown\n"}, False),
        ({"nmcli": "yes (guessed)\n\nno\n"}, True),
        ({"nmcli": "unknown\n"}, None),
        ({}, None),
    ],
)
def test_metered(answers: dict[str, str], metered: bool | None) -> None:
    assert linux(**answers).metered() is metered


def test_a_mac() -> None:
    battery = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1) 80%; discharging\n"
    assert Mac(Programs(pmset=battery)).on_battery() is True
    assert Mac(Programs(pmset="Now drawing from 'AC Power'\n")).on_battery() is False
    assert Mac(Programs()).on_battery() is None
    idle = '    | |   "HIDIdleTime" = 2500000000\n'
    assert Mac(Programs(ioreg=idle)).idle_s() == 2.5
    assert Mac(Programs(ioreg="")).idle_s() is None
    assert Mac(Programs()).metered() is None


def test_only_what_is_needed_is_asked() -> None:
    programs = Programs(busctl="u 1", gdbus="(uint64 0,)")
    device = Linux(programs, "/nowhere", {})
    assert facts_of(device, Wishes()) == Facts()
    assert programs.asked == []
    assert facts_of(device, Wishes(True, 5, True)) == Facts(None, 0.0, True)


def test_programs_that_fail_say_nothing() -> None:
    assert printed(("no-such-program",)) is None
    assert printed(("false",)) is None
    assert printed(("printf", "x")) == "x"


def test_each_system_has_its_device(tmp_path: Path) -> None:
    assert isinstance(this_device("darwin", {}), Mac)
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    device = this_device("linux", {"EDGEAGENT_SYSFS": str(tmp_path)})
    assert device.on_battery() is True
