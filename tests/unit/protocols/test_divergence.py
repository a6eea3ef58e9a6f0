"""States that differ: which one counts, which members leave, and what is summed again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols import limits
from protocols.effects import Differs, Report
from protocols.errors import RemoteProtocolError
from protocols.events import LeaveWanted, PiecesTaken
from protocols.member.cycle import DIGEST_EVERY
from protocols.rounds import divergence
from protocols.rounds.claims import claim, claimants, merge_claims, read_claims
from protocols.rounds.control_word import EMPTY, ControlWord, bits, decode_word, merge
from protocols.rounds.divergence import PIECE_BYTES, bitmap, differing, first_difference, is_final
from protocols.rounds.word_check import Part, check_part, check_result
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, node_of, reported
from tests.variants import variants

A, B, C = (bytes([n]) * limits.CLAIM_BYTES for n in (1, 2, 3))


def word(*claims: tuple[bytes, int], refusing: tuple[int, ...] = ()) -> ControlWord:
    """Return a word with these (digest, member) claims."""
    whole = b""
    for digest, member in claims:
        whole = merge_claims(whole, claim(digest, member))
    return replace(EMPTY, claims=whole, refusing=bits(refusing))


# --- claims ---------------------------------------------------------------------------------------


def test_claims_of_one_state_take_no_more_room_than_one() -> None:
    one = claim(A, 3)
    both = merge_claims(one, claim(A, 200))
    assert len(one) == len(both)
    assert read_claims(both) == {A: bitmap((3, 200))}
    assert claimants(both) == bitmap((3, 200))
    assert claim(b"", 3) == b""
    assert merge_claims(one, b"") == merge_claims(b"", one) == one


def test_merging_does_not_depend_on_the_order() -> None:
    claims = [claim(B, 0), claim(A, 1), claim(C, 2), claim(A, 3)]
    forward = backward = b""
    for one in claims:
        forward = merge_claims(forward, one)
        backward = merge_claims(one, backward)
    assert forward == backward
    assert list(read_claims(forward)) == [A, B, C]


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        A + bytes(limits.MAX_MEMBERS // 8),
        claim(B, 0) + claim(A, 1),
        claim(A, 0) + claim(A, 1),
        claim(A, 0) + claim(B, 0),
    ],
    ids=["torn", "of nobody", "not in order", "twice", "two of one member"],
)
def test_claims_that_cannot_be_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="claims"):
        read_claims(data)
    with pytest.raises(ValueError, match="claims"):
        replace(EMPTY, claims=data)
    good = replace(EMPTY, claims=claim(A, 0)).encode()
    with pytest.raises(RemoteProtocolError):
        decode_word(good.replace(claim(A, 0), bytes(len(claim(A, 0)))))


def test_a_member_claims_once() -> None:
    with pytest.raises(ValueError, match="one member"):
        merge_claims(claim(A, 0), claim(B, 0))
    with pytest.raises(RemoteProtocolError, match="one member"):
        merge(word((A, 0)), word((A, 0)))


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "refusing", "wrong"),
    [
        ([], (), ()),
        ([(A, 0), (A, 1), (A, 2)], (), ()),
        ([(B, 0), (A, 1), (A, 2)], (), (0,)),
        ([(A, 0), (B, 1), (A, 2), (C, 3)], (), (1, 3)),
        ([(B, 0), (A, 1)], (), (1,)),
        ([(B, 3), (A, 1), (B, 2), (A, 5)], (), (2, 3)),
        ([(B, 0), (A, 1)], (0,), (0,)),
        ([(B, 0), (B, 1), (A, 2)], (0, 1), (0, 1)),
        ([(B, 0), (B, 1), (A, 2)], (0, 1, 2), (2,)),
    ],
)
def test_most_members_are_right_and_those_who_stay_before_those_who_leave(
    claims: list[tuple[bytes, int]], refusing: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    assert differing(word(*claims, refusing=refusing)) == wrong


def test_only_whole_sums_of_one_state_are_final() -> None:
    assert is_final(word((A, 0), (A, 1)), 0)
    assert not is_final(word((A, 0), (B, 1)), 0)


def test_who_refuses_work_or_is_late_takes_nothing_from_whole_sums() -> None:
    """Such an update is applied, so a fence must not have it made again: owners may have published
    results of it in the place of their own sums."""
    assert is_final(word(refusing=(0,)), 0)
    assert is_final(replace(EMPTY, late=bits((0,)), done=bits((0, 1))), 2)


def test_sums_that_lack_a_micro_batch_are_not_kept_although_nobody_refused_it() -> None:
    said = replace(EMPTY, done=bits((0, 1, 3)))
    assert not is_final(said, 4)
    assert is_final(replace(said, done=bits((0, 1, 2, 3))), 4)
    assert is_final(EMPTY, 0)  # a farewell


def test_the_first_piece_that_differs_is_found() -> None:
    mine = bytes(range(4 * PIECE_BYTES))
    assert first_difference(mine, mine) is None
    assert first_difference(mine, mine[:PIECE_BYTES]) is None
    other = bytearray(mine)
    other[2 * PIECE_BYTES] ^= 1
    other[3 * PIECE_BYTES] ^= 1
    assert first_difference(mine, bytes(other)) == 2


def test_a_word_claims_for_those_below_its_sender_and_keeps_what_we_said() -> None:
    part = Part(b"child", members=bitmap((1, 2)), due=None)
    check_part(word((A, 1), (B, 2)), part)
    with pytest.raises(RemoteProtocolError, match="elsewhere in the tree"):
        check_part(word((A, 0)), part)
    full = replace(word((A, 0), (B, 1)), done=bits((0,)))
    check_result(full, word((A, 0)), 1)
    check_result(full, word(), 1)
    with pytest.raises(RemoteProtocolError, match="without our claim"):
        check_result(full, word((B, 0)), 1)
    with pytest.raises(RemoteProtocolError, match="without our claim"):
        check_result(full, word((C, 2)), 1)


# --- in a cluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", variants(range(3), long=range(8)))
@pytest.mark.parametrize("size", [3, 5])
def test_who_has_another_state_goes_and_nothing_of_it_counts(seed: int, size: int) -> None:
    world, hosts = cluster(seed, size=size)
    wrong = hosts[seed % size]
    wrong.slips = True
    world.run(lambda: wrong.gone is not None)
    assert wrong.gone == "diverged"
    go_on(world)  # the oracle knows that the others' states are right
    for host in hosts:
        assert [e["node"] for e in reported(host, "diverged")] == [wrong.me.name]
    assert all(h.gone is None for h in hosts if h is not wrong)


def test_without_the_comparison_the_oracle_sees_wrong_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(divergence, "differing", lambda _word: ())
    world, hosts = cluster(1, size=3)
    hosts[1].slips = True
    with pytest.raises(AssertionError, match="wrong state"):
        go_on(world)


@pytest.mark.parametrize("seed", variants(range(2), long=range(6)))
def test_the_others_need_nobody_to_go_first(seed: int) -> None:
    world, hosts = cluster(seed, size=4)
    wrong = hosts[1 + seed % 3]
    wrong.slips = True
    world.run(lambda: node_of(wrong).context.diverged)
    at = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > at)
    assert wrong.iteration <= at + 1
    assert not node_of(hosts[0]).context.diverged


@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
def test_of_two_the_one_with_the_lower_id_goes_on(seed: int) -> None:
    world, hosts = cluster(seed, size=2)
    first, second = sorted(hosts, key=lambda h: h.me.node)
    second.slips = True
    world.run(lambda: second.gone == "diverged")
    go_on(world)
    assert first.gone is None


@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
def test_two_of_five_may_differ_each_in_its_own_way(seed: int) -> None:
    world, hosts = cluster(seed, size=5)
    for host in hosts[1:3]:
        host.slips = True
    world.run(lambda: all(h.gone == "diverged" for h in hosts[1:3]))
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
def test_a_user_who_leaves_with_another_state_is_told(seed: int) -> None:
    world, hosts = cluster(seed, size=3)
    hosts[1].slips = True
    world.run(lambda: hosts[1].is_wrong)
    hosts[1].handle(LeaveWanted())
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone in ("diverged", "left")  # it may have left before states were compared
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
def test_the_last_update_is_compared_too(seed: int) -> None:
    steps = 40
    world, hosts = cluster(seed, size=3, steps=steps)
    wrong = hosts[seed % 3]
    world.run(lambda: wrong.iteration == steps - 1)
    wrong.slips = True
    world.run(lambda: all(h.gone for h in hosts))
    assert wrong.gone is not None
    assert "differed from that of the others" in wrong.gone
    assert all(h.gone == "steps" for h in hosts if h is not wrong)


@pytest.mark.parametrize("seed", variants(range(2), long=range(6)))
def test_a_join_waits_until_the_members_have_parted(seed: int) -> None:
    world, hosts = cluster(seed, size=3)
    hosts[seed % 3].slips = True
    joiner = world.join(3, hosts[(seed + 1) % 3])
    world.run(lambda: hosts[seed % 3].gone == "diverged")
    world.run(lambda: bool(joiner.joins_failed) or node_of(joiner).context.is_member)
    go_on(world)
    assert not joiner.is_wrong


@pytest.mark.parametrize("seed", variants(range(4), long=range(12)))
def test_a_fence_in_the_middle_changes_nothing(seed: int) -> None:
    world, hosts = cluster(seed, size=5)
    wrong = hosts[seed % 5]
    wrong.slips = True
    world.run(lambda: wrong.is_wrong)
    world.run(lambda: node_of(wrong).context.diverged or seed % 2 == 0)
    world.kill(hosts[(seed + 2) % 5])
    world.run(lambda: wrong.gone is not None)
    go_on(world)


@pytest.mark.parametrize("seed", variants(range(2), long=range(6)))
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_states_that_are_seldom_seen_are_compared_when_they_are(seed: int, keep: int) -> None:
    """The agents of `keep` members see the state only when it may be read, as on a GPU."""
    world, hosts = cluster(seed, size=3)
    for host in hosts[:keep]:
        host.apart = True
    at = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > at + 2 * DIGEST_EVERY)
    assert not any(reported(host, "diverged") for host in hosts)
    wrong = hosts[seed % 3]
    world.run(lambda: (wrong.iteration + 1) % DIGEST_EVERY == 0)
    wrong.slips = True
    world.run(lambda: wrong.gone is not None)
    assert wrong.gone == "diverged"
    go_on(world)
    assert all(h.gone is None for h in hosts if h is not wrong)


def test_a_neighbour_tells_where_the_difference_is() -> None:
    world, hosts = cluster(1, size=2)
    low, high = sorted(hosts, key=lambda h: h.me.node)
    high.slips = True
    found: list[Differs] = []
    perform = high.perform_one

    def watch(effect: object) -> None:
        if isinstance(effect, Differs):
            found.append(effect)
        perform(effect)  # type: ignore[arg-type]  # whatever the node wants

    high.perform_one = watch  # type: ignore[method-assign]  # the test listens
    world.run(lambda: high.gone == "diverged")
    assert [(d.piece, d.mine == d.theirs) for d in found] == [(0, True)]
    assert low.gone is None


def test_what_a_neighbour_tells_of_another_iteration_says_nothing() -> None:
    world, hosts = cluster(1, size=2)
    node = node_of(hosts[1])
    node.context.diverged = True
    at = hosts[1].iteration
    node.replicas.heard(m.StatePieces(at + 1, b"", b""))
    node.replicas.taken(PiecesTaken(at, b"x" * PIECE_BYTES))
    assert not [e for e in node.context.effects if isinstance(e, Differs)]
    assert world.members


def test_who_differs_again_without_beginning_anew_is_parted_from() -> None:
    world, hosts = cluster(3, size=3)
    node, bad = node_of(hosts[0]), hosts[1].me.node
    node.replicas.found((bad,))
    assert bad in node.context.links
    node.replicas.found((bad,))
    assert bad not in node.context.links
    assert any(isinstance(e, Report) for e in node.context.effects)
    assert world.members


def test_only_as_many_lives_are_remembered_as_there_can_be_members() -> None:
    _, hosts = cluster(3, size=2)
    node = node_of(hosts[0])
    for number in range(limits.MAX_MEMBERS + 5):
        node.replicas.found((number.to_bytes(32, "little"),))
    assert len(node.replicas._seen) == limits.MAX_MEMBERS


@pytest.mark.parametrize("seed", range(3))
def test_who_is_alone_with_another_state_goes_too(seed: int) -> None:
    world, hosts = cluster(seed, size=3)
    wrong = hosts[0]
    wrong.slips = True
    world.run(lambda: node_of(wrong).context.diverged)
    for other in hosts[1:]:
        world.kill(other)
    world.run(lambda: wrong.gone is not None)
    assert wrong.gone == "diverged"
