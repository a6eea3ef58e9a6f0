"""Pairing by a short code: one device gets the token, and guessing, listening and meddling do not.

The machines are driven without sockets, with fixed times and random bytes; the last tests run the
listener and the client over TLS on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.transport import bounds, pairing_wire
from edgeagent.transport.complaints import Complaints
from edgeagent.transport.errors import Unreachable
from edgeagent.transport.identity import load_identity
from edgeagent.transport.join_streams import JoinStream
from edgeagent.transport.pairing import (
    Invitation,
    InviteeEnd,
    InviterEnd,
    Offer,
    PairingRefused,
    State,
    Step,
)
from edgeagent.transport.pairing_client import Invitee
from edgeagent.transport.pairing_code import CODE_DIGITS, PairingCode, new_code, parse_code
from edgeagent.transport.pairing_listener import PairingListener
from edgeagent.transport.pairing_wire import Reason, Refusal
from edgeagent.transport.sockets import listen_pair, told_addresses
from edgeagent.transport.tls import join_server_context, unauthenticated_client_context
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

from .helpers import run

CODE = PairingCode("27", "4819273")
WRONG = PairingCode("27", "4819274")
OFFER = Offer("lab", bytes(range(16)), "alice")
CERTIFICATE = b"c" * 32
EXPIRES = 300.0
VALUES = st.recursive(st.integers(0, 300) | st.binary(), st.lists)


def agrees(cluster: str, inviter: str) -> None:
    assert (cluster, inviter) == ("lab", "alice")


def invitation(seed: int = 1) -> Invitation:
    return Invitation(CODE, OFFER, CERTIFICATE, EXPIRES, random.Random(seed).randbytes)


def invitee(
    code: PairingCode = CODE,
    certificate: bytes = CERTIFICATE,
    agree: Callable[[str, str], None] = agrees,
    seed: int = 2,
) -> InviteeEnd:
    return InviteeEnd(code, certificate, "bob", agree, random.Random(seed).randbytes)


def talk(inviter: InviterEnd, guest: InviteeEnd, now: float = 0.0) -> list[bytes]:
    """Let both ends talk until one has nothing to say; return all frames."""
    frames = [guest.hello]
    while True:
        answer = inviter.receive(now, frames[-1])
        if not answer:
            return frames
        frames.append(answer)
        reply = guest.receive(answer) or guest.stored()
        frames.append(reply)


def refusal(inviter: InviterEnd, guest: InviteeEnd, now: float = 0.0) -> Reason:
    """Return the reason for which the inviter refuses."""
    with pytest.raises(PairingRefused) as refused:
        talk(inviter, guest, now)
    assert inviter.step is Step.REFUSED
    assert guest.offer is None
    return refused.value.reason


# --- the code -------------------------------------------------------------------------------------


@given(st.integers(0, 99), st.integers(0, 10**7 - 1))
def test_a_code_is_read_as_it_was_written(channel: int, secret: int) -> None:
    numbers = iter((channel, secret))
    code = new_code(lambda _: next(numbers))
    assert parse_code(code.text) == code
    assert parse_code(f" {code.text.replace('-', ' ')} ") == code
    assert sum(c.isdigit() for c in code.text) == CODE_DIGITS


@given(st.integers(0, 10**9 - 1), st.integers(0, 9), st.integers(1, 9))
def test_one_wrong_digit_is_found_before_it_costs_an_attempt(
    number: int, place: int, added: int
) -> None:
    digits = f"{number:09}"
    text = PairingCode(digits[:2], digits[2:]).text.replace("-", "")
    typo = (int(text[place]) + added) % 10
    with pytest.raises(UsageError, match="typo"):
        parse_code(f"{text[:place]}{typo}{text[place + 1 :]}")


@pytest.mark.parametrize("text", ["", "27", "27-4819-273", "27-4819-27301", "ab-cdef-ghij", "²7"])
def test_what_is_no_code(text: str) -> None:
    with pytest.raises(UsageError, match="a code has 10 digits"):
        parse_code(text)


def test_codes_of_a_fresh_start_differ_and_stay_out_of_traces() -> None:
    assert len({new_code().text for _ in range(50)}) > 40
    assert CODE.secret not in repr(CODE)
    assert repr(OFFER) == "Offer(cluster='lab', inviter='alice')"


# --- the machines ---------------------------------------------------------------------------------


def test_the_right_code_brings_the_token_once() -> None:
    asked = invitation()
    inviter, guest = asked.connect(), invitee()
    frames = talk(inviter, guest)
    assert guest.offer == OFFER
    assert (inviter.step, inviter.invitee) == (Step.DONE, "bob")
    assert asked.state(0.0) is State.USED
    assert not any(OFFER.token in frame or b"lab" in frame for frame in frames), "all is sealed"
    assert all(len(frame) <= bounds.MAX_PAIRING_BYTES for frame in frames)
    assert refusal(asked.connect(), invitee(seed=3)) is Reason.OVER


def test_three_wrong_codes_void_it_for_the_right_one_too() -> None:
    asked = invitation()
    for wrong in range(bounds.PAIRING_WRONG_TRIES):
        assert asked.state(0.0) is State.OPEN
        assert refusal(asked.connect(), invitee(WRONG, seed=wrong)) is Reason.CODE
    assert asked.state(0.0) is State.VOID
    assert refusal(asked.connect(), invitee()) is Reason.OVER


def reason_of(answer: bytes) -> Reason:
    """Return why the inviter refuses."""
    return decode_tagged(answer, Refusal).reason


def test_guesses_begun_together_are_counted_together() -> None:
    asked = invitation()
    ends = [(asked.connect(), invitee(WRONG, seed=n)) for n in range(10)]
    proofs = [guest.receive(end.receive(0.0, guest.hello)) for end, guest in ends]
    answers = [end.receive(0.0, proof) for (end, _), proof in zip(ends, proofs, strict=True)]
    reasons = [reason_of(answer) for answer in answers]
    assert reasons == [Reason.CODE] * 3 + [Reason.OVER] * 7


def test_who_gives_up_before_a_guess_is_shown_costs_no_attempt_but_has_an_end() -> None:
    asked = invitation()
    for n in range(bounds.MAX_PAIRINGS_BEGUN):
        asked.connect().receive(0.0, invitee(seed=n).hello)
    assert (asked.wrong, asked.state(0.0)) == (0, State.OPEN)
    assert refusal(asked.connect(), invitee()) is Reason.OVER
    assert asked.state(0.0) is State.VOID


@pytest.mark.parametrize("late_at", range(3))
def test_a_code_expires_in_the_middle_of_a_pairing(late_at: int) -> None:
    asked, guest = invitation(), invitee()
    inviter, body = asked.connect(), guest.hello
    for step in range(3):
        now = EXPIRES if step == late_at else EXPIRES - 1
        answer = inviter.receive(now, body)
        if step == late_at:
            assert reason_of(answer) is Reason.OVER
            assert asked.state(now) is State.EXPIRED
            return
        body = guest.receive(answer)


def test_a_third_device_with_the_code_is_told_to_wait_and_may_try_if_the_first_is_gone() -> None:
    asked = invitation()
    first, guest = asked.connect(), invitee()
    first.receive(0.0, guest.receive(first.receive(0.0, guest.hello)))
    assert refusal(asked.connect(), invitee(seed=3)) is Reason.BUSY
    first.closed()
    talk(asked.connect(), invitee(seed=4))
    assert asked.state(0.0) is State.USED


def test_who_went_away_after_the_token_was_sent_has_used_the_code() -> None:
    asked, guest = invitation(), invitee()
    inviter = asked.connect()
    body = guest.hello
    for _ in range(3):
        body = guest.receive(inviter.receive(0.0, body))
    inviter.closed()
    assert asked.state(0.0) is State.USED
    assert inviter.step is Step.STORED


def test_another_clusters_name_is_declined_before_the_token_is_sent() -> None:
    def declines(cluster: str, inviter: str) -> None:
        raise EdgeAgentError(f"{cluster} is not wanted")

    asked = invitation()
    inviter, guest = asked.connect(), invitee(agree=declines)
    with pytest.raises(EdgeAgentError, match="lab is not wanted"):
        talk(inviter, guest)
    inviter.closed()
    assert asked.state(0.0) is State.OPEN
    talk(asked.connect(), invitee(seed=3))


def test_a_device_in_the_middle_shows_another_certificate_and_gets_nothing() -> None:
    asked = invitation()
    assert refusal(asked.connect(), invitee(certificate=b"m" * 32)) is Reason.CODE
    assert asked.wrong == 1


def test_a_recording_of_a_pairing_is_of_no_use() -> None:
    asked = invitation()
    recorded = talk(asked.connect(), invitee())
    again = Invitation(CODE, OFFER, CERTIFICATE, EXPIRES, random.Random(9).randbytes)
    end = again.connect()
    assert end.receive(0.0, recorded[0]), "the hello of a recording is as good as any"
    assert reason_of(end.receive(0.0, recorded[2])) is Reason.CODE
    guest = invitee(seed=9)
    guest.receive(recorded[1])
    with pytest.raises(RemoteProtocolError, match="could not prove"):
        guest.receive(recorded[3])


def test_frames_sent_back_to_their_sender_are_refused() -> None:
    guest = invitee()
    message = decode_tagged(guest.hello, pairing_wire.Hello).pake
    for side in (message, b"A" + message[1:]):
        back = encode_tagged(pairing_wire.Answer(1, side))
        with pytest.raises(RemoteProtocolError, match="unusable PAKE message"):
            invitee().receive(back)
    inviter, guest = invitation().connect(), invitee()
    proof = guest.receive(inviter.receive(0.0, guest.hello))
    own = encode_tagged(
        pairing_wire.Grant(decode_tagged(proof, pairing_wire.Confirm).proof, bytes(16))
    )
    with pytest.raises(RemoteProtocolError, match="could not prove"):
        guest.receive(own)


def test_other_channels_and_versions_are_refused_without_a_count() -> None:
    asked = invitation()
    assert refusal(asked.connect(), invitee(PairingCode("28", CODE.secret))) is Reason.CHANNEL
    hello = decode_tagged(invitee().hello, pairing_wire.Hello)
    newer = encode_tagged(replace(hello, versions=(2,)))
    answer = asked.connect().receive(0.0, newer)
    assert reason_of(answer) is Reason.VERSION
    assert asked.wrong == 0


@cache
def frames_of_a_pairing() -> tuple[list[bytes], list[bytes]]:
    """Return what the invitee sends, and what the inviter sends, in order."""
    frames = talk(invitation().connect(), invitee())
    return frames[::2], frames[1::2]


@settings(max_examples=40)  # each costs a key or two, about 10 ms
@given(st.integers(0, 3), st.integers(0, 2000), st.integers(0, 255), st.booleans())
def test_changed_and_cut_frames_break_the_inviters_end_only_in_the_known_way(
    which: int, place: int, value: int, cuts: bool
) -> None:
    asked = invitation()
    inviter = asked.connect()
    sent, _ = frames_of_a_pairing()
    for frame in sent[:which]:
        inviter.receive(0.0, frame)
    frame, at = sent[which], place % len(sent[which])
    bad = frame[:at] if cuts else frame[:at] + bytes([value]) + frame[at + 1 :]
    if bad == frame:
        return
    try:
        answer = inviter.receive(0.0, bad)
    except RemoteProtocolError:
        return
    wrong = answer[1:2] == bytes([Refusal.TAG])
    assert wrong or which == 0, "only another hello may go unnoticed at first"
    assert asked.state(0.0) is not State.USED


@settings(max_examples=40)
@given(st.integers(0, 2), st.integers(0, 2000), st.integers(0, 255))
def test_changed_frames_never_bring_the_invitee_a_token(which: int, place: int, value: int) -> None:
    guest = invitee()
    _, sent = frames_of_a_pairing()
    at = place % len(sent[which])
    bad = sent[which][:at] + bytes([value]) + sent[which][at + 1 :]
    if bad == sent[which]:
        return
    with contextlib.suppress(RemoteProtocolError, PairingRefused):
        for frame in [*sent[:which], bad, *sent[which + 1 :]]:
            guest.receive(frame)
    assert guest.offer is None


@given(st.binary(max_size=64) | VALUES.map(msgpack.packb))
def test_any_bytes_lead_to_the_known_error_only(body: bytes) -> None:
    for receive in (lambda b: invitation().connect().receive(0.0, b), invitee().receive):
        with pytest.raises((RemoteProtocolError, PairingRefused)):
            receive(body)


def test_frames_out_of_their_order_are_refused() -> None:
    sent, answers = frames_of_a_pairing()
    for frame in sent[1:]:
        with pytest.raises(RemoteProtocolError):
            invitation().connect().receive(0.0, frame)
    for frame in answers[1:]:
        with pytest.raises(RemoteProtocolError):
            invitee().receive(frame)
    with pytest.raises(ValueError, match="no token has come"):
        invitee().stored()


def test_each_kind_of_seal_has_a_key_of_its_own() -> None:
    inviter, guest = invitation().connect(), invitee()
    ready = guest.receive(inviter.receive(0.0, guest.receive(inviter.receive(0.0, guest.hello))))
    token = inviter.receive(0.0, ready)
    sealed = decode_tagged(token, pairing_wire.Token).sealed
    with pytest.raises(RemoteProtocolError, match="changed"):
        inviter.receive(0.0, encode_tagged(pairing_wire.Stored(sealed)))


# --- over TLS -------------------------------------------------------------------------------------


class Pairing:
    """A listener on loopback and the devices that come to it."""

    def __init__(self, folder: Path, seconds: float = 60.0) -> None:
        self.lines: list[str] = []
        self.stored: list[Offer] = []
        sockets = listen_pair("127.0.0.1:0")
        for spare in sockets.peer:
            spare.close()
        (self.address,) = told_addresses(sockets.join)
        self.complaints = Complaints(self.lines.append)
        self.listener = PairingListener(
            sockets.join,
            load_identity(str(folder)),
            CODE,
            OFFER,
            seconds,
            self.lines.append,
            self.complaints,
        )
        self.task = asyncio.create_task(self.listener.run())

    def guest(self, code: PairingCode = CODE) -> Invitee:
        return Invitee(code, "bob", agrees, self.stored.append)

    async def end(self) -> State:
        state = await self.task
        self.complaints.close()
        return state


def test_two_devices_pair_over_tls_after_a_wrong_code(tmp_path: Path) -> None:
    async def main() -> None:
        pairing = Pairing(tmp_path)
        with pytest.raises(EdgeAgentError, match="the code is wrong"):
            await pairing.guest(WRONG).pair_with(pairing.address)
        assert await pairing.guest().pair_with(pairing.address) == OFFER
        assert await pairing.end() is State.USED
        listener = pairing.listener
        assert (listener.invitee, listener.host, listener.stored) == ("bob", "127.0.0.1", True)
        assert pairing.stored == [OFFER]
        assert pairing.lines == [
            "a device at 127.0.0.1 tried a wrong code (1 of 3, then it is void)"
        ]
        with pytest.raises(Unreachable):
            await pairing.guest().pair_with(pairing.address)

    run(main)


@pytest.mark.parametrize("last_words", [b"", b"\x92\xa1x\xa1y"])
def test_who_poses_as_the_inviter_sees_one_proof(tmp_path: Path, last_words: bytes) -> None:
    """However many addresses it announces, and whatever it says once it has tested its guess."""
    seen: list[bytes] = []

    async def pose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = JoinStream(reader, writer)
        end = invitation().connect()
        await stream.write(end.receive(0.0, await stream.read(bounds.MAX_PAIRING_BYTES)))
        seen.append(await stream.read(bounds.MAX_PAIRING_BYTES))
        if last_words:
            await stream.write(last_words)
        await stream.close()

    async def main() -> None:
        context = join_server_context(load_identity(str(tmp_path)))
        server = await asyncio.start_server(pose, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        guest = Invitee(WRONG, "bob", agrees, lambda _: None)
        with pytest.raises(Unreachable):
            await guest._try(("127.0.0.1:1", *(f"127.0.0.1:{port}" for _ in range(5))))
        assert len(seen) == 1
        server.close()
        await server.wait_closed()

    run(main)


def test_a_token_that_cannot_be_kept_is_not_reported_as_kept(tmp_path: Path) -> None:
    def full(offer: Offer) -> None:
        raise UsageError("the disk is full")

    async def main() -> None:
        pairing = Pairing(tmp_path)
        with pytest.raises(UsageError, match="the disk is full"):
            await Invitee(CODE, "bob", agrees, full).pair_with(pairing.address)
        assert await pairing.end() is State.USED
        assert not pairing.listener.stored

    run(main)


def test_an_unused_code_ends_the_wait_when_it_expires(tmp_path: Path) -> None:
    async def main() -> None:
        assert await Pairing(tmp_path, seconds=0.05).end() is State.EXPIRED

    run(main)


def test_strangers_cost_a_line_and_leave_the_code_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        pairing = Pairing(tmp_path)
        host, port = pairing.address.split(":")
        for said in (b"\xff\xff\xff\xff", (bounds.MAX_PAIRING_BYTES + 1).to_bytes(4, "big"), b""):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=unauthenticated_client_context(), server_hostname=""
            )
            writer.write(said)
            writer.write_eof() if writer.can_write_eof() else None
            if said:
                assert await reader.read() == b""
            writer.close()
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await pairing.guest().pair_with(pairing.address) == OFFER
        writer.close()
        assert await pairing.end() is State.USED
        assert any("broke the pairing" in line for line in pairing.lines)

    run(main)


def test_an_agent_is_no_inviter(tmp_path: Path) -> None:
    async def main() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match=r"closed the connection|cannot be reached"):
            await Invitee(CODE, "bob", agrees, lambda _: None).pair_with(f"127.0.0.1:{port}")
        server.close()
        await server.wait_closed()

    run(main)
