"""`rewardsmith prepare gqm-sft` and `gqm-rl`: data for a model that ranks groups."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rewardsmith.cli.prepare.stopping import telling_when_stopped
from rewardsmith.errors import UserError, listing, nearest

if TYPE_CHECKING:
    from rewardsmith.data.gqm import Prepared

Input = Annotated[
    str, typer.Argument(metavar="INPUT", help="JSONL or Parquet with groups: a file, a folder, or a pattern")
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="where the rows go: .jsonl or .parquet")]
TypeOption = Annotated[
    str,
    typer.Option(
        "--prompt-type",
        metavar="TYPE",
        help="What the judge writes: `both`, `ranking` or `scores`; ranking_score, score.",
    ),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Not set: ranking_translation, or ranking with a question; or a path of your own."
    ),
]
CriteriaOption = Annotated[str, typer.Option(metavar="TEXT", help="What matters most; added to the template's words.")]
QuestionOption = Annotated[
    str | None,
    typer.Option("--question-column", metavar="NAME", help="What was asked, where the groups are no translations."),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="WHAT=NAME",
        help="A column that is not called as usual: source_text (src_text), reference (trg_text), source_language"
        " (src_lang), target_language (trg_lang), candidates (mt_texts, candidates, responses), scores, analysis or"
        " id. Several times.",
    ),
]
SourceOption = Annotated[
    str | None, typer.Option("--source-language", metavar="CODE", help="Of all rows, such as zh, instead of a column.")
]
TargetOption = Annotated[
    str | None, typer.Option("--target-language", metavar="CODE", help="Of all rows, such as en, instead of a column.")
]
LowestOption = Annotated[float, typer.Option(help="Score of the worst candidate possible.")]
HighestOption = Annotated[float, typer.Option(help="Score of the best.")]
DecimalsOption = Annotated[bool, typer.Option("--decimals", help="Allow scores between integers.")]
SubgroupOption = Annotated[
    int,
    typer.Option(
        "--subgroup-augment", metavar="K", min=0, max=1000, help="Draw so many parts of each group as further groups."
    ),
]
ShuffleOption = Annotated[
    int,
    typer.Option(
        "--shuffle-augment", metavar="M", min=0, max=1000, help="Show each group and part in so many further orders."
    ),
]
AnalysisOption = Annotated[
    str,
    typer.Option(
        "--subgroup-analysis",
        metavar="WHAT",
        help="`leave-out` parts whose analysis speaks of candidates that are not in them, or `keep` them.",
    ),
]
HeldOption = Annotated[
    float,
    typer.Option(
        "--held-out",
        metavar="SHARE|N",
        help="Share or number of the source texts whose rows go to another file: a hash of the text decides.",
    ),
]
HeldOutOption = Annotated[Path | None, typer.Option("--held-out-out", metavar="FILE", help="That other file.")]
AugmentOption = Annotated[bool, typer.Option("--augment-held-out", help="Augment what is held out too.")]
NameOption = Annotated[str, typer.Option("--data-source", metavar="NAME", help="The column data_source of all rows.")]
SeedOption = Annotated[int, typer.Option(help="Decides what is drawn, and the order of the rows.")]
WorkersOption = Annotated[int, typer.Option(min=1, max=64, help="Processes; the output is the same.")]
FactoryOption = Annotated[
    bool, typer.Option("--llama-factory", help="Describe OUT in dataset_info.json beside it, for LLaMA-Factory.")
]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out, count and list them.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")]

TYPES = {"both": "both", "ranking": "ranking", "scores": "scores", "ranking_score": "both", "score": "scores"}
"""What a judge may write, with the names that GRRM has for it."""

COLUMNS = ("source_text", "reference", "source_language", "target_language", "candidates", "scores", "analysis", "id")
SUBGROUP_ANALYSES = ("leave-out", "keep")


def register(prepare: typer.Typer) -> None:
    """Add the commands of this module."""
    prepare.command("gqm-sft")(gqm_sft)
    prepare.command("gqm-rl")(gqm_rl)


def gqm_sft(
    input: Input,
    out: Out,
    *,
    prompt_type: TypeOption = "both",
    template: TemplateOption = None,
    criteria: CriteriaOption = "",
    question_column: QuestionOption = None,
    column: ColumnOption = None,
    source_language: SourceOption = None,
    target_language: TargetOption = None,
    lowest: LowestOption = 0.0,
    highest: HighestOption = 10.0,
    decimals: DecimalsOption = False,
    subgroup_augment: SubgroupOption = 0,
    shuffle_augment: ShuffleOption = 0,
    subgroup_analysis: AnalysisOption = "leave-out",
    held_out: HeldOption = 0.0,
    held_out_out: HeldOutOption = None,
    augment_held_out: AugmentOption = False,
    data_source: NameOption = "gqm",
    seed: SeedOption = 0,
    workers: WorkersOption = 1,
    llama_factory: FactoryOption = False,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Make demonstrations for the cold start of a model that ranks groups.

    INPUT has rows with a source text, its languages, 2 to 26 candidates (`mt_texts`), their `scores` and an `analysis`.
    The rows of OUT have `messages`: the prompt that the reward `ranking` asks its model, and the answer, which is the
    analysis and the verdict. The stage `sft` reads them, and LLaMA-Factory does. docs/ranking_data.md has the rules.

    Demonstrations, 512 source texts held out:

    `rewardsmith prepare gqm-sft rankings.parquet sft.jsonl --held-out 512 --held-out-out test.jsonl`

    Each group in two further orders, with the letters of the analysis renamed; for LLaMA-Factory:

    `rewardsmith prepare gqm-sft rankings.parquet data/sft.jsonl --shuffle-augment 2 --llama-factory`

    Answers to questions instead of translations:

    `rewardsmith prepare gqm-sft answers.jsonl sft.jsonl --question-column prompt --column candidates=responses`
    """
    if subgroup_analysis not in SUBGROUP_ANALYSES:
        raise UserError(
            f"--subgroup-analysis is {subgroup_analysis!r}: it must be {' or '.join(SUBGROUP_ANALYSES)}."
            f"{nearest(subgroup_analysis, SUBGROUP_ANALYSES)}"
        )
    _run(
        input,
        [out, held_out_out],
        {"form": "sft", "keep_subgroups": subgroup_analysis == "keep"}
        | _asked(prompt_type, template, criteria, (lowest, highest), decimals)
        | _read(question_column, column, (source_language, target_language))
        | _drawn(subgroup_augment, shuffle_augment, held_out, augment_held_out, data_source, seed),
        {"skip_bad": skip_bad, "overwrite": overwrite, "workers": workers},
        llama_factory=llama_factory,
        json=json,
    )


