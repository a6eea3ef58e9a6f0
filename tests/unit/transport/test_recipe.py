"""Recipes of jobs: what is told, what is taken, and what hostile ones come to."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.command_line import parse
from edgeagent.errors import UsageError
from edgeagent.recipe import JOB_OPTIONS, Recipe
from edgeagent.transport import recipe_wire
from edgeagent.transport.join_wire import RecipeTold
from edgeagent.transport.recipe_wire import RECIPE, of_script
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

OPTIONS = (("--steps", "500"), ("--wire", "bf16"))
DIGITS = Recipe("digits", OPTIONS)
SCRIPT = Recipe("train.py", OPTIONS, ("--epochs", "5"), "print('ä')\n")


@pytest.mark.parametrize("told", [None, DIGITS, SCRIPT, Recipe("x.py", script="")])
def test_a_recipe_reads_back(told: Recipe | None) -> None:
    assert RECIPE.decode(RECIPE.encode(told)) == told
    assert decode_tagged(encode_tagged(RecipeTold(told)), RecipeTold).recipe == told


@pytest.mark.parametrize(
    "values",
    [
        None,
        [1],
        ["digits", [], [], None, None],
        ["../digits", [], [], None],
        ["Digits", [], [], None],
        ["-digits", [], [], None],
        ["digits.py", [], [], None],
        ["train", [], [], "text"],
        ["../train.py", [], [], "text"],
        ["/train.py", [], [], "text"],
        [".train.py", [], [], "text"],
        ["-train.py", [], [], "text"],
        ["a\n.py", [], [], "text"],
        ["train.py\n", [], [], "text"],
        ["x" * 61 + ".py", [], [], "text"],
        ["digits", [["--listen", "0.0.0.0:1"]], [], None],
        ["digits", [["--steps"]], [], None],
        ["digits", [["--shard-optimizer", "yes"]], [], None],
        ["digits", [["--steps", 5]], [], None],
        ["digits", [["--steps", "5" * 33]], [], None],
        ["digits", [["--steps", "5\0"]], [], None],
        ["digits", [["--steps", "5"]] * (len(JOB_OPTIONS) + 1), [], None],
        ["train.py", [], ["a\0"], "text"],
        ["train.py", [], ["a"] * (recipe_wire.MAX_ARGUMENTS + 1), "text"],
        ["train.py", [], ["a" * (recipe_wire.MAX_ARGUMENT_BYTES + 1)], "text"],
        ["train.py", [], [], "a" * (recipe_wire.MAX_SCRIPT_BYTES + 1)],
        ["train.py", [], [], b"text"],
        ["train.py", [], [], "# nothing\rimport os\n"],
        ["train.py", [], [], "# coding: unicode_escape\n# nothing \\x0aimport os\n"],
        ["train.py", [], [], "#!/usr/bin/python\n# -*- coding: utf-7 -*-\n"],
        ["train.py", [], [], "# coding: nothing-known\n"],
        ["train.py", [], [], "x = 1 \u2028"],
        ["train.py", [], [], "admin = '\u202e'"],
        ["train.py", [], [], "\ufeffx = 1"],
        ["train.py", [], [], "x = '\x1b[2J'"],
    ],
)
def test_what_cannot_be_a_recipe_is_refused(values: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        RECIPE.decode(values)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for bytes_ in (data, msgpack.packb([RecipeTold.TAG, [data]])):
        try:
            decode_tagged(bytes_, RecipeTold)
        except RemoteProtocolError:
            continue


def test_the_largest_script_fits_into_a_frame() -> None:
    words = ("a" * recipe_wire.MAX_ARGUMENT_BYTES,) * recipe_wire.MAX_ARGUMENTS
    largest = Recipe("train.py", OPTIONS, words, "a" * recipe_wire.MAX_SCRIPT_BYTES)
    body = encode_tagged(RecipeTold(largest))
    assert len(body) <= limits.MAX_JOIN_FRAME_BYTES
    assert decode_tagged(body, RecipeTold).recipe == largest


def test_a_script_is_told_under_its_name_or_a_plain_one_or_not_at_all() -> None:
    assert of_script("train.py", b"x = 1", OPTIONS, ("a",)) == Recipe(
        "train.py", OPTIONS, ("a",), "x = 1"
    )
    named = of_script("my train.py", b"x = 1", (), ())
    assert named is not None
    assert named.job == "script.py"
    assert of_script("train.py", b"\xff", (), ()) is None
    assert of_script("train.py", b"# coding: latin-1\n", (), ()) is None
    windows = of_script("train.py", "# coding: utf8\r\nif 1:\r\n\tx = 'ä🙂'\r\n".encode(), (), ())
    assert windows is not None
    assert of_script("train.py", b"x" * (recipe_wire.MAX_SCRIPT_BYTES + 1), (), ()) is None
    assert of_script("train.py", b"x", (), ("a" * 2000,)) is None


def test_the_digest_is_that_of_the_script_and_covers_its_arguments() -> None:
    plain = Recipe("train.py", script="x = 1\n")
    assert plain.digest == hashlib.sha256(b"x = 1\n").hexdigest()
    assert DIGITS.digest == ""
    others = [
        Recipe("train.py", (), words, "x = 1\n") for words in [("a", "b"), ("ab",), ("b", "a")]
    ]
    assert len({plain.digest, *(other.digest for other in others)}) == 4


def test_the_command_line_is_one_that_run_understands() -> None:
    words = SCRIPT.command("/kept/train.py", "--cluster", "lab")
    args = parse(["run", *words])
    assert (args.job, args.steps, args.wire, args.cluster) == ("/kept/train.py", 500, "bf16", "lab")
    assert args.script_arguments == ["--epochs", "5"]
    args = parse(["run", *DIGITS.command("digits")])
    assert (args.job, args.steps, args.script_arguments) == ("digits", 500, [])
    with pytest.raises(UsageError):  # a value that looks like an option is none
        parse(["run", *Recipe("digits", (("--steps", "--listen"),)).command("digits")])
