"""Which member a user means, and what bodies the command socket takes."""

from __future__ import annotations

import hashlib

import pytest

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local.changes import (
    Ambiguous,
    NoSuchMember,
    find_member,
    parse_link,
    parse_node,
    parse_remote,
)
from protocols.cluster.view import Member


def member(name: str, node: str) -> Member:
    """Return a member whose id begins with the hexadecimal digits `node`."""
    return Member(bytes.fromhex(node.ljust(64, "0")), 1, name, "", (), b"", sparse=False)


ALICE = member("alice", "a1c0")
BOB = member("bob", "b0b1")
BOB_2 = member("bob", "b0b2")
ABBA = member("abba", "c1")
DEED = member("deed", "abba01")
ROOM = (ALICE, BOB, ABBA, DEED)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("alice", ALICE),
        ("bob", BOB),
        ("b0b1", BOB),
        ("B0B1", BOB),
        ("b0b1" + "0" * 60, BOB),
        ("abba", ABBA),  # a name wins over an id
        ("abba0", DEED),
        ("ABBA", DEED),  # names know capitals, ids do not
    ],
)
def test_a_member_is_found_by_its_name_or_the_beginning_of_its_id(
    asked: str, found: Member
) -> None:
    assert find_member(asked, ROOM) is found


@pytest.mark.parametrize(
    "asked",
    ["carol", "b0b", "b0b11", "b0bx", "", "b0b1" + "0" * 61, "\N{ARABIC-INDIC DIGIT ONE}" * 4],
)
def test_nobody_is_called_so(asked: str) -> None:
    with pytest.raises(NoSuchMember) as caught:
        find_member(asked, ROOM)
    meant = "; did you mean 'bob'?" if asked == "b0b" else ""
    members = "members: abba, alice, bob, deed"
    assert str(caught.value) == f"no member is called {asked!r}; {members}{meant}"
    assert caught.value.exit_status == 1


def test_several_members_of_one_name_are_told_apart_by_their_ids() -> None:
    room = (*ROOM, BOB_2)
    with pytest.raises(Ambiguous) as caught:
        find_member("bob", room)
    assert str(caught.value) == (
        "several members match 'bob', say which by its id: bob (b0b10000), bob (b0b20000)"
    )
    assert caught.value.exit_status == 2
    assert find_member("b0b2", room) is BOB_2
    with pytest.raises(Ambiguous):
        find_member("b0b1", (BOB, member("eve", "b0b10000ff")))


def test_bodies_that_are_right() -> None:
    assert parse_link(b'{"node": "bob", "wanted": true}') == ("bob", True)
    assert parse_link(b'{"wanted": false, "node": "b0b1"}') == ("b0b1", False)
    assert parse_node(b'{"node": "bob"}') == "bob"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"bob",
        b"\xff\xfe",
        b"[" * 4000,
        b"[]",
        b"null",
        b'"node"',
        b"{}",
        b'{"node": "bob"}',
        b'{"node": "bob", "wanted": 1}',
        b'{"node": "bob", "wanted": null}',
        b'{"node": "bob", "wanted": true, "more": 1}',
        b'{"node": 7, "wanted": true}',
        b'{"node": ["bob"], "wanted": true}',
        b'{"node": "", "wanted": true}',
        b'{"node": "' + b"b" * 257 + b'", "wanted": true}',
    ],
)
def test_bodies_that_are_wrong(body: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse_link(body)
    assert "\n" not in str(caught.value)
    if body != b'{"node": "bob"}':
        with pytest.raises(UsageError):
            parse_node(body)


def test_whether_the_page_is_for_a_browser_elsewhere() -> None:
    assert not parse_remote(b"")
    assert not parse_remote(b'{"remote": false}')
    assert parse_remote(b'{"remote":true}')
    for body in (b"{}", b'{"remote": 1}', b'{"remote": true, "more": 1}', b"[" * 4000):
        with pytest.raises(UsageError):
            parse_remote(body)


def test_random_bodies_raise_nothing_else() -> None:
    right = b'{"node": "bob", "wanted": true}'
    for number in range(4096):
        noise = hashlib.sha256(number.to_bytes(4, "big")).digest()
        place = noise[0] % len(right)
        body = right[:place] + noise[1 : 1 + noise[2] % 4] + right[place + noise[3] % 3 :]
        try:
            node, wanted = parse_link(body)
        except EdgeAgentError:
            continue
        assert isinstance(node, str)
        assert isinstance(wanted, bool)
