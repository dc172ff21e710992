"""`rewardsmith prepare preferences`: pairs of answers, or groups with scores, from scores, rankings and MQM tables."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rewardsmith.cli.prepare.stopping import telling_when_stopped
from rewardsmith.errors import UserError, nearest

if TYPE_CHECKING:
    from rewardsmith.data.preferences import Prepared

Input = Annotated[str, typer.Argument(metavar="INPUT", help="JSONL or Parquet with groups, or MQM annotations (TSV)")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="where the rows go: .jsonl or .parquet")]
FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="KIND",
        help="What INPUT says of the answers: `scores`; `rankings` such as A > B = C; `mqm`: errors that people found.",
    ),
]
ToOption = Annotated[str, typer.Option("--to", metavar="KIND", help="Write `preferences`, or `rankings`: groups.")]
PairsOption = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="`all`; `adjacent`: one level of quality and the next; `best-worst`; or `sample:8`, so many of a group.",
    ),
]
LeastOption = Annotated[
    float, typer.Option("--least-margin", metavar="X", min=0, help="Leave out pairs whose scores differ by less.")
]
TiesOption = Annotated[str, typer.Option(metavar="WHAT", help="`keep` pairs of equal scores as ties, or `drop` them.")]
MostOption = Annotated[
    int | None, typer.Option("--most-per-source", metavar="N", min=1, help="At most so many pairs of one source text.")
]
MarginsOption = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="`raw`: difference of the scores; `share`: of the difference between best and worst; `none`: 0.",
    ),
]
UnitOption = Annotated[
    float, typer.Option("--margin-unit", metavar="X", help="Raw margins are divided by this, such as 5 for MQM.")
]
SizeOption = Annotated[
    int | None,
    typer.Option("--group-size", metavar="N", help="With --to rankings: cut groups into parts of at most so many."),
]
ChatOption = Annotated[bool, typer.Option("--chat", help="Write messages instead of text.")]
HeldOption = Annotated[
    float,
    typer.Option(
        "--held-out",
        metavar="SHARE|N",
        help="Share or number of the source texts whose rows go to another file: a hash of the text decides.",
    ),
]
HeldOutOption = Annotated[Path | None, typer.Option("--held-out-out", metavar="FILE", help="That other file.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="WHAT=NAME",
        help="A column that is not called as usual: prompt, candidates, scores, ranking, analysis, source_text, id or"
        " data_source. Can be given several times.",
    ),
]
AveragesOption = Annotated[
    str | None, typer.Option(metavar="TSV", help="mqm: take the average scores of this file instead.")
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(metavar="SYSTEM=NAME", help="mqm: what a system of INPUT is called in --averages."),
]
ReferenceOption = Annotated[
    str | None, typer.Option(metavar="SYSTEM", help="mqm: its translation is the reference, and no candidate.")
]
LeaveOption = Annotated[
    list[str] | None, typer.Option("--leave-out", metavar="SYSTEM", help="mqm: its translations are no candidates.")
]
SourceOption = Annotated[str, typer.Option("--source-language", metavar="CODE", help="mqm: such as zh.")]
TargetOption = Annotated[str, typer.Option("--target-language", metavar="CODE", help="mqm: such as en.")]
InstructionOption = Annotated[
    str, typer.Option(metavar="TEXT", help="mqm: what a translator is asked; {source} stands for the text.")
]
SeedOption = Annotated[int, typer.Option(help="Decides what is drawn.")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out, count and list them.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")]

KNOWN = {
    "--from": ("scores", "rankings", "mqm"),
    "--to": ("preferences", "rankings"),
    "--ties": ("keep", "drop"),
    "--margins": ("raw", "share", "none"),
}


def register(prepare: typer.Typer) -> None:
    """Add the command of this module."""
    prepare.command("preferences")(preferences)


def preferences(
    input: Input,
    out: Out,
    *,
    kind: FromOption,
    to: ToOption = "preferences",
    pairs: PairsOption = "all",
    least_margin: LeastOption = 0.0,
    ties: TiesOption = "drop",
    most_per_source: MostOption = None,
    margins: MarginsOption = "raw",
    margin_unit: UnitOption = 1.0,
    group_size: SizeOption = None,
    chat: ChatOption = False,
    held_out: HeldOption = 0.0,
    held_out_out: HeldOutOption = None,
    column: ColumnOption = None,
    averages: AveragesOption = None,
    rename: RenameOption = None,
    reference: ReferenceOption = None,
    leave_out: LeaveOption = None,
    source_language: SourceOption = "",
    target_language: TargetOption = "",
    instruction: InstructionOption = "{source}",
    seed: SeedOption = 0,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Make pairs of answers, one better than the other, that a reward model learns from.

    INPUT has groups of answers: rows with a `prompt`, `candidates` and `scores` or a `ranking`, or annotations of
    translations as WMT publishes them. The rows of OUT have `prompt`, `chosen`, `rejected`, `margin` and `tied`: the
    stage `reward_model` reads them, and TRL does. docs/preferences.md has all forms.

    Pairs of answers whose scores differ by 2 or more, at most 8 of each group:

    `rewardsmith prepare preferences scores.jsonl pairs.parquet --from scores --pairs sample:8 --least-margin 2`

    Pairs from human annotations, a tenth of the source texts held out:

    `rewardsmith prepare preferences mqm_zhen.tsv pairs.jsonl --from mqm --margin-unit 5 --held-out 0.1
    --held-out-out held-out.jsonl`

    Groups of four from the same, for a model that ranks:

    `rewardsmith prepare preferences mqm_zhen.tsv groups.jsonl --from mqm --to rankings --group-size 4
    --source-language zh --target-language en`
    """
    # Here, so that other commands need not wait for it.
    from rewardsmith.data.preferences import Building, Translations, annotated, prepare, read_pairing, scored  # noqa: PLC0415
    from rewardsmith.data.preparing import BadRows  # noqa: PLC0415

    _require_known({"--from": kind, "--to": to, "--ties": ties, "--margins": margins})
    of_pairs: dict[str, object] = {"--pairs": pairs != "all", "--least-margin": least_margin, "--ties": ties != "drop"}
    of_pairs |= {"--margins": margins != "raw", "--margin-unit": margin_unit != 1, "--most-per-source": most_per_source}
    unused: dict[str, object] = of_pairs if to == "rankings" else {"--group-size": group_size}
    _require_unset(f"--to {to} writes no {'pairs' if to == 'rankings' else 'groups'}", unused)
    if kind == "mqm":
        _require_unset("--from mqm knows its columns", {"--column": column})
        if to == "rankings" and not (source_language and target_language):
            raise UserError("--to rankings tells a judge the languages: say --source-language and --target-language")
        how = Translations(source_language, target_language, instruction, reference, tuple(leave_out or ()))
        given = annotated(input, how, averages=averages, rename=_table("--rename", rename))
    else:
        of_mqm: dict[str, object] = {
            "--averages": averages,
            "--rename": rename,
            "--reference": reference,
            "--leave-out": leave_out,
        }
        of_mqm |= {"--source-language": source_language, "--target-language": target_language}
        _require_unset(f"--from {kind} is not about MQM", of_mqm | {"--instruction": instruction != "{source}"})
        given = scored(input, _table("--column", column), by="scores" if kind == "scores" else "ranking")
    building = Building(
        read_pairing(pairs, least_margin=least_margin, ties=ties),
        to=to,  # type: ignore[arg-type]
        margins=margins,  # type: ignore[arg-type]
        unit=margin_unit,
        most_per_source=most_per_source,
        group_size=group_size,
        chat=chat,
        seed=seed,
    )
    with telling_when_stopped([out, *([held_out_out] if held_out_out else [])]), _counting("groups") as tick:
        prepared = prepare(
            given,
            out,
            building,
            BadRows(skip=skip_bad),
            held_out=held_out,
            held_out_to=held_out_out,
            overwrite=overwrite,
            tick=tick,
        )
    _print(prepared, averages, json)


