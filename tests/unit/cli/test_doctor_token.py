"""Where `edgeagent doctor` finds the token: in the places in which `edgeagent run` looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from edgeagent.commands.doctor import look_at_token
from edgeagent.local.token_store import keep_token
from edgeagent.transport.token import new_token, parse_token

if TYPE_CHECKING:
    from pathlib import Path


def test_a_token_that_pairing_has_kept_is_found(tmp_path: Path) -> None:
    args: Any = SimpleNamespace(token=None, token_file=None, cluster=None)
    environment = {"EDGEAGENT_HOME": str(tmp_path)}
    fact, secret = look_at_token(args, environment)
    assert (fact.given, secret) == (False, None)
    token, other = new_token(), new_token()
    keep_token(str(tmp_path), "default", token)
    fact, secret = look_at_token(args, environment)
    assert (fact.source, fact.problem) == ("the token that is kept for cluster 'default'", "")
    assert secret == parse_token(token)
    fact, secret = look_at_token(args, {**environment, "EDGEAGENT_TOKEN": other})
    assert (fact.source, secret) == ("EDGEAGENT_TOKEN", parse_token(other))
    args.cluster = "lab"
    assert not look_at_token(args, environment)[0].given
