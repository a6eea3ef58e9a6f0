"""Codes are good once and for a while, bearers until they are betrayed or idle; whose requests
count."""

from __future__ import annotations

import pytest

from edgeagent.page.entrance import (
    CODE_S,
    IDLE_S,
    LOOPBACK,
    MAX_CODES,
    MAX_PAGES,
    Entrance,
    NotLetIn,
    Place,
)


class Door(Entrance):
    """An entrance with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)


def test_a_code_is_good_once_and_its_second_use_closes_the_page() -> None:
    door = Door()
    code, other = door.new_code(), door.new_code()
    bearer = door.enter(code)
    kept = door.enter(other)
    assert door.knows(bearer)
    with pytest.raises(NotLetIn, match="used before"):
        door.enter(code)
    assert not door.knows(bearer)
    assert door.knows(kept)
    with pytest.raises(NotLetIn, match="not valid"):
        door.enter(code)


def test_a_code_ends_with_time() -> None:
    door = Door()
    early, late = door.new_code(), door.new_code()
    door.now = CODE_S
    assert door.knows(door.enter(early))
    door.now += 0.1
    with pytest.raises(NotLetIn, match="no longer"):
        door.enter(late)


def test_a_bearer_ends_when_it_is_not_used() -> None:
    door = Door()
    seen, shut = door.enter(door.new_code()), door.enter(door.new_code())
    for _ in range(3):
        door.now += IDLE_S / 2
        assert door.knows(seen)
    assert not door.knows(shut)
    assert len(door._bearers) == 1, "nothing is kept of it"
    door.now += IDLE_S
    assert door.knows(seen)
    door.now += IDLE_S + 1
    assert not door.knows(seen)
    assert not door._bearers


def test_of_too_many_pages_the_one_that_was_not_used_for_longest_ends() -> None:
    door = Door()
    bearers = [door.enter(door.new_code()) for _ in range(MAX_PAGES)]
    assert door.knows(bearers[0])
    door.enter(door.new_code())
    assert [door.knows(bearer) for bearer in bearers[:3]] == [True, False, True]


@pytest.mark.parametrize("said", ["", "x", "ü\ud800", "a" * 10_000])
def test_what_was_never_given_is_not_let_in(said: str) -> None:
    door = Door()
    bearer = door.enter(door.new_code())
    with pytest.raises(NotLetIn):
        door.enter(said)
    assert not door.knows(said)
    assert door.knows(bearer)
    assert not door.knows(bearer[:-1])


def test_codes_and_pages_are_bounded() -> None:
    door = Door()
    codes = [door.new_code() for _ in range(MAX_CODES + 1)]
    with pytest.raises(NotLetIn):
        door.enter(codes[0])
    bearers = [door.enter(codes[1])]
    bearers += [door.enter(door.new_code()) for _ in range(MAX_PAGES)]
    assert [door.knows(bearer) for bearer in bearers] == [False] + [True] * MAX_PAGES


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:1", True),
        ("[::1]:65535", True),
        ("localhost", True),
        ("", False),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("localhost.evil.example:80", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:80@evil.example", False),
        ("127.0.0.1:8080\n", False),
        ("192.168.1.20:8080", False),
    ],
)
def test_only_names_of_this_device_alone_are_its_own(host: str, own: bool) -> None:
    assert LOOPBACK.is_own_name(host) == own
    assert LOOPBACK.is_own_origin(f"http://{host}", host) == own


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://127.0.0.1:81", "https://127.0.0.1:80"]
)
def test_another_origin_is_not_the_page(origin: str) -> None:
    assert not LOOPBACK.is_own_origin(origin, "127.0.0.1:80")


def test_elsewhere_only_the_printed_address_is_its_own() -> None:
    place = Place("https", "192.168.1.20:7440")
    assert place.is_own_name("192.168.1.20:7440")
    assert place.is_own_origin("https://192.168.1.20:7440", "192.168.1.20:7440")
    assert not place.is_own_origin("http://192.168.1.20:7440", "192.168.1.20:7440")
    for host in ("127.0.0.1:7440", "192.168.1.20", "192.168.1.20:7441", "evil.example:7440", ""):
        assert not place.is_own_name(host)
        assert not place.is_own_origin(f"https://{host}", host)
    assert (place.socket_scheme, LOOPBACK.socket_scheme) == ("wss", "ws")
