"""Recipes of jobs (`edgeagent/recipe.py`) as a kind of field.

What comes from another device is checked here: names of built-in jobs and files, the names of
options and the sizes of everything. Values of options are checked by the parser of the command
line, as if they had been typed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeagent.legible import flaw
from edgeagent.recipe import FLAGS, JOB_OPTIONS, Recipe
from protocols.errors import RemoteProtocolError
from protocols.wire.fields import Many, Row, Text

MAX_SCRIPT_BYTES = 256 << 10
MAX_ARGUMENTS = 64
MAX_ARGUMENT_BYTES = 1024
MAX_VALUE_BYTES = 32
_BUILT_IN = re.compile(r"[a-z][a-z0-9-]{0,31}")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}\.py")
_OTHER_NAME = "script.py"  # of a script whose own name would not be taken elsewhere


@dataclass(frozen=True, slots=True)
class _Argument:
    """A word of a command line: text of at most `largest` bytes without a zero byte."""

    largest: int

    def encode(self, value: str) -> str:
        return value

    def decode(self, raw: object) -> str:
        found = Text(self.largest, printable=False).decode(raw)
        if "\0" in found:
            raise RemoteProtocolError("an argument with a zero byte")
        return found


_JOB = Text(64)
_OPTIONS = Many(Row(Text(), _Argument(MAX_VALUE_BYTES)), len(JOB_OPTIONS))
_ARGUMENTS = Many(_Argument(MAX_ARGUMENT_BYTES), MAX_ARGUMENTS)
_SCRIPT_TEXT = Text(MAX_SCRIPT_BYTES, printable=False)


@dataclass(frozen=True, slots=True)
class _RecipeKind:
    """A recipe as `[job, options, arguments, script]`, where the script of a built-in job is None;
    no recipe is an empty array."""

    def encode(self, value: Recipe | None) -> list[object]:
        if value is None:
            return []
        options, arguments = _OPTIONS.encode(value.options), _ARGUMENTS.encode(value.arguments)
        return [value.job, options, arguments, value.script]

    def decode(self, raw: object) -> Recipe | None:
        if raw == []:
            return None
        if type(raw) is not list or len(raw) != 4:
            raise RemoteProtocolError("expected a recipe")
        job, options, arguments, script = raw
        name = _JOB.decode(job)
        if (_BUILT_IN if script is None else _SCRIPT).fullmatch(name) is None:
            raise RemoteProtocolError("a job's name with forbidden characters")
        pairs = _OPTIONS.decode(options)
        if any(option not in JOB_OPTIONS for option, _ in pairs):
            raise RemoteProtocolError("an option that is none of the job's")
        if any(value for option, value in pairs if option in FLAGS):
            raise RemoteProtocolError("a flag with a value")
        text = None if script is None else _SCRIPT_TEXT.decode(script)
        if text is not None and (hides := flaw(text)):
            raise RemoteProtocolError(f"a script that could run otherwise than it looks: {hides}")
        return Recipe(name, pairs, _ARGUMENTS.decode(arguments), text)


RECIPE = _RecipeKind()


def of_script(
    name: str, data: bytes, options: tuple[tuple[str, str], ...], arguments: tuple[str, ...]
) -> Recipe | None:
    """Return the recipe of the script `data`, whose file is called `name`; None if it is too long,
    or no text, or could run otherwise than it looks (`legible.py`), or has arguments that are too
    long."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    recipe = Recipe(name if _SCRIPT.fullmatch(name) else _OTHER_NAME, options, arguments, text)
    try:
        return RECIPE.decode(RECIPE.encode(recipe))
    except RemoteProtocolError:
        return None
