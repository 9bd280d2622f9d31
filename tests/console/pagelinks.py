"""Links of pages."""

from __future__ import annotations

import re
from html import unescape


def link_to(text: str, title: str) -> str:
    """Address of the link or button with a title; fails without one."""
    found = re.search(rf'href="([^"]*)"[^>]*>{title}<', text)
    assert found, f"there is a link {title!r}"
    return unescape(found[1])
