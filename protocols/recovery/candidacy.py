"""When a member stands for election, once its scheduler is lost (protocol.md, 7.3).

Heirs stand in the order of their ids, `ELECTION_STEP_SECONDS` apart, so that usually the first one
has everybody's vote before the second one would stand. A new candidacy voids the votes of the one
before, so whoever has stood or voted leaves that candidate time. Each candidacy in vain doubles
this time and the steps between the heirs, because votes that cross many slow hops would otherwise
always come too late. When fewer heirs are left than before, they stand sooner, and the only one at
once, because it may have been a lost one that refused its vote. `PARTITION_WAIT_SECONDS` after the
loss the votes of members out of reach are no longer needed: then the first heir stands at once,
however long the last wait still is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from protocols.cluster.election import Election


class Candidacy:
    """The moments at which one member stands."""

    def __init__(self, election: Election, *, pauses: bool) -> None:
        """`pauses`: a part without a quorum waits while anything is left to be trained, so no vote
        is done without till then."""
        self.lost_since: float | None = None  # since when the scheduler has been lost
        self._election = election
        self._pauses = pauses
        self._has_all, self._missed_fork, self._at_end = True, False, False
        self._rank = self._heirs = 0
        self._step = limits.ELECTION_STEP_SECONDS  # between two heirs, longer after each in vain
        self._stand_at: float | None = None
        self._waited_at = math.inf  # when to stand because those out of reach are not needed

    @property
    def deadline(self) -> float | None:
        """When to stand, None if the scheduler is not lost."""
        if self._stand_at is None:
            return None
        return self._stand_at if self._waits else min(self._stand_at, self._waited_at)

    @property
    def _waits(self) -> bool:
        """Whether members out of reach are waited for without limit."""
        pauses = self._pauses and not self._missed_fork and not self._at_end
        return pauses or not self._has_all

    @property
    def _wait_s(self) -> float:
        """For how long members out of reach are waited for. After the last update a part that
        pauses has nothing more to wait for than that others may need its result."""
        patient = self._pauses and not self._missed_fork
        return limits.PAUSED_END_SECONDS if patient else limits.PARTITION_WAIT_SECONDS

    def over(self) -> None:
        """There is a scheduler."""
        self.lost_since = self._stand_at = None

    def hopeless(self, now: float) -> None:
        """This member was let go: it waits for those who will say so, and never stands."""
        self._stand_at = None
        self.lost_since = now if self.lost_since is None else self.lost_since

    def lost(
        self,
        now: float,
        rank: int,
        heirs: int,
        *,
        has_all: bool = True,
        missed_fork: bool = False,
        at_end: bool = False,
    ) -> None:
        """The scheduler is lost; this member is number `rank` (from 0) of so many `heirs`.
        `has_all`: together they keep all of the training state. If they do not, they cannot go on
        without the others, so they wait for these however long they are out of reach.
        `missed_fork`: members of a fork in reach wait for this one, and obey it once it stands.
        `at_end`: the last update is in the state here."""
        self._has_all, self._missed_fork, self._at_end = has_all, missed_fork, at_end
        if self._stand_at is not None and heirs < self._heirs:
            turn = (rank + 1) * self._step if heirs > 1 else 0.0
            self._stand_at = min(self._stand_at, now + turn)
        self._rank, self._heirs = rank, heirs
        if self.lost_since is None:
            self.lost_since = now
        if self._stand_at is None:
            turn = rank * limits.ELECTION_STEP_SECONDS
            self._stand_at = now + turn
            self._waited_at = self.lost_since + self._wait_s + turn

    def has_waited(self, now: float) -> bool:
        """Whether members out of reach are waited for no more."""
        since = self.lost_since
        # `deadline` is this sum, too. `now - since` may round to less than the wait at that very
        # moment, and this member would then stand again and again without any time between.
        waits = self._waits or since is None or now < since + self._wait_s
        return not waits

    def leave_time(self, now: float) -> None:
        """This member has stood, or voted for another: the candidate needs time to win."""
        if self._stand_at is None:
            return
        if self.has_waited(now):
            self._waited_at = math.inf
        step = limits.ELECTION_STEP_SECONDS
        vain = max(0, self._election.voted_term - self._election.term - 1)
        most = max(1.0, limits.MOST_ELECTION_SECONDS / (step * max(1, self._heirs)))
        self._step = step = step * min(2.0 ** min(vain, 10), most)
        self._stand_at = now + (self._heirs + self._rank + 1) * step
