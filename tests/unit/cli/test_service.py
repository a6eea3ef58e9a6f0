"""`edgeagent service` and `stop-all` as commands: what they check, keep secret, and say next."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from edgeagent.cli import main
from edgeagent.command_line import parse
from edgeagent.commands import stop_all
from edgeagent.commands.service import planned
from edgeagent.local.state_dir import claim_state_dir
from edgeagent.local.token_store import keep_token, stored_token
from edgeagent.services.systems import System, system_for
from edgeagent.transport.token import new_token

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = new_token()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user with an empty home folder, who has set the token."""
    for name in list(os.environ):
        if name.startswith(("EDGEAGENT_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EDGEAGENT_TOKEN", TOKEN)
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def linux(home: Path) -> System:
    """Return systemd of the user in `home`."""
    return system_for("linux", {"HOME": str(home)}, 0)


def written(home: Path, name: str = "digits") -> str:
    """Return the unit of a service."""
    return (home / ".config" / "systemd" / "user" / f"edgeagent-{name}.service").read_text()


def test_install_status_remove(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "install", "digits", "--cluster", "lab"]) == 0
    out, err = capsys.readouterr()
    assert "systemctl --user daemon-reload && systemctl --user enable --now" in out
    assert "loginctl enable-linger" in out
    assert "which only you can read" in err
    unit = written(home)
    assert "edgeagent run digits --cluster lab --continue\n" in unit
    assert f"WorkingDirectory={home}/work\n" in unit
    root = str(home / ".local" / "state" / "edgeagent")
    assert stored_token(root, "lab") == TOKEN
    assert TOKEN not in unit + out + err
    assert main(["service", "status"]) == 0
    assert "digits: not enabled" in capsys.readouterr().out
    assert main(["service", "remove"]) == 0
    assert "systemctl --user stop edgeagent-digits.service" in capsys.readouterr().out
    assert main(["service", "status"]) == 0
    assert "no service of edgeagent is installed" in capsys.readouterr().out
    assert main(["service", "remove"]) == 1


def test_a_dry_run_prints_the_unit_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["--dry-run", "digits"], ["digits", "--dry-run"]):
        assert main(["service", "install", *argv]) == 0
        assert "ExecStart=" in capsys.readouterr().out
    assert [path.name for path in home.iterdir()] == ["work"]


def test_a_script_keeps_its_arguments_and_variables(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "work" / "train.py").write_text("")
    monkeypatch.setenv("EDGEAGENT_CLUSTER", "lab")
    monkeypatch.setenv("SOMETHING_ELSE", "x")
    argv = ["service", "install", "--as", "mine", "train.py", "--no-save", "--", "--dry-run", "a b"]
    assert main(argv) == 0
    unit = written(home, "mine")
    assert 'run train.py --no-save -- --dry-run "a b"\n' in unit, "no --continue without a file"
    assert "Environment=EDGEAGENT_CLUSTER=lab\n" in unit
    assert "SOMETHING_ELSE" not in unit


def test_the_command_is_checked_as_run_would(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, expected in (
        ([], "name the job first"),
        (["--steps", "5", "digits"], "--steps"),
        (["digts"], "unknown job 'digts'"),
        (["digits", "--steps", "0"], "--steps"),
        (["digits", "--peer", "a b"], "is no address"),
        (["digits", "--json"], "a service trains"),
        (["digits", "--token", TOKEN], "would stand in the service's file"),
        (["digits", "--as", "a/b"], "cannot name a service"),
        (["digits", "--resume", "nowhere"], "there is no readable file nowhere"),
        (["digits", "--no-save", "--continue"], "--continue needs a file"),
    ):
        assert main(["service", "install", *argv]) == 2, argv
        assert expected in capsys.readouterr().err
    for argv in (["service"], ["service", "status", "--", "x"], ["service", "remove", "a b"]):
        assert main(argv) == 2


def test_a_token_that_others_can_read_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "work" / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    assert main(["service", "install", "digits", "--token-file", "token"]) == 2
    assert "others can read token: `chmod 600 token` first" in capsys.readouterr().err
    file.chmod(0o600)
    assert main(["service", "install", "digits", "--token-file", "token"]) == 0
    assert "--token-file token" in written(home)
    assert TOKEN not in written(home)


def test_another_kept_token_is_not_replaced(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, kept = str(home / ".local" / "state" / "edgeagent"), new_token()
    keep_token(root, "default", kept)
    assert main(["service", "install", "digits"]) == 2
    assert "is another one than that which is kept" in capsys.readouterr().err
    assert stored_token(root, "default") == kept
    assert not (home / ".config").exists()


def test_several_services(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "install", "digits"]) == 0
    assert main(["service", "install", "digits", "--steps", "9"]) == 2
    assert "--replace writes it anew" in capsys.readouterr().err
    assert main(["service", "install", "digits", "--steps", "9", "--as", "nine"]) == 0
    assert main(["service", "remove"]) == 2
    assert "say which: digits, nine" in capsys.readouterr().err
    assert main(["service", "remove", "nine"]) == 0


def test_no_token_reaches_a_service(home: Path) -> None:
    environment = {"EDGEAGENT_TOKEN": TOKEN, "HOME": str(home), "EDGEAGENT_NAME": "desk"}
    service, _ = planned(parse, ["digits"], [], None, linux(home), environment)
    assert dict(service.environment)["EDGEAGENT_NAME"] == "desk"
    assert TOKEN not in str(service)


def test_kept_tokens_are_private(home: Path) -> None:
    assert main(["service", "install", "digits"]) == 0
    (path,) = (home / ".local" / "state").rglob("token")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_agent_that_does_not_leave_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stop_all, "LEAVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(stop_all, "POLL_S", 0.01)
    claimed = claim_state_dir(str(home / ".local" / "state" / "edgeagent"), "lab", "alice")
    try:
        assert main(["stop-all"]) == 1
    finally:
        claimed.release()
    assert "alice (cluster 'lab') is still leaving" in capsys.readouterr().err


def test_nothing_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop-all"]) == 0
    assert capsys.readouterr().out == "no agent runs on this device\n"
