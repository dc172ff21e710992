"""What `rewardsmith score` prints: for people as tables, for programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rewardsmith.data.rows import printable
from rewardsmith.rewards.measure import Measured
from rewardsmith.runs.model_registry import usage_line
from rewardsmith.runs.rescoring.compare import Compared, Turn
from rewardsmith.runs.rescoring.outcomes import Known
from rewardsmith.runs.rescoring.rescore import Rescored

DETAIL = 300
"""Characters shown of what a failure said."""

TEXT = 60
"""Characters shown of a rollout, from its beginning."""


def as_json(rescored: Rescored) -> dict[str, Any]:
    """Return all of it as JSON values; texts of rollouts are cut, and whatever is not printable in them is escaped."""
    measured = {
        name: {**asdict(one), "failed": dict(one.failed), "seconds_per_group": dict(rescored.seconds.get(name, {}))}
        for name, one in rescored.measured.items()
    }
    result: dict[str, Any] = {
        "groups": rescored.groups,
        "rollouts": rescored.rollouts,
        "unscored": rescored.unscored,
        "resumed": rescored.resumed,
        "reward": measured.get(""),
        "parts": {name: one for name, one in measured.items() if name},
        "at_once": rescored.at_once,
        "rollouts_per_second": rescored.rollouts_per_second,
        "details": {what: printable(said, DETAIL) for what, said in rescored.details.items()},
        "models": {name: asdict(used) for name, used in rescored.used.items()},
    }
    if rescored.compared is not None:
        compared = asdict(rescored.compared)
        for turn in compared["turns"]:
            turn["text"] = printable(turn["text"], TEXT)
        result["compared"] = compared
    if rescored.known is not None:
        result["outcome"] = asdict(rescored.known)
    return result


def as_tables(rescored: Rescored) -> Iterator[RenderableType]:
    """Yield what to print, in order."""
    yield _components(rescored)
    for what, said in rescored.details.items():
        yield Text(f"{printable(what, 100)}, the first: {printable(said, DETAIL)}")
    yield Text(_pace(rescored))
    for name, used in rescored.used.items():
        yield Text(f"{name}: {usage_line(used)}")
    if rescored.compared is not None:
        yield from _comparison(rescored.compared)
    if rescored.known is not None:
        yield _known(rescored.known)
    if rescored.unscored:
        yield Text(unscored(rescored))


def unscored(rescored: Rescored) -> str:
    """Return the line that says how many rollouts have no score."""
    verb = "has" if rescored.unscored == 1 else "have"
    return f"{rescored.unscored:,} of {_counted(rescored.rollouts, 'rollout')} {verb} no score"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _components(rescored: Rescored) -> Table:
    heads = ("rollouts", "mean", "spread", "failed", "skipped", "dropped", "flat", "p50", "p99")
    rows = [_cells(one, rescored.seconds.get(name, {})) for name, one in rescored.measured.items()]
    # Columns that say nothing would only take room: most rewards skip and drop nothing.
    empty = {"skipped": "0%", "dropped": "0%", "p50": "-", "p99": "-"}
    alone = ("p50", "p99") if len(rows) == 1 else ()  # the times of the whole are told below the table
    shown = [
        i
        for i, head in enumerate(heads)
        if head not in alone and (head not in empty or any(row[i] != empty[head] for row in rows))
    ]
    table = Table()
    table.add_column("component", no_wrap=True, min_width=max(len(_name(name)) for name in rescored.measured))
    for i in shown:
        table.add_column(heads[i], justify="left" if heads[i] == "failed" else "right")
    for name, row in zip(rescored.measured, rows, strict=True):
        table.add_row(Text(_name(name)), *(Text(row[i]) for i in shown))
    return table


def _cells(one: Measured, seconds: Mapping[str, float]) -> tuple[str, ...]:
    causes = ", ".join(f"{kind} {_share(share)}" for kind, share in one.failed.items())
    return (
        f"{one.rollouts:,}",
        _number(one.mean),
        _number(one.spread),
        causes or "none",
        _share(one.skipped),
        _share(one.dropped),
        "-" if one.flat is None else _share(one.flat),
        *(_seconds(seconds[name]) if name in seconds else "-" for name in ("p50", "p99")),
    )


def _name(name: str) -> str:
    # The whole first, its parts beneath it.
    return f"  {printable(name, 60)}" if name else "reward"


def _pace(rescored: Rescored) -> str:
    if rescored.rollouts_per_second is None:
        return f"{_counted(rescored.groups, 'group')}, all scored before"
    before = f", {rescored.resumed:,} of them scored before" if rescored.resumed else ""
    times = ", ".join(f"{name} {_seconds(value)}" for name, value in rescored.seconds.get("", {}).items())
    return (
        f"{_counted(rescored.groups, 'group')}{before}; {rescored.rollouts_per_second:,.0f} rollouts/s;"
        f" a group took {times} ({rescored.at_once} at a time)"
    )


def _comparison(compared: Compared) -> Iterator[RenderableType]:
    table = Table("", title="old reward against new", title_justify="left")
    table.add_column("old", justify="right")
    table.add_column("new", justify="right")
    table.add_row("mean, where both scored", _number(compared.old_mean), _number(compared.new_mean))
    table.add_row("could not score", _failures(compared.old_failed), _failures(compared.new_failed))
    table.add_row("could score, and the other not", f"{compared.only_new_failed:,}", f"{compared.only_old_failed:,}")
    yield table
    if compared.left_out:
        names = ", ".join(printable(name, 60) for name in compared.left_out)
        yield Text(f"both without {names}: a run keeps an implicit reward apart from the value of the others")
    yield Text(
        f"changed: {compared.changed:,} of {compared.both:,} rollouts that both scored ({compared.rollouts:,} in all)\n"
        f"order over all: Spearman {_number(compared.spearman)}, Kendall τ_b {_number(compared.kendall)}\n"
        f"order within a group: Spearman {_number(compared.spearman_within)}, Kendall τ_b"
        f" {_number(compared.kendall_within)}, mean of {compared.ranked:,} groups of {compared.groups:,}"
        " where both tell rollouts apart\n"
        f"advantage: {compared.turned:,} change sign, {compared.to_zero:,} become 0, {compared.from_zero:,} were 0"
    )
    if compared.turns:
        yield _turns(compared)


def _known(known: Known) -> Table:
    name, best = printable(known.outcome, 60), "best of all" if known.size is None else f"best of {known.size}"
    title = f"the outcome {name}: mean {_number(known.mean)}, at best {_number(known.oracle)}"
    table = Table(title=f"{title}, of {_counted(known.groups, 'group')}", title_justify="left")
    table.add_column("component", no_wrap=True, min_width=max(len(_name(name)) for name in ("", *known.components)))
    for head in ("groups", "that differ", "pairs in order", best):
        table.add_column(head, justify="right", no_wrap=True)
    for name, one in known.components.items():
        accuracy = "-" if one.accuracy is None else _share(one.accuracy)
        table.add_row(Text(_name(name)), f"{one.groups:,}", f"{one.ordered:,}", accuracy, _number(one.best))
    return table


def _turns(compared: Compared) -> Table:
    left = f"the {len(compared.turns)} largest of {compared.turned:,} changes of sign"
    every = "all changes of sign" if compared.turned == len(compared.turns) else left
    table = Table(title=every, title_justify="left")
    table.add_column("prompt", no_wrap=True, min_width=min(30, max(len(_turn(turn)[0]) for turn in compared.turns)))
    table.add_column("#", justify="right", min_width=max(len(_turn(turn)[1]) for turn in compared.turns))
    for head in ("reward", "advantage"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("text", no_wrap=True, overflow="ellipsis")
    for turn in compared.turns:
        table.add_row(*map(Text, _turn(turn)))
    return table


def _turn(turn: Turn) -> tuple[str, ...]:
    return (
        printable(turn.prompt, 40),
        str(turn.index),
        f"{_number(turn.old)} → {_number(turn.new)}",
        f"{turn.old_advantage:+.3g} → {turn.new_advantage:+.3g}",
        printable(turn.text, TEXT),
    )


def _failures(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()) or "none"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 1_000 else f"{value:.4g}"


def _share(share: float) -> str:
    """Return a percentage; what is small is not nothing, and what is nearly all is not all."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 0.0005:
        return "<0.1%"
    return ">99.9%" if share > 0.9995 else f"{share:.1%}"


def _seconds(value: float) -> str:
    if value < 0.9995e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"
