"""The proof of the token: any difference breaks it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.transport.proof import PROOF_BYTES, Role, Transcript, make_proof, proof_is_right

versions = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
short = st.binary(max_size=3)
tokens = st.binary(min_size=16, max_size=16)
transcripts = st.builds(
    Transcript,
    cluster=st.text(max_size=3),
    joiner_versions=versions,
    server_versions=versions,
    version=st.integers(1, 9),
    joiner_job=short,
    server_job=short,
    server_certificate=short,
    joiner_certificate=short,
    joiner_nonce=short,
    server_nonce=short,
)


@given(tokens, transcripts)
def test_the_right_proof_is_accepted(token: bytes, transcript: Transcript) -> None:
    for role in Role:
        proof = make_proof(token, role, transcript)
        assert len(proof) == PROOF_BYTES
        assert proof_is_right(token, role, transcript, proof)


@given(tokens, transcripts)
def test_roles_cannot_be_exchanged(token: bytes, transcript: Transcript) -> None:
    proof = make_proof(token, Role.JOINER, transcript)
    assert not proof_is_right(token, Role.SERVER, transcript, proof)


@given(tokens, tokens, transcripts, transcripts)
def test_equal_proofs_mean_equal_tokens_and_transcripts(
    token: bytes, other_token: bytes, transcript: Transcript, other: Transcript
) -> None:
    proof = make_proof(token, Role.JOINER, transcript)
    same = (token, transcript) == (other_token, other)
    assert proof_is_right(other_token, Role.JOINER, other, proof) == same


@given(tokens, transcripts, st.data())
def test_every_field_counts(token: bytes, transcript: Transcript, data: Any) -> None:
    proof = make_proof(token, Role.SERVER, transcript)
    for field in fields(Transcript):
        value: Any = getattr(transcript, field.name)
        if isinstance(value, bytes):
            other: Any = data.draw(short)
        elif isinstance(value, str):
            other = data.draw(st.text(max_size=3))
        elif isinstance(value, int):
            other = data.draw(st.integers(1, 9))
        else:
            other = data.draw(versions)
        changed = replace(transcript, **{field.name: other})
        assert proof_is_right(token, Role.SERVER, changed, proof) == (other == value)


@given(tokens, transcripts)
def test_bytes_cannot_move_between_neighbouring_fields(
    token: bytes, transcript: Transcript
) -> None:
    one = replace(transcript, joiner_nonce=b"ab", server_nonce=b"c")
    two = replace(transcript, joiner_nonce=b"a", server_nonce=b"bc")
    assert make_proof(token, Role.JOINER, one) != make_proof(token, Role.JOINER, two)


@given(tokens, transcripts, st.integers(0, 8 * PROOF_BYTES - 1))
def test_every_bit_counts(token: bytes, transcript: Transcript, bit: int) -> None:
    proof = bytearray(make_proof(token, Role.JOINER, transcript))
    proof[bit // 8] ^= 1 << bit % 8
    assert not proof_is_right(token, Role.JOINER, transcript, bytes(proof))
