"""`rewardsmith evaluate`: measure reward models and policies."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rewardsmith.errors import UserError, nearest

evaluate = typer.Typer(
    name="evaluate",
    help="Measure a reward against truth that is known, or a policy by its stored rollouts.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

DataPath = Annotated[
    str,
    typer.Argument(metavar="DATA", help="a JSONL or Parquet file, a folder of them, or RECIPE.toml:NAME of its data"),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY.PATH=VALUE", help="settings of the reward's file to change")
]
Rollouts = Annotated[
    str, typer.Argument(metavar="ROLLOUTS", help="a run folder, or a JSONL or Parquet file with rollouts")
]
RewardOption = Annotated[
    str,
    typer.Option(
        "--reward",
        metavar="REWARD",
        help="RECIPE[:PATH] or RUN[:PATH]: a recipe, or a run folder for the models that it has trained, and which of"
        " its rewards, such as recipe.toml:policy; or a TOML file that is a reward table itself.",
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="KEY=VALUE", help="Setting of the data source: columns.candidates=mt_texts."),
]
ItemsOption = Annotated[int | None, typer.Option("--items", metavar="N", min=1, help="Only the first ones.")]
OrdersOption = Annotated[
    int, typer.Option("--orders", metavar="K", min=1, help="Show each in K orders too: do positions matter?")
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", metavar="K", min=1, help="Ask K times, past the cache: is the verdict the same?")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of orders and of the 95% intervals.")]
AtOnceOption = Annotated[int, typer.Option(metavar="N", min=1, help="How many groups are scored at the same time.")]
PromptsOption = Annotated[
    int, typer.Option("--show-prompts", metavar="N", min=0, help="Print the first N questions to models, and answers.")
]
FailOption = Annotated[
    float,
    typer.Option(
        "--fail-above",
        metavar="SHARE",
        min=0,
        max=1,
        help="End with status 1 if more than this share has no score; without any it always does.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@evaluate.command("rankings")
def rankings(
    data: DataPath,
    overrides: Overrides = None,
    *,
    reward: RewardOption,
    settings: DataOption = None,
    items: ItemsOption = None,
    orders: OrdersOption = 1,
    repeats: RepeatsOption = 1,
    seed: SeedOption = 0,
    at_once: AtOnceOption = 32,
    show_prompts: PromptsOption = 0,
    fail_above: FailOption = 1.0,
    json: JsonOption = False,
) -> None:
    """Does a reward order the answers of a group as their true scores do?

    Accuracy over pairs with several rules for ties, Kendall, Spearman, top 1, the gain of choosing the best of n, and
    the correlation with length, each with a 95% interval over groups. A group that could not be scored is counted, and
    is no number.

    `rewardsmith evaluate rankings groups.jsonl --reward recipes/judges/ranking.toml`

    Does the judge like the first candidate? Does it say the same again?

    `rewardsmith evaluate rankings groups.jsonl --reward judge.toml --orders 4 --repeats 3`

    Other names of columns, and JSON for a program:

    `rewardsmith evaluate rankings mt.parquet --data columns.candidates=mt_texts --reward judge.toml --json`
    """
    _reward(
        "rankings", data, reward, overrides, settings, show_prompts, fail_above, json,
        items=items, orders=orders, repeats=repeats, seed=seed, at_once=at_once,
    )  # fmt: skip


@evaluate.command("grades")
def grades(
    data: DataPath,
    overrides: Overrides = None,
    *,
    reward: RewardOption,
    settings: DataOption = None,
    threshold: Annotated[
        float, typer.Option("--threshold", help="A right answer that scores below it is called unsound.")
    ] = 0.5,
    levels: Annotated[
        int, typer.Option("--levels", metavar="N", min=1, max=100, help="Bands of scores: 10 for 0, 0.1, …, 1.")
    ] = 10,
    items: ItemsOption = None,
    repeats: RepeatsOption = 1,
    seed: SeedOption = 0,
    at_once: AtOnceOption = 32,
    show_prompts: PromptsOption = 0,
    fail_above: FailOption = 1.0,
    json: JsonOption = False,
) -> None:
    """Do the grades of a reward mean what they say?

    Deviation from the true grade, calibration, a table by score, and how well low scores catch right answers that were
    reached by unsound steps.

    `rewardsmith evaluate grades graded.jsonl --reward recipes/judges/rubric_only.toml`

    Which threshold is best, and how good is 0.7?

    `rewardsmith evaluate grades graded.jsonl --reward judge.toml --threshold 0.7`
    """
    _reward(
        "grades", data, reward, overrides, settings, show_prompts, fail_above, json,
        items=items, threshold=threshold, levels=levels, repeats=repeats, seed=seed, at_once=at_once,
    )  # fmt: skip


@evaluate.command("pairs")
def pairs(
    data: DataPath,
    overrides: Overrides = None,
    *,
    reward: RewardOption,
    settings: DataOption = None,
    ties: Annotated[
        str, typer.Option("--ties", help="What equal scores count in subsets: wrong, as in RewardBench, or half.")
    ] = "wrong",
    items: ItemsOption = None,
    orders: OrdersOption = 1,
    repeats: RepeatsOption = 1,
    seed: SeedOption = 0,
    at_once: AtOnceOption = 32,
    show_prompts: PromptsOption = 0,
    fail_above: FailOption = 1.0,
    json: JsonOption = False,
) -> None:
    """Does a reward prefer the better of two answers?

    Accuracy by subset, ties and failures counted apart. Where the subsets are those of RewardBench, its sections and
    its score are computed as it does.

    `rewardsmith evaluate pairs reward-bench.parquet --reward recipes/judges/several.toml`

    With both orders of each pair, and half a point for a tie:

    `rewardsmith evaluate pairs pairs.jsonl --reward judge.toml --orders 2 --ties half`
    """
    if ties not in ("wrong", "half"):
        raise UserError(f"--ties is {ties!r}: it must be wrong or half.{nearest(ties, ('wrong', 'half'))}")
    _reward(
        "pairs", data, reward, overrides, settings, show_prompts, fail_above, json,
        items=items, ties=ties, orders=orders, repeats=repeats, seed=seed, at_once=at_once,
    )  # fmt: skip


def _reward(
    kind: str,
    data: str,
    reward: str,
    overrides: list[str] | None,
    settings: list[str] | None,
    show_prompts: int,
    fail_above: float,
    json: bool,
    **how: object,
) -> None:
    # Here, so that other commands need not wait for it.
    from rewardsmith.runs.evaluating.command import How, Interrupted, evaluate_stored  # noqa: PLC0415

    try:
        enough = evaluate_stored(
            kind,  # type: ignore[arg-type]
            data,
            reward,
            overrides or [],
            how=How(**how),  # type: ignore[arg-type]
            settings=settings or [],
            json=json,
            show_prompts=show_prompts,
            fail_above=fail_above,
        )
    except Interrupted as stopped:
        sys.stderr.write(f"{stopped}\n")
        raise typer.Exit(130) from None
    if not enough:
        raise _too_few(fail_above)


def _too_few(fail_above: float) -> typer.Exit:
    """Say why the command ends with status 1, and return that end."""
    share = f"more than {fail_above:.4g} of all" if fail_above < 1 else "everything"
    sys.stderr.write(f"status 1, by --fail-above: {share} has no score\n")
    return typer.Exit(1)


@evaluate.command("policy")
def policy(
    rollouts: Rollouts,
    *,
    right: Annotated[
        str | None,
        typer.Option("--right", metavar="PART|RECIPE[:PATH]", help="Says what is right; not set: the stored score."),
    ] = None,
    right_from: Annotated[float, typer.Option("--right-from", help="A value of at least this is right.")] = 1.0,
    sound: Annotated[
        str | None,
        typer.Option(
            "--sound", metavar="PART|RECIPE[:PATH]", help="Says whether the steps hold; asked of right answers only."
        ),
    ] = None,
    sound_from: Annotated[float, typer.Option("--sound-from", help="A value of at least this is sound.")] = 1.0,
    stage: Annotated[str | None, typer.Option(help="Only this stage of a run.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only train or validation groups of a run.")] = None,
    step: Annotated[str | None, typer.Option(metavar="N[-M]", help="Only this step of a run, or these.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first groups.")] = None,
    prompts: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the prompt.")] = None,
    responses: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the responses.")] = None,
    answers: Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the right answer.")] = None,
    seed: SeedOption = 0,
    at_once: AtOnceOption = 32,
    fail_above: FailOption = 1.0,
    json: JsonOption = False,
) -> None:
    """How good is the policy that wrote stored rollouts, and how many of its right answers hold?

    Accuracy and pass@k; with `--sound` also verified accuracy and verified@k, where the answer is right and its steps
    hold, and the share of right answers that are unsound.

    `rewardsmith evaluate policy runs/quickstart --kind validation`

    What is right was stored; a judge says now whether the steps hold:

    `rewardsmith evaluate policy runs/quickstart --stage policy --step 60 --sound judge.toml --sound-from 0.8`

    Both are parts of the stored scores:

    `rewardsmith evaluate policy runs/rrm --right answer --sound steps`
    """
    from rewardsmith.runs.evaluating.command import Interrupted  # noqa: PLC0415
    from rewardsmith.runs.evaluating.policy import evaluate_policy  # noqa: PLC0415
    from rewardsmith.runs.rescoring.command import wanted  # noqa: PLC0415

    groups = wanted(
        stage=stage, kind=kind, step=step, limit=limit, responses=responses, answers=answers, prompts=prompts
    )
    try:
        enough = evaluate_policy(
            rollouts,
            groups,
            right=right,
            right_from=right_from,
            sound=sound,
            sound_from=sound_from,
            seed=seed,
            at_once=at_once,
            json=json,
            fail_above=fail_above,
        )
    except Interrupted as stopped:
        sys.stderr.write(f"{stopped}\n")
        raise typer.Exit(130) from None
    if not enough:
        raise _too_few(fail_above)
