"""The files of services: what systemd and launchd read in them, and that no other is touched."""

from __future__ import annotations

import contextlib
import os
import plistlib
import re
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent import programs
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.services import systems, units
from edgeagent.services.units import Service, launchd_plist, name_of_job, service_name, systemd_unit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ODD = ("two\nlines", 'a "b"', "$HOME", "100 %h", "back\\slash", "semi; colon", ";", "it's", "", "ü")
SETTINGS = (("A_B", 'x "$y" %z'),)
SERVICE = Service("train", (sys.executable, "-m", "edgeagent", *ODD), "/tmp", SETTINGS)
ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


def unquoted(text: str) -> list[str]:
    """Split a value of a unit into words as systemd.syntax(7) says: double quotes, C escapes."""
    words: list[str] = []
    rest = text
    while rest := rest.lstrip(" "):
        if rest[0] != '"':
            word, _, rest = rest.partition(" ")
            assert not set(word) & set("\"'\\"), "a word without quotes that has some"
        else:
            found = re.match(r'"((?:[^"\\]|\\.)*)"( |$)', rest)
            assert found, f"an open quote in {rest!r}"
            word, rest = found[1], rest[found.end() :]
            word = re.sub(
                r"\\(x[0-9a-f]{2}|.)",
                lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 3 else ESCAPES[m[1]],
                word,
            )
        assert "%" not in word.replace("%%", ""), "a specifier, which systemd would replace"
        words.append(word.replace("%%", "%"))
    return words


def values(unit: str, key: str) -> list[str]:
    """Return the values of a key in a unit."""
    return [line.partition("=")[2] for line in unit.split("\n") if line.startswith(f"{key}=")]


def command_in(unit: str) -> tuple[str, ...]:
    """Return the command that systemd would run."""
    (line,) = values(unit, "ExecStart")
    words = unquoted(line)
    for word in words[1:]:
        assert "$" not in word.replace("$$", ""), "a variable, which systemd would replace"
    return (words[0], *(word.replace("$$", "$") for word in words[1:]))


def test_systemd_runs_what_was_typed() -> None:
    unit = systemd_unit(SERVICE)
    assert command_in(unit) == SERVICE.command
    assert [unquoted(v) for v in values(unit, "Environment")] == [['A_B=x "$y" %z']]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_any_arguments_survive_both_files(arguments: list[str]) -> None:
    service = Service("x", ("/bin/true", *arguments), "/")
    assert command_in(systemd_unit(service)) == service.command
    with contextlib.suppress(UsageError):  # XML has no way to write some of them
        plist = plistlib.loads(launchd_plist(service))
        assert plist["ProgramArguments"] == list(service.command)
    printable = [a for a in arguments if a.isprintable()]
    plist = plistlib.loads(launchd_plist(Service("x", ("/bin/true", *printable), "/")))
    assert plist["ProgramArguments"] == ["/bin/true", *printable]


def test_it_leaves_as_by_ctrl_c_and_starts_again_only_after_failures() -> None:
    unit = systemd_unit(SERVICE)
    assert values(unit, "KillSignal") == ["SIGINT"]
    assert values(unit, "KillMode") == ["mixed"], "the trainer must not be interrupted, too"
    assert values(unit, "TimeoutStopSec") == ["120"]
    assert values(unit, "Restart") == ["on-failure"]
    assert values(unit, "WantedBy") == ["default.target"]
    plist = plistlib.loads(launchd_plist(SERVICE))
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ExitTimeOut"] == 120
    assert plist["RunAtLoad"] is True


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    unit = tmp_path / "edgeagent-train.service"

    def told(text: str) -> str:
        unit.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(unit)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return f"{done.stdout}{done.stderr}"

    text = systemd_unit(Service("train", SERVICE.command, str(tmp_path), SERVICE.environment))
    if "Failed to initialize manager" in (said := told(text)):
        pytest.skip(said)
    assert said == ""
    assert "mixd" in told(text.replace("KillMode=mixed", "KillMode=mixd")), "it reads nothing"


def test_what_cannot_stand_in_a_unit_is_refused() -> None:
    for folder in ("/a\nb", "/a ", "/a\0"):
        with pytest.raises(UsageError):
            Service("x", ("/bin/true",), folder)
    with pytest.raises(UsageError, match="NUL"):
        Service("x", ("/bin/true", "a\0b"), "/")
    with pytest.raises(UsageError, match="cannot stand in a property list"):
        launchd_plist(Service("x", ("/bin/true", "a\1b"), "/"))
    assert values(systemd_unit(Service("x", ("/b",), "/100 % sure")), "WorkingDirectory") == [
        "/100 %% sure"
    ]


