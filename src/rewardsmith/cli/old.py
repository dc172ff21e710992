"""The command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rewardsmith.cli.evaluate import evaluate

app = typer.Typer(
    name="rewardsmith",
    help="Train language models against rewards, and train the reward models themselves.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

app.add_typer(evaluate)

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="a TOML file, such as recipes/quickstart.toml")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY.PATH=VALUE", help="settings to change, such as stages.policy.steps=10"),
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
OutOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep the scores in this JSONL file; the same command goes on.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start anew although --out has scores already.")]
CompareOption = Annotated[bool, typer.Option("--compare", help="Compare with the rewards that are stored.")]
ShowOption = Annotated[int, typer.Option(metavar="N", min=0, help="With --compare: how many changes of sign to list.")]
OutcomeOption = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        help="Judge the reward by this part of itself or of the stored scores (reward: the whole of these): pairs in"
        " order, best of n.",
    ),
]
StageOption = Annotated[str | None, typer.Option(help="Only this stage of a run.")]
KindOption = Annotated[str | None, typer.Option(help="Only train or validation groups of a run.")]
StepOption = Annotated[str | None, typer.Option(metavar="N[-M]", help="Only this step of a run, or these.")]
LimitOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first groups.")]
ResponsesOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Of a table: the responses, a list in each row or one.")
]
PromptsColumnOption = Annotated[
    str | None, typer.Option("--prompts", metavar="COLUMN", help="Of a table: the prompt, such as extra_info.question.")
]
AnswersOption = Annotated[str | None, typer.Option(metavar="COLUMN", help="Of a table: the right answer.")]
FailOption = Annotated[
    float,
    typer.Option(
        "--fail-above",
        metavar="SHARE",
        min=0,
        max=1,
        help="End with status 1 if more than this share of the rollouts has no score; without any it always does.",
    ),
]
PromptsOption = Annotated[
    int, typer.Option("--show-prompts", metavar="N", min=0, help="Print the first N questions to models, and answers.")
]
AtOnceOption = Annotated[int, typer.Option(metavar="N", min=1, help="How many groups are scored at the same time.")]
CacheFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Of the cache; not set: $REWARDSMITH_CACHE, or ~/.cache/rewardsmith.")
]
CacheModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this model, by its name in the recipe or by its identity.")
]
OlderOption = Annotated[float | None, typer.Option(metavar="DAYS", help="Only what is older than so many days.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it is meant.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command()
def score(
    rollouts: Rollouts,
    overrides: Overrides = None,
    *,
    reward: RewardOption,
    out: OutOption = None,
    fresh: FreshOption = False,
    compare: CompareOption = False,
    show: ShowOption = 10,
    outcome: OutcomeOption = None,
    stage: StageOption = None,
    kind: KindOption = None,
    step: StepOption = None,
    limit: LimitOption = None,
    prompts: PromptsColumnOption = None,
    responses: ResponsesOption = None,
    answers: AnswersOption = None,
    at_once: AtOnceOption = 32,
    show_prompts: PromptsOption = 0,
    fail_above: FailOption = 1.0,
    json: JsonOption = False,
) -> None:
    """Score stored rollouts with a reward, and show how each of its components did.

    ROLLOUTS is a run folder, one file of its `rollouts/`, a file that this command wrote, or a table in the schema of
    docs/data.md with a list of `responses` in each row, or one `response`.

    With `--out` the scores are kept as they come: after Ctrl-C or a crash the same command goes on.

    Does a reward still say what it said in the run?

    `rewardsmith score runs/quickstart --reward recipes/quickstart.toml:policy --compare`

    What would another weight have done?

    `rewardsmith score runs/mix --reward mix.toml:policy stages.policy.reward.parts.judge.weight=0.3 --compare`

    Score the answers of another system, and keep the scores:

    `rewardsmith score answers.parquet --reward reward.toml --out scores.jsonl`

    What does the judge read and say?

    `rewardsmith score answers.parquet --reward reward.toml --limit 1 --show-prompts 2`

    Does a process reward model know which answers are right, and what would choosing by it bring?

    `rewardsmith score runs/prime --reward runs/prime:policy.reward.parts.process --outcome answer`
    """
    # Here, so that other commands need not wait for it.
    from rewardsmith.runs.rescoring.command import Interrupted, score_stored, wanted  # noqa: PLC0415

    groups = wanted(
        stage=stage, kind=kind, step=step, limit=limit, responses=responses, answers=answers, prompts=prompts
    )
    show_most = show if compare else None
    try:
        enough = score_stored(
            rollouts,
            groups,
            reward,
            overrides or [],
            out=out,
            fresh=fresh,
            show=show_most,
            outcome=outcome,
            at_once=at_once,
            json=json,
            show_prompts=show_prompts,
            fail_above=fail_above,
        )
    except Interrupted as stopped:
        sys.stderr.write(f"{stopped}\n")
        raise typer.Exit(130) from None
    if not enough:
        raise typer.Exit(1)
