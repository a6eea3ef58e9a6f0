"""The messages of join and link connections: exact round trips, and hostile bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.recipe import Recipe
from edgeagent.transport import join_wire, link_wire
from edgeagent.transport.api import PeerInfo, Standing
from edgeagent.transport.link_wire import Channel, LinkHello
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

from .helpers import identity

if TYPE_CHECKING:
    from protocols.wire.message import Message

ANNA = PeerInfo(
    identity("anna").node, 7, "anna", ("192.0.2.1:7431", "[::1]:7431"), identity("anna").certificate
)
STANDING = Standing(ANNA, "member", 12800, 3, bytes(16), ANNA.node, (ANNA, ANNA))
JOINER = join_wire.JoinerHello((1, 2), bytes(32), ANNA.certificate)
PROOF = join_wire.JoinerProof(bytes(32), b"")
ENTER = join_wire.Enter(ANNA.incarnation, ANNA.name, ANNA.addresses, ("192.0.2.1:7430",))
GREETING = join_wire.Greeting(("192.0.2.1:7430",))
RECIPE = Recipe("train.py", (("--steps", "5"),), ("a",), "x = 1")
SERVER = join_wire.ServerHello((1,), 1, bytes(32), b"")
LINK = LinkHello(Channel.BULK, 1, bytes(16), bytes(32), 3, "ben", ("10.0.0.1:1",))
JOB = (("optimizer", "SGD"), ("lr", "0.1"))
JOINING: list[Message] = [
    JOINER,
    SERVER,
    PROOF,
    join_wire.server_proof(bytes(32), STANDING),
    join_wire.ServerJob(JOB),
    ENTER,
    GREETING,
    join_wire.Admitted(),
    join_wire.RecipeWanted(),
    join_wire.RecipeTold(RECIPE),
    join_wire.RecipeTold(None),
    join_wire.Refusal(join_wire.Reason.TOKEN, (1,)),
]
LINKING: list[Message] = [
    LINK,
    link_wire.Ready(),
    link_wire.Commit(),
    link_wire.Refuse(link_wire.Refusal.FULL),
]
MESSAGES = JOINING + LINKING


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_read_back(message: Message) -> None:
    assert decode_tagged(encode_tagged(message), type(message)) == message


def test_a_standing_reads_back() -> None:
    assert join_wire.server_proof(bytes(32), STANDING).standing == STANDING


def test_a_refusal_reads_back_where_an_answer_was_expected() -> None:
    refusal = join_wire.Refusal(join_wire.Reason.TOKEN, (1,))
    data = encode_tagged(refusal)
    assert decode_tagged(data, join_wire.ServerHello, join_wire.Refusal) == refusal
    assert decode_tagged(data, join_wire.Enter, join_wire.Greeting, join_wire.Refusal) == refusal


def test_an_unknown_reason_is_a_refusal_all_the_same() -> None:
    answer = decode_tagged(msgpack.packb([8, 99, [1]]), join_wire.Refusal)
    assert answer == join_wire.Refusal(join_wire.Reason.PROTOCOL, (1,))


def test_what_does_not_fit_together_is_refused() -> None:
    told = [1, "member", 0, 1, b"", b"", [], [0, b"", []], b""]
    peer = [ANNA.incarnation, ANNA.name, list(ANNA.addresses), ANNA.certificate]
    cases: tuple[tuple[type[Message], list[object], str], ...] = (
        (join_wire.ServerHello, [[1], 1, bytes(32), b"x"], "job tag"),
        (join_wire.JoinerProof, [bytes(32), b"x"], "job tag"),
        (join_wire.ServerProof, [bytes(32), peer, "resting", *told[2:]], "phase"),
        (join_wire.ServerProof, [bytes(32), peer, *told[1:-1], b"x"], "script"),
        (join_wire.ServerProof, [bytes(32), peer[:3], *told[1:]], "peer"),
        (join_wire.Enter, [1, "anna", [], [], b"x"], "script"),
        (join_wire.JoinerHello, [[], bytes(32), b"x"], "versions"),
    )
    for kind, values, reason in cases:
        with pytest.raises(RemoteProtocolError, match=reason):
            decode_tagged(msgpack.packb([kind.TAG, *values]), kind)


@pytest.mark.parametrize("messages", [JOINING, LINKING])
def test_no_message_passes_for_another(messages: list[Message]) -> None:
    kinds = {type(message) for message in messages}
    for message in messages:
        for other in kinds - {type(message)}:
            with pytest.raises(RemoteProtocolError):
                decode_tagged(encode_tagged(message), other)


@pytest.mark.parametrize("message", MESSAGES)
def test_every_single_byte_change_is_read_or_refused(message: Message) -> None:
    data, decode = encode_tagged(message), type(message)
    for place in range(min(len(data), 700)):
        for value in (0, data[place] ^ 1, 0x7F, 0x80, 0x90, 0xC0, 0xD4, 0xDD, 0xDF, 0xFF):
            read_or_refuse(decode, data[:place] + bytes([value]) + data[place + 1 :])
    for length in range(len(data)):
        read_or_refuse(decode, data[:length])
    read_or_refuse(decode, data + b"\x00")


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.binary(max_size=40) | st.text(),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


@given(st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    for message in MESSAGES:
        read_or_refuse(type(message), data)


@given(st.integers(0, 9), st.lists(json, max_size=9))
def test_random_values_are_read_or_refused(kind: int, values: list[Any]) -> None:
    data = msgpack.packb([kind, *values])
    for message in MESSAGES:
        read_or_refuse(type(message), data)


def test_deep_and_wide_claims_are_refused_cheaply() -> None:
    for data in (b"\xdd\xff\xff\xff\xff", b"\x91" * 5000 + b"\x01", b"\xdc\x00\x20" * 2700):
        for message in MESSAGES:
            with pytest.raises(RemoteProtocolError):
                decode_tagged(data, type(message))


@pytest.mark.parametrize(
    "address",
    ["", "nothing", "a b:1", "host:0", "host:70000", "ü:1", "x" * 70 + ":1", "::1:x", "a..b:1", 5],
)
def test_addresses_are_checked(address: object) -> None:
    values = [1, 1, 1, bytes(16), bytes(32), 3, "ben", [address]]
    with pytest.raises(RemoteProtocolError):
        decode_tagged(msgpack.packb(values), LinkHello)


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", "\x1b[2J", "\ud800", 3])
def test_names_are_checked(name: object) -> None:
    values = [1, 1, 1, bytes(16), bytes(32), 3, name, []]
    data = msgpack.packb(values, unicode_errors="surrogatepass")
    with pytest.raises(RemoteProtocolError):
        decode_tagged(data, LinkHello)


def test_a_job_too_large_for_a_frame_is_cut() -> None:
    job = tuple((f"field {i}", "x" * 4000) for i in range(1000))
    body = join_wire.encode_server_job(job)
    assert len(body) <= 1 << 20
    told = decode_tagged(body, join_wire.ServerJob).job
    assert 0 < len(told) < len(job)
    assert job[: len(told)] == told


def read_or_refuse(kind: type[Message], data: bytes) -> None:
    """Decode, or expect an error of one line; any other exception fails the test."""
    message = ""
    try:
        decode_tagged(data, kind)
    except RemoteProtocolError as error:
        message = str(error)
    assert "\n" not in message
