"""The statements of the user's script, so that two devices notice that they run different ones.

Comments, blank lines, layout and docstrings do not count, because they do not change what a script
computes. Each statement, in the order of the files, gives a digest, which other members may see,
and its place and text, which stay on this device to be shown to its user. A script that cannot be
read has no statements, and neither has a job that comes with edgeagent; then nothing is compared.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import os
import sys
import tokenize
from typing import TYPE_CHECKING

from edgeagent.transport.job import MAX_STATEMENTS, SCRIPT_DIGEST_BYTES, Script

if TYPE_CHECKING:
    from collections.abc import Iterator

# The most bytes of one file that are parsed; a longer one is data rather than a program.
MAX_SOURCE_BYTES = 1 << 20
# The most characters of a statement that are shown, so that a place and a text fit on one line.
MAX_TEXT = 60
# The fields of a node of the syntax tree in which a statement keeps the statements it contains.
_BODIES = ("body", "orelse", "finalbody")
# What the path of a package that was installed with pip has in it, even inside the script's folder.
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def script_statements() -> Script:
    """Return the statements of the running script, then those of its own modules.

    Its own modules are those that it has imported from its folder or below. At most
    `MAX_STATEMENTS` are returned; the last stands for all the rest if there are more.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or _is_ours(main):
        return ()
    folder = os.path.dirname(os.path.realpath(main))
    found = statements_of(main, os.path.basename(main))
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(path, str) and _is_own(path, folder):
            found += statements_of(path, os.path.relpath(os.path.realpath(path), folder))
    if len(found) <= MAX_STATEMENTS:
        return tuple(found)
    kept, rest = found[: MAX_STATEMENTS - 1], found[MAX_STATEMENTS - 1 :]
    together = _digest(b"".join(digest for digest, _ in rest).hex())
    return (*kept, (together, f"{rest[0][1]}, or after it"))


def statements_of(path: str, name: str) -> list[tuple[bytes, str]]:
    """Return digest and description of each statement of the file at `path`, shown as `name`.

    There are none if the file is too long, or cannot be read or parsed.
    """
    try:
        if os.path.getsize(path) > MAX_SOURCE_BYTES:
            return []
        with tokenize.open(path) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    texts = [(node.lineno, text) for node, text in _statements(tree)]
    return [(_digest(text), f"{name} line {line}: {_short(text)}") for line, text in texts]


def _statements(tree: ast.AST) -> Iterator[tuple[ast.stmt | ast.ExceptHandler, str]]:
    """Yield each statement below `tree` with its text.

    A statement that contains others gives its first line, such as `if x:`, and then theirs.
    """
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(tree, field, ()):
            if isinstance(node, ast.ExceptHandler):
                yield node, f"except {ast.unparse(node.type) if node.type else ''}:"
            elif isinstance(node, ast.match_case):
                guard = f" if {ast.unparse(node.guard)}" if node.guard else ""
                yield node.body[0], f"case {ast.unparse(node.pattern)}{guard}:"
            elif not _says_nothing(node):
                yield node, _head(node)
            yield from _statements(node)


def _says_nothing(node: ast.stmt) -> bool:
    """Return whether a statement is a lone constant, such as a docstring, and has no effect."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _head(node: ast.stmt) -> str:
    """Return the text of a statement without the statements that it contains."""
    if isinstance(node, ast.Try | ast.TryStar):
        return "try:"
    if isinstance(node, ast.Match):
        return f"match {ast.unparse(node.subject)}:"
    if not hasattr(node, "body"):
        return ast.unparse(node)
    bare = copy.copy(node)
    for field in _BODIES:
        if hasattr(bare, field):
            setattr(bare, field, [ast.Pass()] if field == "body" else [])
    return ast.unparse(bare).removesuffix("pass").rstrip()


def _is_ours(path: str) -> bool:
    """Return whether a file is part of edgeagent."""
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return os.path.realpath(path).startswith(package + os.sep)


def _is_own(path: str, folder: str) -> bool:
    """Return whether a module is the user's: in the script's `folder`, and not installed there."""
    real = os.path.realpath(path)
    if not real.startswith(folder + os.sep) or not real.endswith(".py") or _is_ours(real):
        return False
    return not any(part in real for part in _INSTALLED)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:SCRIPT_DIGEST_BYTES]


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return line if line == text and len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."
