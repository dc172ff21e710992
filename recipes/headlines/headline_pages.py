"""Tables in Markdown and figures in SVG from the summaries of a claim; both follow from the files alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from headline_claims import CLAIMS, Claim, Column, Form, Panel
from headline_results import Mean, Seed, band, curve_of, difference, mean, read, value_of

HERE = Path(__file__).resolve().parent
PICTURES = HERE.parents[1] / "docs" / "pictures"
PAGES = (*sorted(HERE.glob("*.md")), HERE.parents[1] / "docs" / "headlines.md")
"""Files with blocks such as `<!-- results: rrm -->` … `<!-- end of results -->`, whose content this module writes."""

_BLOCK = re.compile(r"(<!-- results: ([a-z_]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

Row = tuple[str, ...]


def write_pages(results: Path, pages: Sequence[Path] = PAGES, pictures: Path = PICTURES) -> list[Path]:
    """Write the tables into the pages and the figures into their folder; return the files that changed."""
    seeds = {name: read(results, name) for name in CLAIMS}
    changed = []
    for page in pages:
        changed += _replaced(
            page, with_results(page.read_text(encoding="utf-8"), seeds, os.path.relpath(pictures, page.parent))
        )
    for name, claim in CLAIMS.items():
        if drawing := figure(claim, seeds[name]):
            pictures.mkdir(parents=True, exist_ok=True)
            changed += _replaced(pictures / picture_of(name), drawing)
    return changed


def _replaced(file: Path, text: str) -> list[Path]:
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return []
    file.write_text(text, encoding="utf-8")
    return [file]


def with_results(text: str, seeds: Mapping[str, Sequence[Seed]], pictures: str) -> str:
    """Return a page with the results of each claim that it has a block for."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        return f"{match[1]}{results_block(name, CLAIMS[name], seeds[name], pictures)}\n{match[3]}"

    return _BLOCK.sub(block, text)


def picture_of(name: str) -> str:
    """Return the file name of a figure."""
    return f"headlines_{name}.svg"


# ---- tables --------------------------------------------------------------------------------------------------------


def results_block(name: str, claim: Claim, seeds: Sequence[Seed], pictures: str) -> str:
    """Return tables, figure and how they were made, in Markdown."""
    command = f"python recipes/headlines/headlines.py {name}"
    if not seeds:
        return f"**Not measured yet.** The command: `{command}`"
    parts = []
    if claim.arms:
        parts.append(markdown(*arms_table(claim, seeds)))
    if claim.evaluations:
        parts.append(markdown(*evaluations_table(claim, seeds)))
    if figure(claim, seeds):
        parts.append(f"![{claim.title}: a curve for each arm]({pictures}/{picture_of(name)})")
    parts.append(_made(command, seeds))
    return "\n\n".join(parts)


def arms_table(claim: Claim, seeds: Sequence[Seed]) -> tuple[Row, list[Row]]:
    """Return the headings and a row for the start and for each arm."""
    columns = [column for column in claim.columns if _measured(claim, column, seeds)]
    headings = ("arm", *(column.heading for column in columns), f"{claim.compared.heading}: difference, from")
    rows = []
    for arm, title in {"start": "before RL", **claim.arms}.items():
        cells = [cell(mean(value_of(claim, arm, column, one) for one in seeds), column.form) for column in columns]
        missing = [one for one in seeds if arm != "start" and arm not in one.stages]
        note = f" ({len(seeds) - len(missing)} of {len(seeds)} seeds)" if missing else ""
        rows.append((title + note, *cells, _apart(claim, arm, seeds)))
    return headings, rows


def _apart(claim: Claim, arm: str, seeds: Sequence[Seed]) -> str:
    """Return the difference of an arm from the one it is compared with."""
    other = claim.other(arm)
    apart = difference(claim, arm, seeds) if arm in claim.arms and arm != other else None
    return f"{cell(apart, claim.compared.form, sign=True)}, {claim.arms[other]}" if apart else ""


def _measured(claim: Claim, column: Column, seeds: Sequence[Seed]) -> bool:
    return any(value_of(claim, arm, column, one) is not None for arm in ("start", *claim.arms) for one in seeds)


def evaluations_table(claim: Claim, seeds: Sequence[Seed]) -> tuple[Row, list[Row]]:
    """Return the headings and a row for each evaluation of a trained judge or ranker."""
    columns = claim.evaluation_columns
    headings = ("model", *(column.heading for column in columns))
    rows = [
        (title, *(cell(mean(one.value(stage, column.key) for one in seeds), column.form) for column in columns))
        for stage, title in claim.evaluations.items()
    ]
    return headings, rows


FORMS: dict[Form, tuple[int, int, str]] = {
    "share": (100, 1, " %"),
    "number": (1, 3, ""),
    "tokens": (1, 1, ""),
    "count": (1, 0, ""),
}
"""Factor, digits behind the point, and unit."""


