"""Changes of the cluster that a user asks for on the command socket: links, expulsions, tokens.

A request that is not exactly as described, or that names no member or several, leads to one
`EdgeAgentError` that says what would be right. There is no I/O in this module.
"""

from __future__ import annotations

import json
import string
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.cluster.view import Member

MIN_ID_DIGITS = 4  # fewest digits of a node id's beginning that may name a node
SHOWN_ID_DIGITS = 8
MAX_NODE_TEXT = 256  # characters

ChangeState = Literal["pending", "done", "refused"]


class ChangeStatus(TypedDict):
    """How far a change is.

    `node` is the member's name, "" for a change of the token only. `text` says what the change
    waits for, or why it was refused. `step` is the first step under it. `token` is the new token if
    the change made one, else "".
    """

    number: int
    state: ChangeState
    node: str
    text: str
    step: int
    token: str


class TokenShown(TypedDict):
    """The cluster's present token, for the user who asks for it."""

    token: str


class NoSuchMember(EdgeAgentError):
    """No member of the cluster has this name or id."""


class Ambiguous(UsageError):
    """Several members match a name or the beginning of an id."""


def find_member(asked: str, members: Sequence[Member]) -> Member:
    """Return the member that `asked` names.

    This is its name, or at least `MIN_ID_DIGITS` hexadecimal digits with which its id begins, and
    no other member's does. Names have precedence over ids. Raises `NoSuchMember`, which lists the
    members, or `Ambiguous`.
    """
    found = [m for m in members if m.name == asked]
    if not found and len(asked) >= MIN_ID_DIGITS and set(asked) <= set(string.hexdigits):
        found = [m for m in members if m.node.hex().startswith(asked.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(f"{m.name} ({m.node.hex()[:SHOWN_ID_DIGITS]})" for m in found)
        raise Ambiguous(f"several members match {asked!r}, say which by its id: {named}")
    names = ", ".join(sorted(m.name for m in members))
    meant = did_you_mean(asked, [m.name for m in members])
    raise NoSuchMember(f"no member is called {asked!r}; members: {names}{meant}")


def parse_link(body: bytes) -> tuple[str, bool]:
    """Return (node, wanted) of `{"node": "bob", "wanted": true}`; raise `UsageError` otherwise."""
    values = _parse(body, {"node": str, "wanted": bool})
    return _node_text(values["node"]), values["wanted"]


def parse_node(body: bytes) -> str:
    """Return the node of `{"node": "bob"}`; raise `UsageError` if `body` is something else."""
    return _node_text(_parse(body, {"node": str})["node"])


def parse_remote(body: bytes) -> bool:
    """Return whether the page is for a browser elsewhere: the `remote` of `{"remote": true}`, false
    if there is no body; raise `UsageError` if `body` is something else."""
    return bool(body) and bool(_parse(body, {"remote": bool})["remote"])


def _parse(body: bytes, shape: dict[str, type]) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("the request's body is no JSON") from None
    if not isinstance(values, dict) or values.keys() != shape.keys():
        raise UsageError(f"the request's body must be an object with {', '.join(shape)}")
    for name, kind in shape.items():
        if type(values[name]) is not kind:
            raise UsageError(f"{name} in the request's body has the wrong type")
    return values


def _node_text(text: str) -> str:
    if not text or len(text) > MAX_NODE_TEXT:
        raise UsageError(f"name a node with 1 to {MAX_NODE_TEXT} letters")
    return text
