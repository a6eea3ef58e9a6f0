"""The job's fingerprint, and how the difference of two jobs, or of two scripts, is described.

A job is an ordered tuple of (field, value) texts; equal fingerprints mean the same fields with the
same values in the same order. Fields whose names begin with `ABOUT` are not compared; they only
explain a difference (`rounding.py`). Scripts are compared statement by statement. A difference
between scripts is only reported and does not refuse a joiner, because it may be harmless, for
example a line that prints.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

Job = tuple[tuple[str, str], ...]
Script = tuple[tuple[bytes, str], ...]  # (digest of a statement, where it is and what it says)

ABOUT = "about "
SCRIPT_DIGEST_BYTES = 4  # of each statement: enough to notice a difference, and short on the wire
MAX_STATEMENTS = 512
_SHOWN = 120  # letters of a text; the rest is cut off
_LONG = 60  # letters of a value; of a longer one only this many are shown, where it differs
_BEFORE = 16  # letters that are shown before the first that differs
_HASH = re.compile("[0-9a-f]{64}")
JOB_NAME = f"{ABOUT}job"  # the built-in job, or the script without its ending
# The first words of fields that say what is trained. If one of them differs, a batch that differs,
# too, tells the user little.
_TELLING = ("model", "module", "parameter", "buffer", "optimizer", "data", "samples", "sample")
BATCH = ("global batch", "micro batch")  # fields that a newcomer may take from the cluster
ABSENT = "absent"
KIND = "kind"  # the name for what stands before the brackets in a value such as "Adam(lr=0.1)"
UNNAMED = ("optimizer group 0",)  # fields whose settings are clear without the field's name
HASHED = {
    "sample digest": "the data set is another one: the samples that were compared differ",
    "data": "the data set is another one: its content differs",
    "lr_scheduler state": "the schedule (lr_scheduler) is in another state",
    "state layout": "the model's parameters and buffers are others, or in another order",
    "parameters and buffers": "the model's parameters and buffers differ",
    "modules": "the model's modules differ",
}


class Difference(NamedTuple):
    """The first field in which two jobs differ, with both values as they are."""

    field: str
    ours: str
    theirs: str


def length_prefixed(*parts: bytes) -> bytes:
    """Return `parts` joined so that no two different lists give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def job_fingerprint(job: Job) -> bytes:
    """Return the SHA-256 of the job's fields."""
    parts = [text.encode() for pair in compared(job) for text in pair]
    return hashlib.sha256(length_prefixed(*parts)).digest()


def compared(job: Job) -> Job:
    """Return the fields that are compared: all but those that begin with `ABOUT`."""
    return tuple(pair for pair in job if not pair[0].startswith(ABOUT))


def first_difference(ours: Job, theirs: Job) -> Difference | None:
    """Return the first difference in the order of our fields, then of theirs; None if equal. The
    batch comes after what says that another model is trained, or with other data."""
    ours, theirs = compared(ours), compared(theirs)
    known, mine = dict(theirs), dict(ours)
    found = [
        Difference(field, value, known.get(field, ABSENT))
        for field, value in ours
        if known.get(field, ABSENT) != value
    ]
    found += [Difference(field, ABSENT, value) for field, value in theirs if field not in mine]
    if found and found[0].field in BATCH:
        return next((one for one in found if one.field.split()[0] in _TELLING), found[0])
    if found:
        return found[0]
    for (ours_field, _), (theirs_field, _) in zip(ours, theirs, strict=False):
        if ours_field != theirs_field:
            return Difference("order of fields", ours_field, theirs_field)
    return None


def batch_there(ours: Job, theirs: Job) -> tuple[int, int | None] | None:
    """Return their global batch and micro-batch in samples if the two jobs differ in these alone,
    None otherwise. The micro-batch is None if it is a field of neither job."""
    mine, others = dict(compared(ours)), dict(compared(theirs))
    if any(mine.get(f) != others.get(f) for f in (*mine, *others) if f not in BATCH):
        return None
    fields = [field for field in BATCH if field in mine or field in others]
    texts = [others.get(field, "") for field in fields]
    if not all(text.isascii() and text.isdecimal() and len(text) < 10 for text in texts):
        return None
    found = dict(zip(fields, map(int, texts), strict=True))
    size, micro = (found.get(field) for field in BATCH)
    if not size or (micro is not None and (not micro or size % micro)):
        return None
    return size, micro


