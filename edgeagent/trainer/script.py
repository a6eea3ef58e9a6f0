"""The statements of the user's script, so that two devices notice that they run different ones.

Law: comments, blank lines, layout and docstrings do not count. Of each statement, in the order of
the files, there are a digest, which others may see, and its place and text, which stay here. What
cannot be read, and a job of our own, has no statements: then nothing is compared.
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

MAX_SOURCE_BYTES = 1 << 20  # of one file; a longer one is data rather than a program
MAX_TEXT = 60
_BODIES = ("body", "orelse", "finalbody")  # of statements
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def script_statements() -> Script:
    """Return the statements of the running script, then those of its own modules: what it has
    imported from its folder or below."""
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
    """Return the statements of the file at `path`, which is shown as `name`."""
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
    """Yield each statement below `tree` with its text; of one that holds others, its head."""
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
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _head(node: ast.stmt) -> str:
    """Return the text of a statement without those that it holds."""
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
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return os.path.realpath(path).startswith(package + os.sep)


def _is_own(path: str, folder: str) -> bool:
    """Whether a module is the user's: in the folder of the script, and not installed there."""
    real = os.path.realpath(path)
    if not real.startswith(folder + os.sep) or not real.endswith(".py") or _is_ours(real):
        return False
    return not any(part in real for part in _INSTALLED)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:SCRIPT_DIGEST_BYTES]


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return line if line == text and len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."