def cell(one: Mean | None, form: Form, *, sign: bool = False) -> str:
    """Return a mean with half of its interval: `62.1 ± 3.0 %`; nothing where there is no value."""
    if one is None:
        return ""
    scale, digits, unit = {"share": (100, 1, " %"), "number": (1, 3, ""), "tokens": (1, 1, ""), "count": (1, 0, "")}[
        form
    ]
    plus = "+" if sign else ""
    half = "" if one.half is None else f" ± {scale * one.half:,.{digits}f}"
    unit = " points" if sign and form == "share" else unit
    return f"{scale * one.value:{plus},.{digits}f}{half}{unit}"


def markdown(headings: Row, rows: Sequence[Row]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows))


def _made(command: str, seeds: Sequence[Seed]) -> str:
    """Return what the numbers are and where they come from."""

    def each(name: str) -> str:
        return ", ".join(dict.fromkeys(str(one.facts[name]) for one in seeds))

    numbers = ", ".join(str(one.seed) for one in seeds)
    about = f"Seed {numbers}." if len(seeds) == 1 else f"Seeds {numbers}: mean ± half of the 95 % interval over seeds."
    changes = dict.fromkeys(f"`{change}`" for one in seeds for change in one.facts["changes"])
    changed = f" with {', '.join(changes)}" if changes else ""
    hours = sum(float(one.facts["seconds"]) for one in seeds) / 3600
    where = f"{hours:.1f} hours in all on {each('device')}; rewardsmith {each('version')}, torch {each('torch')}"
    return f"{about} `{command}`{changed}; {where}."


# ---- figures -------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 360, 220, 44, 34, 30, 24
COLOURS = ("#3b6fb6", "#d1603d", "#3f9b6b", "#8a5fb0", "#a0803a", "#4aa3b5", "#c2558f")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "1 5", "4 2")
"""With the colours, so that curves can be told apart in black and white."""

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600}.grid{stroke:#ddd}"
    ".card{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.card{fill:#1c1e22}}"
)


def figure(claim: Claim, seeds: Sequence[Seed]) -> str:
    """Return the figure of a claim: its panels side by side, a line and a band for each arm; "" without curves."""
    arms = dict(claim.arms) or {"": "mean"}
    panels = [panel for panel in claim.panels if any(curve_of(arm, panel.key, one) for arm in arms for one in seeds)]
    if not panels:
        return ""
    legend = 18 * len(arms) + 12
    width, height = GAP + len(panels) * (WIDTH + GAP), TOP + HEIGHT + BOTTOM + legend
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        ' role="img">',
        f"<title>{escape(claim.title)}</title><style>{STYLE}</style>",
        f'<rect class="card" width="{width}" height="{height}" rx="6"/>',
    ]
    for i, panel in enumerate(panels):
        parts += _panel(panel, arms, seeds, GAP + i * (WIDTH + GAP))
    for i, title in enumerate(arms.values()):
        y = TOP + HEIGHT + BOTTOM + 14 + 18 * i
        parts.append(f'<line x1="{GAP}" x2="{GAP + 30}" y1="{y - 4}" y2="{y - 4}" {_stroke(i)}/>')
        parts.append(f'<text x="{GAP + 38}" y="{y}">{escape(title)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _stroke(i: int) -> str:
    colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
    return f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash or "none"}"'


def _panel(panel: Panel, arms: Mapping[str, str], seeds: Sequence[Seed], at: int) -> Iterator[str]:
    """Yield the elements of a panel whose left edge is at `at`."""
    curves = {arm: band(arm, panel, seeds) for arm in arms}
    points = [point for curve in curves.values() for point in curve]
    last = max(1, *(step for step, *_ in points))
    top = nice(max(high for *_, high in points))
    left, right = at + LEFT, at + WIDTH

    def x(step: float) -> str:
        return f"{left + (right - left) * step / last:.1f}"

    def y(value: float) -> str:
        return f"{TOP + HEIGHT * (1 - value / top):.1f}"

    yield f'<text class="title" x="{at}" y="20">{escape(panel.title)}</text>'
    for i in range(5):
        value = top * i / 4
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y(value)}" y2="{y(value)}"/>'
        label = f"{100 * value:.0f} %" if top <= 1 else f"{value:g}"
        yield f'<text x="{left - 6}" y="{float(y(value)) + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{left}" y="{TOP + HEIGHT + 18}">0</text>'
    yield f'<text x="{right}" y="{TOP + HEIGHT + 18}" text-anchor="end">step {last}</text>'
    for i, curve in enumerate(curves.values()):
        if not curve:
            continue
        edge = [f"{x(step)},{y(high)}" for step, _, _, high in curve]
        edge += [f"{x(step)},{y(low)}" for step, low, _, _ in reversed(curve)]
        yield f'<polygon points="{" ".join(edge)}" fill="{COLOURS[i % len(COLOURS)]}" opacity="0.15"/>'
        line = " ".join(f"{x(step)},{y(middle)}" for step, _, middle, _ in curve)
        yield f'<polyline points="{line}" {_stroke(i)}/>'


def nice(value: float) -> float:
    """Return a round number that is not below a value: the top of an axis; shares go to 0.25, 0.5 or 1."""
    steps = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 8, 12, 16, 20, 40, 60, 80, 100, 120, 160, 200, 400, 800)
    return next((float(step) for step in steps if step >= value), value)
