"""Policies that are named where the control word is summed, as the agent's reducer has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import effects
from protocols.rounds import control_word

if TYPE_CHECKING:
    from protocols.rounds.control_word import ControlWord
    from tests.simulation.host import Host, Reduce


def perform(host: Host, effect: effects.HoldWord | effects.NamePolicy) -> None:
    """Perform `effect` in the round that `host` runs."""
    reduce = host.reduce
    assert reduce is not None
    match effect:
        case effects.HoldWord():
            reduce.round.hold_word()
        case effects.NamePolicy(policy):
            reduce.named = policy
            host.drive(reduce.round.release_word())


def summed(reduce: Reduce, word: ControlWord) -> ControlWord:
    """Return the sum of all words, made here from `word`."""
    return control_word.naming(word, reduce.named)
