"""The messages of join and link connections: exact round trips, and hostile bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.recipe import Recipe
from edgeagent.transport import join_wire, link_wire
from edgeagent.transport.api import PeerInfo, Standing
from edgeagent.transport.link_wire import Channel, LinkHello
from protocols.errors import RemoteProtocolError

from .helpers import identity

ANNA = PeerInfo(
    identity("anna").node, 7, "anna", ("192.0.2.1:7431", "[::1]:7431"), identity("anna").certificate
)
STANDING = Standing(ANNA, "member", 12800, 3, bytes(16), ANNA.node, (ANNA, ANNA))
JOINER = join_wire.JoinerHello((1, 2), bytes(32), ANNA.certificate)
PROOF = join_wire.JoinerProof(bytes(32), b"")
ENTER = join_wire.Farewell(
    ("192.0.2.1:7430",), join_wire.Entrant(ANNA.incarnation, ANNA.name, ANNA.addresses)
)
GREETING = join_wire.Farewell(("192.0.2.1:7430",))
WANTED = join_wire.Farewell((), wants_recipe=True)
RECIPE = Recipe("train.py", (("--steps", "5"),), ("a",), "x = 1")
SERVER = join_wire.ServerHello((1,), 1, bytes(32), b"")
LINK = LinkHello(Channel.BULK, 1, bytes(16), bytes(32), 3, "ben", ("10.0.0.1:1",))
JOB = (("optimizer", "SGD"), ("lr", "0.1"))

Decode = Callable[[bytes], Any]
MESSAGES: list[tuple[bytes, Decode]] = [
    (join_wire.encode_joiner_hello(JOINER), join_wire.decode_joiner_hello),
    (join_wire.encode_server_hello(SERVER), join_wire.decode_server_hello),
    (join_wire.encode_joiner_proof(PROOF), join_wire.decode_joiner_proof),
    (join_wire.encode_server_proof(bytes(32), STANDING), join_wire.decode_server_proof),
    (join_wire.encode_server_job(JOB), join_wire.decode_server_job),
    (join_wire.encode_farewell(ENTER), join_wire.decode_farewell),
    (join_wire.encode_admitted(), join_wire.decode_admitted),
    (join_wire.encode_recipe(RECIPE), join_wire.decode_recipe),
    (join_wire.encode_farewell(WANTED), join_wire.decode_farewell),
    (link_wire.encode_hello(LINK), link_wire.decode_hello),
    (
        link_wire.encode(link_wire.Kind.READY),
        lambda data: link_wire.decode_verdict(data, link_wire.Kind.READY),
    ),
]
REFUSAL = join_wire.Refusal(join_wire.Reason.TOKEN, (1,))


def test_messages_read_back() -> None:
    expected = [JOINER, SERVER, PROOF, (bytes(32), STANDING), JOB, ENTER, None, RECIPE, WANTED]
    expected += [LINK, None]
    assert [decode(data) for data, decode in MESSAGES] == expected


def test_a_greeting_reads_back_where_an_enter_was_expected() -> None:
    data = join_wire.encode_farewell(GREETING)
    assert join_wire.decode_farewell(data) == GREETING
    for length in range(len(data)):
        read_or_refuse(join_wire.decode_farewell, data[:length])


def test_refusals_read_back_where_an_answer_was_expected() -> None:
    data = join_wire.encode_refusal(REFUSAL)
    assert join_wire.decode_server_hello(data) == REFUSAL
    assert join_wire.decode_server_proof(data) == REFUSAL
    assert join_wire.decode_admitted(data) == REFUSAL
    link = link_wire.encode_refusal(link_wire.Refusal.FULL)
    assert link_wire.decode_hello(link) is link_wire.Refusal.FULL
    assert link_wire.decode_verdict(link, link_wire.Kind.COMMIT) is link_wire.Refusal.FULL


def test_an_unknown_reason_is_a_refusal_all_the_same() -> None:
    answer = join_wire.decode_admitted(msgpack.packb([8, 99, [1]]))
    assert answer == join_wire.Refusal(join_wire.Reason.PROTOCOL, (1,))


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_no_message_passes_for_another(number: int) -> None:
    data = MESSAGES[number][0]
    for other, (_, decode) in enumerate(MESSAGES):
        if other != number and not (number >= 7) ^ (other >= 7):
            with pytest.raises(RemoteProtocolError):
                decode(data)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_every_single_byte_change_is_read_or_refused(number: int) -> None:
    data, decode = MESSAGES[number]
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
    for _, decode in MESSAGES:
        read_or_refuse(decode, data)


@given(st.integers(0, 9), st.lists(json, max_size=9))
def test_random_values_are_read_or_refused(kind: int, values: list[Any]) -> None:
    data = msgpack.packb([kind, *values])
    for _, decode in MESSAGES:
        read_or_refuse(decode, data)


def test_deep_and_wide_claims_are_refused_cheaply() -> None:
    for data in (b"\xdd\xff\xff\xff\xff", b"\x91" * 5000 + b"\x01", b"\xdc\x00\x20" * 2700):
        for _, decode in MESSAGES:
            with pytest.raises(RemoteProtocolError):
                decode(data)


@pytest.mark.parametrize(
    "address",
    ["", "nothing", "a b:1", "host:0", "host:70000", "ü:1", "x" * 70 + ":1", "::1:x", "a..b:1", 5],
)
def test_addresses_are_checked(address: object) -> None:
    values = [1, 1, 1, bytes(16), bytes(32), 3, "ben", [address]]
    with pytest.raises(RemoteProtocolError):
        link_wire.decode_hello(msgpack.packb(values))


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", "\x1b[2J", "\ud800", 3])
def test_names_are_checked(name: object) -> None:
    values = [1, 1, 1, bytes(16), bytes(32), 3, name, []]
    data = msgpack.packb(values, unicode_errors="surrogatepass")
    with pytest.raises(RemoteProtocolError):
        link_wire.decode_hello(data)


def test_a_job_too_large_for_a_frame_is_cut() -> None:
    job = tuple((f"field {i}", "x" * 4000) for i in range(1000))
    body = join_wire.encode_server_job(job)
    assert len(body) <= 1 << 20
    assert job[: len(join_wire.decode_server_job(body))] == join_wire.decode_server_job(body)


def read_or_refuse(decode: Decode, data: bytes) -> None:
    """Decode, or expect an error of one line; any other exception fails the test."""
    message = ""
    try:
        decode(data)
    except RemoteProtocolError as error:
        message = str(error)
    assert "\n" not in message
