"""Variables of the environment that are misspelt are named, whatever they contain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import edgeagent
from edgeagent.variables import KNOWN, PREFIX, unread_variables, warn_of_unread_variables

PACKAGE = Path(edgeagent.__file__).parent


def test_the_known_variables_are_those_that_the_code_reads() -> None:
    texts = [path.read_text() for path in sorted(PACKAGE.rglob("*.py"))]
    read = {name for text in texts for name in re.findall(r'"EDGEAGENT_([A-Z_]+)"', text)}
    assert read == set(KNOWN)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("EDGEAGENT_TOEKN", "; did you mean EDGEAGENT_TOKEN?"),
        ("EDGEAGENT_peers", "; did you mean EDGEAGENT_PEERS?"),
        ("EDGEAGENT_GLOBAL_BATCH", ""),
    ],
)
def test_a_variable_that_nobody_reads_is_named(name: str, meant: str) -> None:
    said = f"{name} is set, but edgeagent reads no variable of that name{meant}"
    assert unread_variables(["PATH", name, "EDGEAGENT_TOKEN"]) == [said]


@pytest.mark.parametrize(
    "word", ["SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_7430_TCP_ADDR"]
)
def test_what_an_orchestrator_sets_is_none(word: str) -> None:
    assert unread_variables([PREFIX + word, "MY_EDGEAGENT_TOKEN"]) == []


def test_the_warning_keeps_what_the_variable_contains_to_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEAGENT_TOKENN", "secret")
    warn_of_unread_variables()
    said = capsys.readouterr().err
    assert said.startswith("edgeagent: warning: EDGEAGENT_TOKENN is set")
    assert "secret" not in said