def names_text(ours: Job, theirs: Job) -> str:
    """Return how the two jobs are called, "job is digits there and text here", if that differs,
    else "". Equal jobs may have different names, since a script can be copied."""
    here, there = dict(ours).get(JOB_NAME), dict(theirs).get(JOB_NAME)
    if here is None or there is None or here == there:
        return ""
    return f"job is {shown(there)} there and {shown(here)} here"


def difference_text(difference: Difference) -> str:
    """Return a difference for people: "lr is 0.001 there and 0.01 here".

    Of several settings in one field only the first that differs is shown, of long values only the
    part around the difference, of hashes nothing. The other device's text is cut and cleaned.
    """
    field, ours, theirs = shown(difference.field), difference.ours, difference.theirs
    if _is_hash(ours) and (_is_hash(theirs) or theirs == ABSENT):
        return HASHED.get(difference.field, f"{field} differs")
    mine, others = _settings(ours), _settings(theirs)
    if mine is not None and others is not None:
        key = next((k for k in (*mine, *others) if mine.get(k) != others.get(k)), None)
        if key is not None:
            what = shown(key) if field in UNNAMED else f"{field}: {shown(key)}"
            there, here = _around(others.get(key, ABSENT), mine.get(key, ABSENT))
            return f"{field if key == KIND else what} is {there} there and {here} here"
    there, here = _around(theirs, ours)
    return f"{field} is {there} there and {here} here"


def script_difference(ours: Script, theirs: bytes) -> str | None:
    """Return where our script differs from one whose statements' digests are `theirs`.

    Returns None if they do not differ or one of the two jobs has no script. Only our own text is
    shown, because the other's is not known: only digests travel.
    """
    if not ours or not theirs:
        return None
    cut = range(0, len(theirs), SCRIPT_DIGEST_BYTES)
    others = [theirs[k : k + SCRIPT_DIGEST_BYTES] for k in cut]
    for (digest, place), other in zip(ours, others, strict=False):
        if digest != other:
            return f"at {shown(place)}"
    if len(ours) == len(others):
        return None
    return f"after {shown(ours[min(len(ours), len(others)) - 1][1])}"


def script_digests(script: Script) -> bytes:
    """Return the digests that another device needs to compare its script with ours."""
    return b"".join(digest for digest, _ in script)


def _is_hash(value: str) -> bool:
    return _HASH.fullmatch(value) is not None


def _settings(value: str) -> dict[str, str] | None:
    """Return the settings in a value such as "Adam(lr=0.1, betas=(0.9, 0.999))" by name.

    What stands before the brackets gets the name `KIND`. Returns None if `value` has no settings.
    """
    head, bracket, inside = value.partition("(")
    if bracket and value.endswith(")") and head.isidentifier():
        found = {KIND: head}
        inside = inside[:-1]
    else:
        found, inside = {}, value
    for part in _parts(inside):
        key, sign, setting = part.partition("=")
        if not sign or not key.strip().isidentifier():
            return {KIND: value} if found else None
        found[key.strip()] = setting.strip()
    return found or None


def _parts(text: str, mark: str = ",") -> list[str]:
    """Split `text` at every `mark` that is outside of all brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def _around(theirs: str, ours: str) -> tuple[str, str]:
    """Return of both texts only what differs: some of their words, or of long texts a part."""
    theirs_words, ours_words = _parts(theirs, " "), _parts(ours, " ")
    if len(theirs_words) == len(ours_words):
        pairs = [(a, b) for a, b in zip(theirs_words, ours_words, strict=True) if a != b]
        if pairs:
            theirs, ours = (" ".join(words) for words in zip(*pairs, strict=True))
    if max(len(theirs), len(ours)) <= _LONG:
        return shown(theirs), shown(ours)
    same = 0
    while same < min(len(theirs), len(ours)) and theirs[same] == ours[same]:
        same += 1
    start = max(0, same - _BEFORE)
    dots = "..." if start else ""
    first, second = (f"{dots}{text[start : start + _LONG]}" for text in (theirs, ours))
    return shown(first), shown(second)


def shown(value: str) -> str:
    """Return a peer's text with unprintable characters replaced, and cut to a bounded length."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in value)
    return clean if len(clean) <= _SHOWN else clean[: _SHOWN - 3] + "..."
