"""The page of the viewer: its markup, its scripts, and what the browser lets it do."""

from __future__ import annotations

import re

from rewardsmith.viewer.report import COMPONENTS, STYLES, web_file

SCRIPTS = (*COMPONENTS, "source.js", "browse.js", "compare.js", "app.js")
VIEW_STYLES = (*STYLES, "view.css")
PAGE_FILES = (*VIEW_STYLES, *SCRIPTS, "uplot/LICENSE")
"""The files of the page; nothing else of the package can be asked for."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'"
)


def page(*, bundle: bool = False) -> str:
    """Return the markup, for the server or for a bundle."""
    blanks = {
        "policy": POLICY,
        "mode": "bundle" if bundle else "live",
        "styles": "\n".join(f'<link rel="stylesheet" href="web/{name}">' for name in VIEW_STYLES),
        "scripts": "\n".join(f'<script src="web/{name}" defer></script>' for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: blanks[blank[1]], web_file("view.html"))