def gqm_rl(
    input: Input,
    out: Out,
    *,
    prompt_type: TypeOption = "both",
    template: TemplateOption = None,
    criteria: CriteriaOption = "",
    question_column: QuestionOption = None,
    column: ColumnOption = None,
    source_language: SourceOption = None,
    target_language: TargetOption = None,
    lowest: LowestOption = 0.0,
    highest: HighestOption = 10.0,
    decimals: DecimalsOption = False,
    subgroup_augment: SubgroupOption = 0,
    shuffle_augment: ShuffleOption = 0,
    held_out: HeldOption = 0.0,
    held_out_out: HeldOutOption = None,
    augment_held_out: AugmentOption = False,
    data_source: NameOption = "gqm",
    seed: SeedOption = 0,
    workers: WorkersOption = 1,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Make prompts with a ground truth for RL of a model that ranks groups.

    INPUT has rows with a source text, its languages, 2 to 26 candidates (`mt_texts`) and their `scores`. The rows of
    OUT have the columns that verl uses. The ground truth is what the reward `ranking_accuracy` compares with: the
    scores as JSON, or with `--prompt-type ranking` a ranking such as A > B = C. docs/ranking_data.md has the rules.

    As GRRM was trained, up to 25 prompts from a group of four:

    `rewardsmith prepare gqm-rl rankings.parquet train.parquet --subgroup-augment 4 --shuffle-augment 4`

    The same with 5 % of the source texts held out, which are not augmented:

    `rewardsmith prepare gqm-rl rankings.parquet train.parquet --subgroup-augment 4 --shuffle-augment 4 --held-out 0.05
    --held-out-out test.parquet`
    """
    _run(
        input,
        [out, held_out_out],
        {"form": "rl"}
        | _asked(prompt_type, template, criteria, (lowest, highest), decimals)
        | _read(question_column, column, (source_language, target_language))
        | _drawn(subgroup_augment, shuffle_augment, held_out, augment_held_out, data_source, seed),
        {"skip_bad": skip_bad, "overwrite": overwrite, "workers": workers},
        llama_factory=False,
        json=json,
    )


def _asked(
    prompt_type: str, template: str | None, criteria: str, bounds: tuple[float, float], decimals: bool
) -> dict[str, Any]:
    from rewardsmith.text.judge_prompts import RankingFormat  # noqa: PLC0415 other commands need not wait for it

    if prompt_type not in TYPES:
        raise UserError(
            f"--prompt-type is {prompt_type!r}: it must be one of {listing(TYPES)}.{nearest(prompt_type, TYPES)}"
        )
    verdicts = RankingFormat(TYPES[prompt_type], *bounds, decimals)  # type: ignore[arg-type]
    return {"verdicts": verdicts, "template": template, "criteria": criteria}


def _read(
    question: str | None, columns: Sequence[str] | None, languages: tuple[str | None, str | None]
) -> dict[str, Any]:
    from rewardsmith.data.gqm import GroupColumns  # noqa: PLC0415

    named: dict[str, str] = {}
    for entry in columns or []:
        key, _, name = entry.partition("=")
        if not (key and name):
            raise UserError(f"--column is {entry!r}: write it as WHAT=NAME")
        if key not in COLUMNS:
            raise UserError(f"--column {entry}: {key!r} is not known.{nearest(key, COLUMNS)} Known: {listing(COLUMNS)}")
        if named.setdefault(key, name) != name:
            raise UserError(f"--column says twice where {key!r} is")
    if question is not None and any(languages):
        raise UserError("--question-column is for groups that are no translations: leave the languages out")
    return {"columns": GroupColumns(**named, question=question), "languages": languages}


def _drawn(
    subgroups: int, shuffles: int, held_out: float, augment_held_out: bool, data_source: str, seed: int
) -> dict[str, Any]:
    return {
        "subgroups": subgroups,
        "shuffles": shuffles,
        "held_out": held_out,
        "augment_held_out": augment_held_out,
        "data_source": data_source,
        "seed": seed,
    }


def _run(
    input: str,
    outs: Sequence[Path | None],
    settings: Mapping[str, Any],
    how: Mapping[str, Any],
    *,
    llama_factory: bool,
    json: bool,
) -> None:
    from rewardsmith.data.gqm import GqmSettings, prepare_gqm  # noqa: PLC0415
    from rewardsmith.data.gqm.llama_factory import add_to_dataset_info, check_dataset_info  # noqa: PLC0415

    out, held_out_out = outs
    assert out is not None
    files = [file for file in outs if file is not None]
    if llama_factory:
        check_dataset_info(files, overwrite=how["overwrite"])
    with telling_when_stopped(files), _watching() as watch:
        prepared = prepare_gqm(input, out, GqmSettings(**settings), held_out_out=held_out_out, watch=watch, **how)
    described = add_to_dataset_info(files) if llama_factory else []
    _print(prepared, files, described, json)


@contextmanager
def _watching() -> Iterator[Callable[[str, int, int], None]]:
    """Show on a terminal how far it is; elsewhere nothing."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(name, total=None) for name in ("reading", "writing")}
        yield lambda name, done, total: progress.update(tasks[name], completed=done, total=total)


def _print(prepared: Prepared, files: Sequence[Path], described: Sequence[Path], json: bool) -> None:
    if json:
        sys.stdout.write(jsonlib.dumps(prepared.as_json(), indent=2, ensure_ascii=False) + "\n")
        return
    counts: list[tuple[int, str]] = [(prepared.read, "groups read")]
    counts += [(count, f"rows: {kind}") for kind, count in prepared.variants.items()]
    counts += [(count, f"variants left out: {reason}") for reason, count in prepared.dropped.items()]
    odd = {"groups hold one text twice": prepared.twins, "groups have equal scores for all": prepared.tied}
    counts += [(count, what) for what, count in odd.items() if count]
    counts += zip((prepared.written, prepared.held_out), [f"rows in {file}" for file in files], strict=False)
    lines = [f"{count:>10,}  {what}" for count, what in counts]
    lines += [f"LLaMA-Factory finds them by {place}" for place in described]
    sys.stdout.write("\n".join(lines) + "\n")
    if prepared.skipped.rows:
        sys.stderr.write(f"{prepared.skipped}\n")
