"""What somebody may have meant by a word that is none of those known. There is no I/O here."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_LETTERS = 64  # of a word that is compared; comparing long ones takes long, and nobody mistypes
LIKENESS = 0.6  # of 1; with less, names that have nothing to do with each other are proposed
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)", re.DOTALL)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'status'?` for the known word that is most like `word`, "" if none
    is, or if it is `word` itself."""
    found = closest(word, known)
    return f"; did you mean {found!r}?" if found else ""


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like `word`, however it is capitalised, "" if none is, or
    if it is `word` itself."""
    if len(word) > MOST_LETTERS:
        return ""
    by_small = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(by_small), n=1, cutoff=LIKENESS)
    found = by_small[close[0]] if close else word
    return "" if found == word else found


def explained(message: str) -> str:
    """Return argparse's message, with a suggestion if it is about a word that is no choice."""
    match = _CHOICE.search(message)
    if match is None:
        return message
    return message + did_you_mean(match[1], re.findall(r"[\w-]+", match[2]))
