"""Elections: never two schedulers in one term, whatever the network does to the messages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.cluster.election import Election, Role
from protocols.errors import LocalProtocolError
from protocols.wire.messages import EVERYONE, Lead, Letter, PassRole, Vote, VoteRequest

from .records import electorates, node

KEY = (1, 1)
VOTERS = electorates(3)
ONE, TWO, THREE, STRANGER = node(1), node(2), node(3), node(9)


def candidate(term: int = 2) -> Election:
    """Return node 1, standing for election in `term`."""
    election = Election(ONE)
    assert len(election.role_passed(PassRole(term), VOTERS, KEY)) == 2
    return election


def votes(
    voter: Election,
    sender: bytes,
    term: int,
    offered: tuple[int, int] = KEY,
    stored: tuple[int, int] = KEY,
    *,
    asked: bool = True,
    content: bool = False,
) -> bool:
    """Return whether `voter`, which has `stored`, votes for `sender`, which has `offered`."""
    request = VoteRequest(term, *offered, asked)
    [(to, answer)] = voter.vote_wanted(sender, request, VOTERS, stored, content=content)
    assert to == sender
    assert isinstance(answer, Vote)
    assert answer.next_term == term
    return answer.granted


def test_the_founder_leads_term_one() -> None:
    assert not Election(ONE).leads
    election = Election(ONE)
    election.found()
    assert election.leads
    assert (election.term, election.scheduler) == (1, ONE)
    with pytest.raises(LocalProtocolError):
        election.found()
    assert not votes(election, TWO, 1)


def test_whoever_is_asked_to_stand_asks_all_others() -> None:
    election = Election(TWO)
    mail = election.role_passed(PassRole(2), VOTERS, (4, 5))
    assert mail == [(ONE, VoteRequest(2, 4, 5, True)), (THREE, VoteRequest(2, 4, 5, True))]
    assert not election.leads
    assert election.term == 0


def test_a_majority_of_votes_wins() -> None:
    election = candidate()
    assert election.vote(TWO, Vote(2, True)) == [(EVERYONE, Lead(2, "rotated"))]
    assert election.leads
    assert (election.term, election.scheduler) == (2, ONE)
    assert election.vote(THREE, Vote(2, True)) == []


def test_alone_one_is_a_majority() -> None:
    election = Election(ONE)
    assert election.role_passed(PassRole(2), electorates(1), KEY) == [
        (EVERYONE, Lead(2, "rotated"))
    ]
    assert election.leads


def test_votes_that_do_not_count() -> None:
    voters, four, five = electorates(5), node(4), node(5)
    election = Election(ONE)
    election.role_passed(PassRole(2), voters, KEY)
    for sender, vote in (
        (THREE, Vote(2, False)),
        (four, Vote(1, True)),
        (five, Vote(3, True)),
        (STRANGER, Vote(2, True)),
        (TWO, Vote(2, True)),
        (TWO, Vote(2, True)),
    ):
        assert election.vote(sender, vote) == []
        assert not election.leads
    assert election.vote(THREE, Vote(2, True)) != []


def test_votes_of_an_earlier_term_do_not_count_in_a_later_one() -> None:
    voters = electorates(5)
    election = Election(ONE)
    election.role_passed(PassRole(2), voters, KEY)
    election.vote(TWO, Vote(2, True))
    election.role_passed(PassRole(3), voters, KEY)
    assert election.vote(THREE, Vote(3, True)) == []
    assert election.vote(TWO, Vote(3, True)) == [(EVERYONE, Lead(3, "rotated"))]


def test_who_has_voted_in_the_term_it_is_offered_stands_in_a_later_one() -> None:
    election = candidate(2)
    asked = [letter for _, letter in election.role_passed(PassRole(2), VOTERS, KEY)]
    assert asked == [VoteRequest(3, *KEY, True)] * 2
    asked = [letter for _, letter in election.role_passed(PassRole(9), VOTERS, KEY)]
    assert asked == [VoteRequest(9, *KEY, True)] * 2


def test_nobody_stands_in_a_past_term_outside_the_view_or_while_it_leads() -> None:
    election = Election(THREE)
    assert election.led(ONE, Lead(4, "rotated"))
    assert election.role_passed(PassRole(4), VOTERS, KEY) == []
    assert Election(STRANGER).role_passed(PassRole(2), VOTERS, KEY) == []
    leader = Election(ONE)
    leader.found()
    assert leader.role_passed(PassRole(2), VOTERS, KEY) == []


def test_a_vote_is_granted_once_a_term() -> None:
    voter = Election(THREE)
    assert votes(voter, ONE, 2)
    assert not votes(voter, TWO, 2)
    assert votes(voter, TWO, 3)
    assert not votes(voter, ONE, 2)


@pytest.mark.parametrize(
    ("offered", "stored", "expected"),
    [
        ((1, 1), (1, 1), True),
        ((1, 2), (1, 1), True),
        ((2, 0), (1, 9), True),
        ((1, 9), (2, 0), False),
    ],
)
def test_a_candidate_must_know_the_voters_newest_policy(
    offered: tuple[int, int], stored: tuple[int, int], expected: bool
) -> None:
    voter = Election(THREE)
    assert votes(voter, ONE, 2, offered, stored) is expected


def test_a_voter_names_its_newest_policy() -> None:
    request = VoteRequest(2, 1, 9, False)
    (letter,) = Election(THREE).vote_wanted(ONE, request, VOTERS, (2, 5), content=False)
    assert letter == (ONE, Vote(2, False, 2, 5))


def test_strangers_neither_vote_nor_are_voted_for() -> None:
    assert not votes(Election(STRANGER), ONE, 2)
    assert not votes(Election(ONE), STRANGER, 2)


def test_a_candidate_that_votes_for_another_stands_no_more() -> None:
    election = candidate(2)
    assert not votes(election, TWO, 2)
    assert election.state is Role.CANDIDATE
    assert votes(election, TWO, 3)
    assert election.vote(THREE, Vote(2, True)) == []
    assert election.vote(THREE, Vote(3, True)) == []
    assert not election.leads


def test_the_scheduler_leads_until_its_successor_has_won() -> None:
    election = Election(ONE)
    election.found()
    assert votes(election, TWO, 2)
    assert election.state is Role.SCHEDULER
    assert election.led(TWO, Lead(2, "rotated"))
    assert not election.leads
    assert (election.term, election.scheduler) == (2, TWO)


def test_only_a_later_term_is_news() -> None:
    election = Election(THREE)
    assert election.led(ONE, Lead(4, "rotated"))
    assert not election.led(TWO, Lead(4, "rotated"))
    assert not election.led(TWO, Lead(3, "rotated"))
    assert (election.term, election.scheduler) == (4, ONE)
    assert not votes(election, TWO, 4)


def test_a_joiner_learns_who_leads() -> None:
    election = Election(THREE)
    election.follow(5, ONE)
    assert (election.term, election.scheduler) == (5, ONE)
    election.follow(4, TWO)
    election.follow(5, TWO)
    assert (election.term, election.scheduler) == (5, ONE)
    assert not votes(election, TWO, 5)


# --- the scheduler is lost ------------------------------------------------------------------------


def test_whoever_loses_the_scheduler_stands_in_the_next_term() -> None:
    election = Election(TWO)
    election.follow(4, ONE)
    mail = election.scheduler_lost(VOTERS, (4, 7), (ONE,))
    assert mail == [(ONE, VoteRequest(5, 4, 7, False)), (THREE, VoteRequest(5, 4, 7, False))]
    assert election.state is Role.CANDIDATE
    assert election.vote(THREE, Vote(5, True)) == [(EVERYONE, Lead(5, "failed over"))]
    assert election.why == "failed over"
    assert election.by_quorum


def test_a_term_that_somebody_stood_for_is_not_stood_for_again() -> None:
    election = Election(TWO)
    election.follow(1, ONE)
    assert not votes(election, THREE, 8, (0, 0))
    [request, _] = [message for _, message in election.scheduler_lost(VOTERS, KEY, ())]
    assert request == VoteRequest(9, *KEY, False)
    again = election.scheduler_lost(VOTERS, KEY, ())  # it has not won, so it stands again
    assert again[0][1] == VoteRequest(10, *KEY, False)
    assert election.vote(ONE, Vote(9, True)) == []
    assert not election.leads


def test_votes_of_the_dead_are_not_waited_for_but_make_no_quorum() -> None:
    election = Election(TWO)
    election.follow(1, ONE)
    assert election.scheduler_lost(VOTERS, KEY, (ONE, THREE)) == [
        (EVERYONE, Lead(2, "failed over"))
    ]
    assert election.leads
    assert not election.by_quorum


def test_whoever_is_not_gone_is_waited_for() -> None:
    voters = electorates(5)
    election = Election(ONE)
    election.scheduler_lost(voters, KEY, (node(3), node(4), node(5)))
    assert not election.leads
    assert election.vote(THREE, Vote(2, False)) == []
    assert election.vote(TWO, Vote(2, True)) == [(EVERYONE, Lead(2, "failed over"))]
    assert not election.by_quorum


def test_the_dead_of_one_candidacy_count_in_the_next_one_only_if_they_still_are() -> None:
    election = Election(TWO)
    election.scheduler_lost(electorates(5), KEY, (ONE, node(4), node(5)))
    election.scheduler_lost(electorates(5), KEY, (ONE,))
    assert election.vote(THREE, Vote(2, True)) == []
    assert not election.leads


def test_whoever_dies_during_a_candidacy_is_not_waited_for() -> None:
    election = Election(TWO)
    voters = electorates(5)
    assert election.voters_lost((ONE,)) == [], "it does not stand"
    election.scheduler_lost(voters, KEY, (ONE,))
    assert election.vote(THREE, Vote(2, True)) == []
    assert election.voters_lost((ONE,)) == [], "that is no news"
    assert election.voters_lost((ONE, node(4))) == []
    assert election.voters_lost((ONE, node(5))) == [(EVERYONE, Lead(2, "failed over"))]
    assert election.leads
    assert election.voters_lost((ONE, node(4))) == []


def test_a_scheduler_does_not_stand_because_it_is_lost() -> None:
    election = Election(ONE)
    election.found()
    assert election.scheduler_lost(VOTERS, KEY, (TWO, THREE)) == []
    assert election.leads


@pytest.mark.parametrize(
    ("asked", "content", "expected"),
    [(True, True, True), (True, False, True), (False, False, True), (False, True, False)],
)
def test_whoever_reaches_the_scheduler_unseats_it_only_if_it_wants_that(
    asked: bool, content: bool, expected: bool
) -> None:
    voter = Election(THREE)
    voter.follow(1, ONE)
    assert votes(voter, TWO, 2, asked=asked, content=content) is expected
    assert voter.seen_term == 2


@dataclass
class Net:
    """Members whose messages are lost and doubled, and overtake each other."""

    size: int
    chance: random.Random
    loss: float
    doubt: float = 0.0  # how likely it is that a voter still reaches the scheduler
    leaders: dict[int, bytes] = field(default_factory=dict)
    mail: list[tuple[bytes, bytes, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.voters = electorates(self.size)
        self.members = {n: Election(n) for n in self.voters[0].nodes}
        for name, member in self.members.items():
            member.found() if name == ONE else member.follow(1, ONE)

    def post(self, sender: bytes, mail: list[Letter]) -> None:
        for to, message in mail:
            everyone = [n for n in self.voters[0].nodes if n != sender]
            self.mail += [(sender, n, message) for n in (everyone if to == EVERYONE else [to])]

    def deliver(self) -> None:
        k = self.chance.randrange(len(self.mail))
        sender, to, message = self.mail[k]
        if self.chance.random() >= self.loss:  # else it stays: it will come a second time
            del self.mail[k]
        if self.chance.random() < self.loss:
            return
        member = self.members[to]
        before = member.term
        match message:
            case PassRole():
                self.post(to, member.role_passed(message, self.voters, KEY))
            case VoteRequest():
                content = self.chance.random() < self.doubt
                mail = member.vote_wanted(sender, message, self.voters, KEY, content=content)
                self.post(to, mail)
            case Vote():
                self.post(to, member.vote(sender, message))
            case Lead():
                member.led(sender, message)
        assert member.term >= before
        self.check()

    def check(self) -> None:
        for name, member in self.members.items():
            if member.leads:
                assert self.leaders.setdefault(member.term, name) == name
                assert member.scheduler == name


@given(st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.3]), st.integers(0, 1 << 32))
def test_there_is_never_a_second_scheduler_in_a_term(size: int, loss: float, seed: int) -> None:
    chance = random.Random(seed)
    net = Net(size, chance, loss)
    net.mail += [
        (ONE, chance.choice(net.voters[0].nodes), PassRole(term))
        for term in range(2, 8)
        for _ in range(3)
    ]
    for _ in range(400):
        if net.mail:
            net.deliver()
    assert net.leaders.get(1, ONE) == ONE


@given(st.integers(2, 5), st.sampled_from([0.0, 0.3]), st.integers(0, 1 << 32))
def test_nor_when_several_stand_because_the_scheduler_is_lost(
    size: int, loss: float, seed: int
) -> None:
    chance = random.Random(seed)
    net = Net(size, chance, loss, doubt=0.2)
    for _ in range(300):
        if chance.random() < 0.05:
            name = chance.choice(net.voters[0].nodes)
            net.post(name, net.members[name].scheduler_lost(net.voters, KEY, ()))
            net.check()
        elif net.mail:
            net.deliver()
    assert all(m.by_quorum for m in net.members.values() if m.leads)


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_the_role_goes_round_when_no_message_is_lost(size: int, chance: random.Random) -> None:
    net = Net(size, chance, 0.0)
    for term in range(2, 6):
        to = chance.choice(net.voters[0].nodes)
        if net.members[to].leads:
            continue
        number = max(m.term for m in net.members.values()) + 1
        net.mail.append((ONE, to, PassRole(number)))
        while net.mail:
            net.deliver()
        assert [n for n, m in net.members.items() if m.leads] == [to]
        assert {(m.term, m.scheduler) for m in net.members.values()} == {(number, to)}
        assert number <= term
