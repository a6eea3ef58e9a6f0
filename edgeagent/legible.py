"""Whether a script reads as it runs, which is what a user who looks at it relies on.

Python ends a line at a lone carriage return, where a terminal does not, and reads a file in the
encoding that a comment in its first two lines names. So what is shown as one comment could run. A
script is therefore passed on to another device only if every character of it is visible, apart from
blanks, tabs and line ends, and only as plain UTF-8.
"""

from __future__ import annotations

import codecs
import io
import tokenize


def flaw(script: str) -> str:
    """Return in which way `script` could run otherwise than it looks, "" if in none."""
    for number, line in enumerate(script.replace("\r\n", "\n").split("\n"), 1):
        for character in line.replace("\t", " "):
            if not character.isprintable():
                return f"line {number} has the invisible character U+{ord(character):04X}"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(script.encode()).readline)
    except SyntaxError:
        return "it names an encoding that Python does not know"
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    return "" if is_utf8 else f"it says that its encoding is {encoding}, not utf-8"
