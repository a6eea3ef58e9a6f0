"""A hook of MkDocs: what lies outside docs/ is named on the site, but is no link there."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with links to other files of the checkout as names."""
    return _OUTSIDE.sub(
        lambda link: link[1] if link[2] in link[1] else f"{link[1]} (`{link[2]}`)", markdown
    )
