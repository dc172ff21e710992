"""The report of a run: one HTML file that needs nothing else, for a person to look at.

Python embeds a bounded overview of the folder as JSON, and the scripts of `web/` lay it out. Text that a model wrote
goes through that JSON and then only into text nodes, so it cannot become markup, and the page's own policy allows no
script but those written with it, and no connection to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from rewardsmith.storage import write_atomically
from rewardsmith.viewer.report_examples import read_examples
from rewardsmith.viewer.run_overview import read_overview

STYLES = ("uplot/uPlot.min.css", "page.css")
COMPONENTS = (
    "uplot/uPlot.iife.min.js",
    "elements.js",
    "charts.js",
    "tokens.js",
    "groups.js",
    "trust.js",
    "overview.js",
)
"""The scripts that every page has, in the order in which they run."""


def write_report(folder: Path) -> Path:
    """Write `report.html` for the run in `folder`, whatever state the run is in, and return its path."""
    path = folder / "report.html"
    write_atomically(path, render(digest(folder)))
    return path


def digest(folder: Path) -> dict[str, Any]:
    """Return what a report shows of `folder` as plain JSON values."""
    content = read_overview(folder)
    rollouts = {path.stem[:200]: path for path in (folder / "rollouts").glob("*.jsonl")}
    for stage in content["stages"]:
        stage["rollouts"] = read_examples(rollouts[stage["name"]]) if stage["name"] in rollouts else None
    del content["settings"]  # they are in the recipe
    return content


def web_file(name: str) -> str:
    """Return a file of the pages."""
    return files("rewardsmith.viewer").joinpath("web", *name.split("/")).read_text("utf-8")


def render(content: dict[str, Any]) -> str:
    """Return the page for a digest."""
    style = "\n".join(map(web_file, STYLES))
    script = "\n".join(map(web_file, (*COMPONENTS, "report.js")))
    # A '<' in the data could end the script element that holds it; as an escape it means the same to JSON.
    data = json.dumps(content, allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    blanks = {
        "title": html.escape(content["title"].encode("utf-8", "replace").decode("utf-8").replace("\0", "")),
        "policy": (
            f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
            " base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "script": script,
        "data": data,
    }
    # In one pass: what is filled in is never searched for blanks again.
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: blanks[blank[1]], web_file("report.html"))


def _hash(inline: str) -> str:
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
