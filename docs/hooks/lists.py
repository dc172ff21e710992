"""Lets the pages be written as Markdown that code hosts show: lists indented by their marker, lists right after a line.

Python-Markdown wants four spaces for what belongs to an item of a list, and an empty line before a list or a table.
"""

from __future__ import annotations

import re
from typing import Any

_ITEM = re.compile(r"([-*+]|\d+[.)]) +(?=\S)")
_FENCE = re.compile(r"(`{3,}|~{3,})")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with four spaces for each level of a list, and empty lines where a list or a table begins."""
    out: list[str] = []
    offsets: list[int] = []  # where the text of each open item begins
    fence, previous = "", ""
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        if not text:
            out.append("")
            previous = ""
            continue
        if not fence:
            while offsets and indent < offsets[-1]:
                offsets.pop()
        inside = offsets[-1] if offsets else 0
        shift = " " * (4 * len(offsets) + max(0, indent - inside))
        item = None if fence else _ITEM.match(text)
        starts_list = item and previous and not _ITEM.match(previous)
        starts_table = not fence and text.startswith("|") and previous and not previous.startswith("|")
        if (starts_list and not offsets) or starts_table:
            out.append("")
        out.append(shift + line.strip() if item else shift + line.lstrip())
        if marks := _FENCE.match(text):
            fence = "" if fence and text.startswith(fence) and not text.strip(fence[0]) else fence or marks[1]
        if item and indent - inside < 4:
            offsets.append(indent + len(item[0]))
        previous = text
    return "\n".join(out) + "\n"
