"""Strict reading of msgpack values that came from a peer.

These functions do no I/O. Each returns a value of exactly the asked type and size, or raises
`RemoteProtocolError` and nothing else, because bytes from a peer may be anything.
"""

from __future__ import annotations

from typing import Any

import msgpack

from edgeagent.config import join_address, split_address
from edgeagent.errors import UsageError
from edgeagent.transport.api import PeerInfo
from edgeagent.transport.certificate import node_id
from protocols import limits
from protocols.errors import RemoteProtocolError


def unpack(data: bytes, max_items: int) -> list[Any]:
    """Return the msgpack array that `data` is; arrays inside have at most `max_items` items."""
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_array_len=max_items,
            max_map_len=0,
            max_ext_len=0,
        )
    except Exception as error:  # a parser of hostile bytes may raise anything
        raise RemoteProtocolError(f"malformed message ({type(error).__name__})") from None
    if not isinstance(value, list) or not value:
        raise RemoteProtocolError("message is not a list")
    return value


def pack(*values: object) -> bytes:
    """Return `values` as one msgpack array."""
    packed: bytes = msgpack.packb(values, use_bin_type=True)
    return packed


def shape(values: list[Any], kind: int, length: int) -> list[Any]:
    """Return the values after the kind; raise if the kind differs or they are not `length`."""
    if integer(values[0], "kind", 0, 255) != kind or len(values) != length + 1:
        raise RemoteProtocolError("message out of place")
    return values[1:]


def integer(value: object, what: str, low: int, high: int) -> int:
    """Return an integer from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise RemoteProtocolError(f"{what} is not a number from {low} to {high}")
    return value


def blob(value: object, what: str, low: int, high: int) -> bytes:
    """Return bytes of length `low` to `high`."""
    if type(value) is not bytes or not low <= len(value) <= high:
        raise RemoteProtocolError(f"{what} does not have {low} to {high} bytes")
    return value


def text(value: object, what: str, max_bytes: int) -> str:
    """Return a text of at most `max_bytes` bytes of UTF-8."""
    if type(value) is not str:
        raise RemoteProtocolError(f"{what} is no text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise RemoteProtocolError(f"{what} is not valid UTF-8") from None
    if size > max_bytes:
        raise RemoteProtocolError(f"{what} has more than {max_bytes} bytes")
    return value


def array(value: object, what: str, low: int, high: int) -> list[Any]:
    """Return a list of `low` to `high` items."""
    if type(value) is not list or not low <= len(value) <= high:
        raise RemoteProtocolError(f"{what} does not have {low} to {high} items")
    return value


def name(value: object) -> str:
    """Return a node's name: 1 to `limits.MAX_NAME_BYTES` bytes, printable."""
    found = text(value, "name", limits.MAX_NAME_BYTES)
    if not found or not found.isprintable():
        raise RemoteProtocolError("name is empty or not printable")
    return found


def addresses(value: object) -> tuple[str, ...]:
    """Return at most `limits.MAX_ADDRESSES` HOST:PORT texts."""
    return tuple(_address(item) for item in array(value, "addresses", 0, limits.MAX_ADDRESSES))


def incarnation(value: object) -> int:
    """Return an incarnation number."""
    return integer(value, "incarnation", 0, limits.MAX_INTEGER)


def peer_values(peer: PeerInfo) -> list[object]:
    """Return a `PeerInfo` as message values; its id follows from its certificate."""
    return [peer.incarnation, peer.name, list(peer.addresses), peer.certificate]


def peer_info(value: object) -> PeerInfo:
    """Return a `PeerInfo`. Its certificate's content is checked when it is to be trusted."""
    number, called, where, certificate = array(value, "peer", 4, 4)
    der = blob(certificate, "certificate", 1, limits.MAX_CERTIFICATE_BYTES)
    return PeerInfo(node_id(der), incarnation(number), name(called), addresses(where), der)


def _address(value: object) -> str:
    found = text(value, "address", limits.MAX_ADDRESS_BYTES)
    if not found.isascii() or not found.isprintable() or " " in found:
        raise RemoteProtocolError("address with forbidden characters")
    try:
        host, port = split_address(found)
    except UsageError:
        raise RemoteProtocolError("address is not HOST:PORT") from None
    if port == 0 or join_address(host, port) != found:
        raise RemoteProtocolError("address is not HOST:PORT")
    return found
