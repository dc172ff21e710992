"""The command line."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax

from rewardsmith import __version__
from rewardsmith.cli.evaluate import evaluate
from rewardsmith.cli.prepare import prepare
from rewardsmith.errors import UserError
from rewardsmith.recipe import explain as explained
from rewardsmith.recipe import load_recipe, load_table, parse_recipe
from rewardsmith.recipe_checks import check_rewards, warnings
from rewardsmith.runs.rescoring.choice import explain_reward, is_reward

app = typer.Typer(
    name="rewardsmith",
    help="Train language models against rewards, and train the reward models themselves.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

cached = typer.Typer(
    name="cache",
    help="Look at what models have said, which is kept so that nothing is asked twice, or throw it away.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(cached)
app.add_typer(evaluate)
app.add_typer(prepare)

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


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rewardsmith {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def explain(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Check a recipe and print it with every default and a line about each setting.

    The output is a recipe itself: save it, change it, run it. A reward table, a file with a `type` at its top, is
    explained too, with the models that it asks.

    Example: `rewardsmith explain recipes/quickstart.toml stages.policy.advantage.type=rloo`
    """
    table = load_table(recipe, overrides or [])
    if is_reward(table):
        text = explain_reward(table, str(recipe))
    else:
        checked = parse_recipe(table, source=str(recipe))
        check_rewards(checked, str(recipe))
        for warning in warnings(checked):
            sys.stderr.write(f"warning: {warning}\n")
        text = explained(checked)
    console = Console()
    if console.is_terminal:
        console.print(Syntax(text, "toml", theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        sys.stdout.write(text)


@app.command()
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option(help="Where the run's files go; default: runs/NAME-OF-RECIPE.")] = None,
    resume: Annotated[
        str, typer.Option(help="auto goes on with a run that was stopped; must insists on one; never starts anew.")
    ] = "auto",
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although the recipe has changed, as with more steps.")
    ] = False,
) -> None:
    """Run a recipe: its stages in order, in one run folder.

    Ctrl-C saves; the same command goes on. A second Ctrl-C stops at once, and loses what came after the last
    checkpoint.

    Example: `rewardsmith run recipes/quickstart.toml seed=1`
    """
    if resume not in ("auto", "must", "never"):
        raise UserError(f"--resume is {resume!r}: it must be auto, must or never")
    checked = load_recipe(recipe, overrides or [])
    check_rewards(checked, str(recipe))
    sys.stderr.write("importing torch and transformers\n")
    from rewardsmith.runs.start import Stopped, start  # noqa: PLC0415 a mistake in the recipe should not wait for torch

    try:
        start(checked, recipe.stem, folder=folder, resume=resume, accept_changes=accept_changes)  # type: ignore[arg-type]
    except Stopped as stopped:
        sys.stderr.write(f"{stopped}\n")
        raise typer.Exit(130) from None


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


@cached.command("stats")
def cache_stats(folder: CacheFolder = None, json: JsonOption = False) -> None:
    """Show what is kept of each model: how many verdicts, how large, of how many tokens, and since when.

    The tokens are what a replay of all of it would not have to ask for.

    Example: `rewardsmith cache stats`
    """
    from rewardsmith.runs.caching import show  # noqa: PLC0415 other commands need not wait for it

    show(folder, json=json)


@cached.command("clear")
def cache_clear(
    folder: CacheFolder = None, model: CacheModel = None, older_than: OlderOption = None, yes: YesOption = False
) -> None:
    """Throw verdicts away, and give their space back to the disk. They are asked anew when they are needed.

    Everything, after a question:

    `rewardsmith cache clear`

    What one model said more than 30 days ago, without a question:

    `rewardsmith cache clear --model judge --older-than 30 --yes`
    """
    from rewardsmith.runs.caching import clear  # noqa: PLC0415

    try:
        agreed = (lambda _: True) if yes else typer.confirm
        done = clear(folder, model=model, older_than=older_than, agreed=agreed)
    except typer.Abort:  # Ctrl-C, or nobody is there to answer
        sys.stderr.write("\n")
        done = False
    if not done:
        sys.stderr.write("nothing was removed; with --yes there is no question\n")
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a user's mistake ends with its message and status 2, never with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # descriptions hold letters that a terminal may not have
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader went away, as in `rewardsmith explain … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