def _require_known(options: Mapping[str, str]) -> None:
    for option, value in options.items():
        known = KNOWN[option]
        if value not in known:
            raise UserError(f"{option} is {value!r}: it must be one of {', '.join(known)}.{nearest(value, known)}")


def _require_unset(why: str, options: Mapping[str, object]) -> None:
    given = [option for option, value in options.items() if value]
    if given:
        raise UserError(f"{why}: leave {' and '.join(given)} out")


def _table(option: str, entries: Sequence[str] | None) -> dict[str, str]:
    """Return what `KEY=NAME` entries say."""
    table: dict[str, str] = {}
    for entry in entries or []:
        key, sign, name = entry.partition("=")
        if not (key and sign and name):
            raise UserError(f"{option} is {entry!r}: write it as KEY=NAME")
        if key in table:
            raise UserError(f"{option} says twice what {key!r} is")
        table[key] = name
    return table


@contextmanager
def _counting(unit: str) -> Iterator[Callable[[], None]]:
    """Show on a terminal how many there were so far; elsewhere nothing."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} " + unit), TextColumn("elapsed"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda: progress.advance(task)


def _print(prepared: Prepared, averages: str | None, json: bool) -> None:
    facts, counts = prepared.facts, prepared.counts
    if json:
        told: dict[str, Any] = {"counts": counts, "written": prepared.written, "skipped": prepared.skipped.as_json()}
        sys.stdout.write(jsonlib.dumps(told | {"input": facts}, indent=2, ensure_ascii=False) + "\n")
        return
    lines = [f"{count:>10,}  {name}" for name, count in counts.items() if count or name in ("groups", "pairs")]
    if averages is not None:
        lines.append(f"{facts['averages_agree']:>10,}  of {facts['averages_compared']:,} averages agree with INPUT")
    if facts.get("left_out"):
        lines.append(f"{facts['left_out']:>10,}  translations left out for a bad line")
    lines += [f"{rows:>10,}  rows in {path}" for path, rows in prepared.written.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    if prepared.skipped.rows:
        sys.stderr.write(f"{prepared.skipped}\n")