def test_names() -> None:
    assert name_of_job("my job/ü") == "my-job"
    assert name_of_job("???") == "job"
    assert service_name("a.b-c_9") == "a.b-c_9"
    for text in ("", ".hidden", "a/b", "a b", "x" * 65, "a\n"):
        with pytest.raises(UsageError, match="cannot name a service"):
            service_name(text)


# --- files ------------------------------------------------------------------------------------


@pytest.fixture(params=["linux", "darwin"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> systems.System:
    """One of the two systems, in an empty home folder."""
    return systems.system_for(request.param, {"HOME": str(tmp_path)}, 501)


def test_install_and_remove(system: systems.System) -> None:
    assert systems.installed(system) == ()
    path = systems.install(system, SERVICE, replaces=False)
    assert systems.install(system, SERVICE, replaces=False) == path, "the same once more"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert systems.installed(system) == ("train",)
    other = Service("train", ("/bin/true",), "/")
    with pytest.raises(UsageError, match="--replace writes it anew, --as NAME"):
        systems.install(system, other, replaces=False)
    systems.install(system, other, replaces=True)
    with open(path, "rb") as file:
        assert file.read() == system.text(other)
    assert any("train" in line for line in system.after_install("train"))
    for link in system.links("train"):
        os.makedirs(os.path.dirname(link))
        os.symlink(path, link)
    assert systems.remove(system, "train") == path
    assert not any(os.path.lexists(each) for each in (path, *system.links("train")))
    assert system.after_remove("train")
    with pytest.raises(UsageError, match="there is no service 'train' here"):
        systems.remove(system, "train")


def test_a_foreign_file_stays(system: systems.System) -> None:
    path = os.path.join(system.folder, system.file_name("train"))
    os.makedirs(system.folder)
    with open(path, "w", encoding="utf-8") as file:
        file.write("[Service]\nExecStart=/bin/mine\n")
    with pytest.raises(UsageError, match="was not written by edgeagent and stays as it is"):
        systems.install(system, SERVICE, replaces=True)
    with pytest.raises(UsageError, match="remove it yourself"):
        systems.remove(system, "train")
    with open(path, encoding="utf-8") as file:
        assert "/bin/mine" in file.read()
    assert systems.installed(system) == ()
    os.unlink(path)
    os.symlink("/nowhere", path)
    with pytest.raises(UsageError, match="was not written by edgeagent"):
        systems.install(system, SERVICE, replaces=True)
    assert os.readlink(path) == "/nowhere"


def test_another_system_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="win32 has neither"):
        systems.system_for("win32", {}, 0)


def test_what_systemd_says(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def show(command: Sequence[str]) -> str:
        asked.append(command)
        return "ActiveState=active\nSubState=running\nMainPID=77\nResult=success\n"

    linger = tmp_path / "linger"
    there = systems.Systemd(str(tmp_path), show, str(linger))
    assert there.state("train") == "not enabled; active (running, process 77)"
    path = systems.install(there, SERVICE, replaces=False)
    (link,) = there.links("train")
    os.makedirs(os.path.dirname(link))
    os.symlink(path, link)
    assert there.state("train").startswith("starts at log-in; active")
    linger.mkdir()
    import getpass

    (linger / getpass.getuser()).touch()
    assert there.state("train").startswith("starts at boot; active")
    assert "edgeagent-train.service" in asked[0]

    def failed(command: Sequence[str]) -> str:
        return "ActiveState=failed\nSubState=failed\nMainPID=0\nResult=exit-code\n"

    assert (
        systems.Systemd(str(tmp_path), failed, "/")
        .state("train")
        .endswith("; failed (failed, exit-code)")
    )

    def gone(command: Sequence[str]) -> str:
        raise EdgeAgentError("systemctl is not installed here")

    assert "not known: systemctl is not installed" in systems.Systemd("/x", gone).state("train")


def test_what_launchd_says() -> None:
    printed = "gui/501/edgeagent.train = {\n\tstate = running\n\tpid = 12\n}\n"
    assert systems.Launchd("/h", 501, lambda _: printed).state("train") == "running, process 12"

    def gone(command: Sequence[str]) -> str:
        raise EdgeAgentError("launchctl says: no such service")

    assert systems.Launchd("/h", 501, gone).state("x") == (
        "not loaded (launchctl says: no such service)"
    )
    assert units.launchd_label("x") in systems.Launchd("/h", 501).after_remove("x")[0]


def test_programs_that_fail_are_told_in_one_line() -> None:
    assert programs.ask(("printf", "a\nb")) == "a\nb"
    with pytest.raises(EdgeAgentError, match="no-such-program is not installed here"):
        programs.ask(("no-such-program",))
    with pytest.raises(EdgeAgentError, match="sh says: first"):
        programs.ask(("sh", "-c", "printf 'first\nsecond' >&2; exit 3"))
    with pytest.raises(EdgeAgentError, match="false says: exit status 1"):
        programs.ask(("false",))
