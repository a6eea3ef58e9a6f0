"""The control words of one node's rounds: its own, those that neighbours send, and their sum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.errors import RemoteProtocolError
from protocols.rounds.claims import claimants
from protocols.rounds.control_word import decode_word, merge, naming
from protocols.rounds.word_check import check_part, check_result, check_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.dataplane.held_chunks import HeldChunks
    from protocols.cluster.policy import Policy
    from protocols.rounds.control_word import ControlWord
    from protocols.rounds.round import RoundSpec
    from protocols.rounds.word_check import WordShape


class Words:
    """The words of the running round. `shape` is what words of this job look like; without it they
    are not checked. `policies()` returns the policies whose bodies are stored here, by key. `held`:
    what this node holds, if chunks have holders."""

    def __init__(
        self,
        shape: WordShape | None,
        policies: Callable[[], Mapping[tuple[int, int], Policy]] | None,
        held: HeldChunks | None,
    ) -> None:
        self._shape = shape
        self._policies = policies
        self._held = held
        self.own: ControlWord | None = None  # this node's, once it has contributed
        self.is_idle = False  # no micro-batch is in that
        self._named = (0, 0)  # key of the policy that the sum names if it would name an older one

    def begin(self) -> None:
        """Begin another round."""
        self.own, self.is_idle, self._named = None, False, (0, 0)

    def contribute(self, word: ControlWord) -> None:
        """Take this node's own word of the round."""
        self.own = word
        self.is_idle = not any(word.done)

    def name(self, policy: tuple[int, int]) -> None:
        """Have the sum name the policy with this key, unless it is made already."""
        self._named = policy

    @property
    def lineages(self) -> list[bytes]:
        """The lineages of all policies whose bodies are stored here."""
        stored = self._policies().values() if self._policies is not None else ()
        return [policy.view.lineage for policy in stored]

    @property
    def micro_batches(self) -> int:
        """How many micro-batches an iteration of this job has, 0 if that is not known."""
        return self._shape.micro_batches if self._shape is not None else 0

    def read(
        self, spec: RoundSpec, sender: bytes, data: memoryview, *, is_part: bool, farewell: bool
    ) -> ControlWord:
        """Return the control word that `sender` has sent; raise `RemoteProtocolError` if it is
        none. `is_part`: it came from a child. `farewell`: nothing else is reduced in this round.

        The bytes must be exactly what encoding the word gives, so that equal words have equal
        checksums. A child, too, may send a reduced word, namely when a fence has it spread what was
        reduced along another tree.
        """
        word = decode_word(data)
        if word.encode() != bytes(data):
            raise RemoteProtocolError("a control word in another encoding than the standard one")
        if claimants(word.claims) & spec.silent:
            raise RemoteProtocolError("a claim of a member whose state was found to differ")
        if self._shape is not None:
            check_word(word, self._shape)
            if sender == spec.parent and self.own is not None and not farewell:
                check_result(word, self.own, self._shape.micro_batches)
        for part in spec.parts if is_part else ():
            if part.child == sender:
                check_part(word, part)
        return word

    def of_mine(self, spec: RoundSpec) -> ControlWord | None:
        """Return this node's own word. Where chunks have holders, it also says how large the sums
        are that this node owns, all of which are here by the time it is needed."""
        word = self.own
        if word is None or self._held is None or not spec.is_held or spec.chunks == 1:
            return word
        return replace(word, squares=self._held.squares)

    def merged(self, spec: RoundSpec, base: ControlWord, part: ControlWord) -> ControlWord:
        """Return both words as one; raise `RemoteProtocolError` if the buffers disagree.

        A policy that a child names is only passed on if its body is stored here. So one that a
        member above the scheduler lacks is not named, and the scheduler keeps sending bodies.
        """
        if self._policies is not None and (part.term, part.policy) not in self._policies():
            part = replace(part, term=spec.term, policy=spec.policy)
        whole = merge(base, part)
        if base.agree and not whole.agree:
            raise RemoteProtocolError("its micro-batches left other values in buffers than ours")
        return whole

    def whole(self, word: ControlWord | None) -> ControlWord | None:
        """Return the sum of all words, made here at the root from `word`."""
        return naming(word, self._named) if word is not None else None
