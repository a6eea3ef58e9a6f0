"""Recipes of jobs (`edgeagent/recipe.py`) as values of messages.

What comes from another device is checked here: names of built-in jobs and files, the names of
options and the sizes of everything. Values of options are checked by the parser of the command
line, as if they had been typed.
"""

from __future__ import annotations

import re

from edgeagent.recipe import JOB_OPTIONS, Recipe
from edgeagent.transport import fields
from protocols.errors import RemoteProtocolError

MAX_SCRIPT_BYTES = 256 << 10
MAX_ARGUMENTS = 64
MAX_ARGUMENT_BYTES = 1024
MAX_VALUE_BYTES = 32
_BUILT_IN = re.compile(r"[a-z][a-z0-9-]{0,31}")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}\.py")
_OTHER_NAME = "script.py"  # of a script whose own name would not be taken elsewhere


def of_script(
    name: str, data: bytes, options: tuple[tuple[str, str], ...], arguments: tuple[str, ...]
) -> Recipe | None:
    """Return the recipe of the script `data`, whose file is called `name`; None if it is too long,
    or no text, or has arguments that are."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    recipe = Recipe(name if _SCRIPT.fullmatch(name) else _OTHER_NAME, options, arguments, text)
    try:
        return from_values(values_of(recipe))
    except RemoteProtocolError:
        return None


def values_of(recipe: Recipe | None) -> list[object]:
    """Return the recipe as values of a message, of none as an empty list."""
    if recipe is None:
        return []
    pairs = [list(pair) for pair in recipe.options]
    return [recipe.job, pairs, list(recipe.arguments), recipe.script]


def from_values(values: object) -> Recipe | None:
    """Read what `values_of` has returned elsewhere; raise `RemoteProtocolError` and nothing else
    if it cannot be a recipe."""
    found = fields.array(values, "recipe", 0, 4)
    if not found:
        return None
    job, options, arguments, script = fields.array(found, "recipe", 4, 4)
    name = fields.text(job, "job", 64)
    known = (_BUILT_IN if script is None else _SCRIPT).fullmatch(name)
    if known is None:
        raise RemoteProtocolError("a job's name with forbidden characters")
    pairs = []
    for item in fields.array(options, "options", 0, len(JOB_OPTIONS)):
        option, value = fields.array(item, "option", 2, 2)
        if option not in JOB_OPTIONS:
            raise RemoteProtocolError("an option that is none of the job's")
        pairs.append((str(option), _argument(value, MAX_VALUE_BYTES)))
    words = fields.array(arguments, "arguments", 0, MAX_ARGUMENTS)
    return Recipe(
        name,
        tuple(pairs),
        tuple(_argument(word, MAX_ARGUMENT_BYTES) for word in words),
        None if script is None else fields.text(script, "script", MAX_SCRIPT_BYTES),
    )


def _argument(value: object, size: int) -> str:
    found = fields.text(value, "argument", size)
    if "\0" in found:
        raise RemoteProtocolError("an argument with a zero byte")
    return found
