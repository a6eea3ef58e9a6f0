"""Every citation of docs/protocol.md names an anchor that it has: a section, invariant, lemma or
history.

A citation is "protocol.md" with a comma and the anchor behind it. The document's own references
(I8, L2, H3) are looked up, too. Wrong citations are planted here, which have to be found.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "protocol.md"
HEADING = re.compile(r"^#{2,3} ([ILH]?\d+(?:\.\d+)?)\.? \S", re.MULTILINE)
CITATION = re.compile(r"(?<!/)protocol\.md(?:,\s+(?:#\s+)?([\w.]*\w))?")
REFERENCE = re.compile(r"\b[ILH]\d+\b")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NO_ANCHOR = "no anchor"


def anchors(document: str) -> list[str]:
    """Return what can be cited, in the order of the document."""
    return HEADING.findall(document)


def unknown(text: str, known: list[str]) -> list[str]:
    """Return the citations in `text` that lead nowhere."""
    found = [match.group(1) or NO_ANCHOR for match in CITATION.finditer(text)]
    return [anchor for anchor in found if anchor not in known]


def sources() -> list[Path]:
    packages = [ROOT / name for name in ("protocols", "edgeagent", "tests")]
    paths = [path for package in packages for path in package.rglob("*.py")]
    return [path for path in paths if path != Path(__file__).resolve()]


def test_every_citation_names_an_anchor() -> None:
    known = anchors(DOCUMENT.read_text(encoding="utf-8"))
    texts = {path: path.read_text(encoding="utf-8") for path in sources()}
    wrong = {str(path): unknown(text, known) for path, text in texts.items()}
    assert {path: found for path, found in wrong.items() if found} == {}
    assert sum(len(CITATION.findall(text)) for text in texts.values()) > 10, "nothing was looked at"


def test_every_anchor_is_there_once() -> None:
    known = anchors(DOCUMENT.read_text(encoding="utf-8"))
    assert len(known) == len(dict.fromkeys(known))
    for kind in "ILH":
        own = [anchor for anchor in known if anchor.startswith(kind)]
        assert own == [f"{kind}{number}" for number in range(1, len(own) + 1)]
        assert own


def test_the_document_refers_to_anchors_of_its_own() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    known = anchors(document)
    text = FENCE.sub("", document)
    sections = re.findall(r"\((?:section )?(\d+(?:\.\d+)?)(?=[,;)])", text)
    assert [name for name in (*REFERENCE.findall(text), *sections) if name not in known] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("freezes (protocol.md, I6).", []),
        ("see docs/protocol.md", []),
        ("freezes (protocol.md, I99).", ["I99"]),
        ("decides (protocol.md,\n    8.77).", ["8.77"]),
        ("# decides (protocol.md,\n# 8.77)", ["8.77"]),
        ("decides (protocol.md, 8.5), and so on (protocol.md, Views)", ["Views"]),
        ("decides, see protocol.md", [NO_ANCHOR]),
    ],
)
def test_a_planted_citation_is_found(text: str, wrong: list[str]) -> None:
    assert unknown(text, anchors(DOCUMENT.read_text(encoding="utf-8"))) == wrong


def test_an_anchor_that_is_gone_is_missed() -> None:
    document = DOCUMENT.read_text(encoding="utf-8").replace("### I6. ", "### ")
    assert unknown("freezes (protocol.md, I6)", anchors(document)) == ["I6"]
