"""On which systems edgeagent runs at all, and what is said elsewhere."""

from __future__ import annotations

import pytest

import edgeagent
from edgeagent import supported
from edgeagent.cli import main
from edgeagent.errors import UsageError
from edgeagent.supported import check_system


@pytest.mark.parametrize("platform", ["linux", "darwin", "freebsd14"])
def test_where_it_may_run(platform: str) -> None:
    check_system(platform)


def test_on_windows_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supported.check_system, "__defaults__", ("win32",))
    assert main(["status"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "wsl --install" in said
    with pytest.raises(UsageError, match="WSL"):
        edgeagent.__getattr__("Trainer")
