"""Tables in Markdown and figures in SVG from the summaries of a claim; both follow from the files alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from headline_claims import CLAIMS, SEEDS, Claim, Column, Form, Panel, Reach
from headline_results import Seed, apart, band, curve_of, mean, read, value_of

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
    numbers = " ".join(str(one.seed) for one in seeds or [Seed(seed, [], {}) for seed in SEEDS])
    command = f"python recipes/headlines/headlines.py {name} --seeds {numbers}"
    if not seeds:
        return f"**Not measured yet.** The command: `{command}`"
    tables = [arms_table(claim, seeds), evaluations_table(claim, seeds), decision_table(claim, seeds)]
    parts = [markdown(headings, rows) for headings, rows in tables if rows]
    if figure(claim, seeds):
        parts.append(f"![{claim.title}: a curve for each arm]({pictures}/{picture_of(name)})")
    parts.append(_made(command, seeds))
    parts += [f"Seed {one.seed} did not finish: {one.failed}" for one in seeds if one.failed]
    parts += _lacking(claim, seeds)
    return "\n\n".join(parts)


def arms_table(claim: Claim, seeds: Sequence[Seed]) -> tuple[Row, list[Row]]:
    """Return the headings and a row for the start and for each arm; columns that nobody has are left out."""
    arms = ["start", *claim.arms] if claim.arms else []
    return _table("arm", arms, claim, claim.columns, seeds)


def evaluations_table(claim: Claim, seeds: Sequence[Seed]) -> tuple[Row, list[Row]]:
    """Return the headings and a row for each evaluation of a trained judge or ranker."""
    return _table("model", list(claim.evaluations), claim, claim.evaluation_columns, seeds)


def _table(
    what: str, stages: Sequence[str], claim: Claim, columns: Sequence[Column], seeds: Sequence[Seed]
) -> tuple[Row, list[Row]]:
    values = {
        (stage, column): [value_of(claim, stage, column, one) for one in seeds]
        for stage in stages
        for column in columns
    }
    some = [column for column in columns if any(v is not None for stage in stages for v in values[stage, column])]
    table = [(what, *(column.heading for column in some))]
    table += [(claim.names[stage], *(_cell(values[stage, column], column) for column in some)) for stage in stages]
    if len(some) > len(table):  # more measures than stages: a row for each measure is easier to read
        table = [("", *table[0][1:]), *table[1:]]
        table = list(zip(*table, strict=True))
    return table[0], table[1:] if stages else []


def decision_table(claim: Claim, seeds: Sequence[Seed]) -> tuple[Row, list[Row]]:
    """Return the headings and a row for each difference that decides the claim."""
    rows: list[Row] = []
    for one in claim.decides:
        found = apart(claim, one, seeds)
        average = mean(found)
        says = "not measured" if average is None else "one seed" if average.half is None else ""
        says = says or (("higher" if average.value > 0 else "lower") if average and average.differs else "not shown")
        names = f"{claim.names[one.arm]} against {claim.names[one.other]}"
        rows.append((one.column.heading, names, _cell(found, one.column, sign=True), says))
    return ("what decides", "of", "difference", ""), rows


FORMS: dict[Form, tuple[int, int, str]] = {
    "share": (100, 1, " %"),
    "number": (1, 3, ""),
    "tokens": (1, 1, ""),
    "count": (1, 0, ""),
}
"""Factor, digits behind the point, and unit."""

NO_BREAK = "\N{NO-BREAK SPACE}"


def _cell(values: Sequence[float | None], column: Column, *, sign: bool = False) -> str:
    """Return the mean over seeds with half of its interval: `62.1 ± 3.0 %`; how many seeds it is of, if not of all."""
    average = mean(values)
    if average is None:
        return ""
    some = f" ({average.seeds} of {len(values)} seeds)" if average.seeds < len(values) else ""
    if isinstance(column, Reach) and some:
        known = ", ".join(f"{value:.0f}" for value in values if value is not None)
        return f"{known}; never in {len(values) - average.seeds} of {len(values)} seeds"
    scale, digits, unit = FORMS[column.form]
    unit = " points" if sign and column.form == "share" else unit
    half = "" if average.half is None else f" ± {scale * average.half:,.{digits}f}"
    return f"{scale * average.value:{'+' if sign else ''},.{digits}f}{half}{unit}{some}".replace(" ", NO_BREAK)


def markdown(headings: Row, rows: Sequence[Row]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows))


def _made(command: str, seeds: Sequence[Seed]) -> str:
    """Return what the numbers are and where they come from."""
    runs = [run for one in seeds for run in one.runs]

    def each(name: str) -> str:
        return ", ".join(dict.fromkeys(str(run[name]) for run in runs))

    about = f"Mean ± half of the 95 % interval over {len(seeds)} seeds." if len(seeds) > 1 else "One seed."
    changes = dict.fromkeys(f"`{change}`" for run in runs for change in run["changes"])
    changed = f" with {', '.join(changes)}" if changes else ""
    again = (
        ""
        if len(runs) == len(seeds)
        else f" Some arms were added later, after an imitation of their own: {len(runs)} runs."
    )
    hours = sum(float(run["seconds"]) for run in runs) / 3600
    where = f"{hours:.1f} hours in all on {each('device')}; rewardsmith {each('version')}, torch {each('torch')}"
    return f"{about} `{command}`{changed}; {where}.{again}"


def _lacking(claim: Claim, seeds: Sequence[Seed]) -> list[str]:
    """Return a line that names what the plan has and no run has finished; nothing where all is there."""
    stages = dict(zip(claim.measured, [*claim.arms.values(), *claim.evaluations.values()], strict=True))
    found = {one.seed: one.stages for one in seeds}
    lacks = []
    for seed in sorted({*SEEDS, *found}):
        missing = [name for stage, name in stages.items() if stage not in found.get(seed, {})]
        if missing:
            lacks.append(f"seed {seed}" + (f" ({'; '.join(missing)})" if len(missing) < len(stages) else ""))
    return [f"Without results: {', '.join(lacks)}."] if lacks else []


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
    arms = claim.curves or claim.arms
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
    """Return a round number that is not below a value: the top of an axis."""
    steps = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 8, 12, 16, 20, 40, 60, 80, 100, 120, 160, 200, 400, 800)
    return next((float(step) for step in steps if step >= value), value)
