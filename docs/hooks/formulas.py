"""Formulas as MathML, made when the site is built: browsers show it without a script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.S)


def on_page_content(content: str, **_: Any) -> str:
    """Replace what `pymdownx.arithmatex` has marked as LaTeX."""
    return _FORMULA.sub(_mathml, content)


def _mathml(formula: re.Match[str]) -> str:
    """Return a formula, or several that stand side by side, so that a narrow page can break between them."""
    latex = re.sub(r"\\[bB]ig+[lr]?\b", "", html.unescape(formula[2])).replace(r"\tfrac", r"\frac")
    display = "block" if formula[1] == "div" else "inline"
    parts = [convert(part, display=display) for part in re.split(r"(?<=,)\s*\\q?quad\b", latex)]
    return f'<{formula[1]} class="formula">{"".join(parts)}</{formula[1]}>'
