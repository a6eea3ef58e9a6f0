"""What the system knows of this device: its power, when it was last used, its connection.

Each fact has several sources, asked in turn until one answers; what none answers is None. Programs
that are asked have a time-out, and what they print is read strictly. Nothing is changed anywhere.

| fact | Linux | macOS |
|---|---|---|
| power | `/sys/class/power_supply` | `pmset` |
| last use | `xprintidle`, GNOME's idle monitor, logind | `ioreg` |
| metered | NetworkManager, by `busctl` or `nmcli` | not known |
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from edgeagent.errors import EdgeAgentError
from edgeagent.pausing.decision import Facts, Wishes
from edgeagent.programs import ask

SYSFS_VARIABLE = "EDGEAGENT_SYSFS"  # another folder in the place of /sys, for tests
MAX_SESSIONS = 64  # that are asked for their last use

# Runs a command and returns what it prints, None if it fails.
Run = Callable[[Sequence[str]], str | None]

_MUTTER = ("org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core")
_NETWORK_MANAGER = "org.freedesktop.NetworkManager"
_METERED = {1: True, 2: False, 3: True, 4: False}  # NMMetered: yes, no, guessed yes, guessed no


class Device(Protocol):
    """Where facts come from."""

    def on_battery(self) -> bool | None:
        """Return whether this device runs on battery."""

    def idle_s(self) -> float | None:
        """Return for how many seconds nobody has used it."""

    def metered(self) -> bool | None:
        """Return whether its connection is paid for by what it carries."""


def facts_of(device: Device, wishes: Wishes) -> Facts:
    """Ask `device` for what `wishes` depend on, and for nothing else."""
    return Facts(
        device.on_battery() if wishes.battery else None,
        device.idle_s() if wishes.activity_s else None,
        device.metered() if wishes.metered else None,
    )


def this_device(platform: str, environment: Mapping[str, str]) -> Device:
    """Return the device that this process runs on; `platform` as in `sys.platform`."""
    if platform == "darwin":
        return Mac(printed)
    return Linux(printed, environment.get(SYSFS_VARIABLE) or "/sys", environment)


def printed(command: Sequence[str]) -> str | None:
    """Return what `command` prints, None if it cannot be run, fails or takes too long."""
    try:
        return ask(command)
    except EdgeAgentError:
        return None


class Linux:
    """A device with Linux."""

    def __init__(self, run: Run, sysfs: str, environment: Mapping[str, str]) -> None:
        self._run = run
        self._supplies = os.path.join(sysfs, "class", "power_supply")
        self._display = bool(environment.get("DISPLAY"))

    # --- power --------------------------------------------------------------------------------

    def on_battery(self) -> bool | None:
        """Return whether no mains supply is plugged in and a battery of this device is there.

        Batteries of mice and headphones (scope "Device") do not count. A device without a battery
        is not on battery. None if the system does not tell.
        """
        try:
            names = sorted(os.listdir(self._supplies))
        except OSError:
            return None
        online, batteries = [], []
        for name in names:
            kind = self._read(name, "type")
            if kind == "Battery" and self._read(name, "scope") != "Device":
                batteries.append(self._read(name, "status"))
            elif kind in ("Mains", "USB", "Wireless", "UPS"):
                online.append(self._read(name, "online"))
        if "1" in online or not batteries:
            return False
        return "Discharging" in batteries or "0" in online

    def _read(self, supply: str, what: str) -> str:
        try:
            with open(os.path.join(self._supplies, supply, what), encoding="utf-8") as file:
                return file.read(64).strip()
        except (OSError, ValueError):
            return ""

    # --- use ----------------------------------------------------------------------------------

    def idle_s(self) -> float | None:
        """Return for how many seconds nobody has used keyboard, mouse or terminals."""
        if self._display and (text := self._run(("xprintidle",))) is not None:
            return _milliseconds(text)
        name, path = _MUTTER
        call = ("gdbus", "call", "--session", "--dest", name, "--object-path", path)
        if (text := self._run((*call, "--method", f"{name}.GetIdletime"))) is not None:
            found = re.fullmatch(r"\(uint64 ([0-9]{1,18}),\)", text.strip())
            return None if found is None else _milliseconds(found[1])
        return self._idle_of_sessions()

    def _idle_of_sessions(self) -> float | None:
        """Return the shortest of the times for which sessions are idle, as logind knows them.

        Without any session nobody can have used the device, so it is infinite.
        """
        listed = self._run(("loginctl", "list-sessions", "--no-legend"))
        if listed is None:
            return None
        uptime = time.monotonic()  # the clock in which logind says since when a session is idle
        idle = math.inf
        for line in listed.splitlines()[:MAX_SESSIONS]:
            fields = ("Class", "State", "IdleHint", "IdleSinceHintMonotonic")
            session = line.split()[0] if line.split() else ""
            shown = self._run(("loginctl", "show-session", session, *(f"-p{f}" for f in fields)))
            values = dict(pair.split("=", 1) for pair in (shown or "").splitlines() if "=" in pair)
            if values.get("Class") != "user" or values.get("State") == "closing":
                continue
            since = values.get("IdleSinceHintMonotonic", "")
            if values.get("IdleHint") != "yes" or not since.isdecimal():
                return 0.0
            idle = min(idle, max(0.0, uptime - int(since) * 1e-6))
        return idle

    # --- network ------------------------------------------------------------------------------

    def metered(self) -> bool | None:
        """Return whether NetworkManager takes the connection to the internet for metered."""
        name = _NETWORK_MANAGER
        text = self._run(
            ("busctl", "get-property", name, "/" + name.replace(".", "/"), name, "Metered")
        )
        if text is not None and (found := re.fullmatch(r"u ([0-4])", text.strip())):
            return _METERED.get(int(found[1]))
        text = self._run(("nmcli", "-g", "GENERAL.METERED", "device", "show"))
        if text is None:
            return None
        said = [line.split()[0] for line in text.splitlines() if line.startswith(("yes", "no"))]
        return "yes" in said if said else None


class Mac:
    """A device with macOS."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_battery(self) -> bool | None:
        """Return whether `pmset` says that power comes from the battery."""
        text = self._run(("pmset", "-g", "batt"))
        found = re.search(r"drawing from '(AC|Battery|UPS) Power'", text or "")
        return None if found is None else found[1] != "AC"

    def idle_s(self) -> float | None:
        """Return for how many seconds keyboard and mouse have not been used."""
        text = self._run(("ioreg", "-c", "IOHIDSystem", "-d", "4"))
        found = re.search(r'"HIDIdleTime" = ([0-9]{1,19})\b', text or "")
        return None if found is None else int(found[1]) * 1e-9

    def metered(self) -> bool | None:
        """Return None: no program of the system tells it."""
        return None


def _milliseconds(text: str) -> float | None:
    """Return a number of milliseconds in seconds, None if it is none."""
    digits = text.strip()
    return int(digits) * 1e-3 if digits.isdecimal() and len(digits) <= 18 else None
