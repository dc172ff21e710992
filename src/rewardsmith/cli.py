"""The command line. The flags of a job are the fields of its settings class."""

from __future__ import annotations

import inspect
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console
from rich.syntax import Syntax

from rewardsmith import __version__
from rewardsmith.config import import_name
from rewardsmith.console import print_json, print_tables
from rewardsmith.errors import UserError
from rewardsmith.recipe import explain as explain_recipe
from rewardsmith.recipe import load_recipe, load_table, parse_recipe
from rewardsmith.recipe_files import completions, find_recipe, recipe_names
from rewardsmith.runs.cache_command import cache
from rewardsmith.runs.catalogue import FamilyName, described, family_table, overview
from rewardsmith.runs.commands import flags_of, input_kind, option_classes, run_command
from rewardsmith.runs.lookup import explain_reward, is_reward
from rewardsmith.runs.preflight import RewardTrees, check_for_cluster, warnings
from rewardsmith.runs.starter_files import next_steps, write_starter

JOBS: dict[str, str] = {
    "prepare gqm-sft": "rewardsmith.data.prepare.gqm:GqmSft",
    "prepare gqm-rl": "rewardsmith.data.prepare.gqm:GqmRl",
    "prepare preferences": "rewardsmith.data.prepare.preference_data:PreferencesJob",
    "prepare rubric": "rewardsmith.data.prepare.write_rubrics:RubricJob",
    "prepare graded": "rewardsmith.data.prepare.grade_solutions:GradedJob",
    "score": "rewardsmith.runs.score:ScoreRollouts",
    "generate": "rewardsmith.trainers.generate_answers:GenerateAnswers",
    "evaluate": "rewardsmith.trainers.evaluate.evaluate_reward:EvaluateReward",
    "audit": "rewardsmith.runs.audit_command:AuditCommand",
    "plan": "rewardsmith.runs.plan:PlanJob",
    "evaluate-policy": "rewardsmith.runs.evaluate_rollouts:EvaluateRollouts",
}
"""Jobs that are commands, by the words of the command; imported when one is called."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Start": ("init", "list", "show", "explain"),
    "Run": ("run", "plan", "export", "serve"),
    "Data": ("prepare", "generate"),
    "Measure": ("audit", "score", "evaluate", "evaluate-policy"),
    "Look": ("view", "cache"),
    "Setup": ("--install-completion", "--help", "--version"),
}
"""The commands as `rewardsmith --help` shows them."""
_PANELS = {title: Group(title, sort_key=order) for order, title in enumerate(GROUPS)}

app = App(
    name="rewardsmith",
    help="""Train language models against rewards, and train the reward models themselves.

```
rewardsmith run quickstart              train a tiny model, on a CPU
rewardsmith init own-reward my-project  a recipe with a reward of your own
rewardsmith explain quickstart          what a recipe does, setting by setting
rewardsmith list rewards                what a recipe can name
rewardsmith show judge                  the settings of one, with an example
```

RECIPE is a TOML file, or the name of a shipped recipe (`rewardsmith list recipes`). Settings are changed on the command
line: `rewardsmith run quickstart stages.policy.steps=10`. `rewardsmith COMMAND --help` has more examples.""",
    version=f"rewardsmith {__version__}",
    help_format="markdown",
    default_parameter=Parameter(negative=()),
)
app.command(cache)
app.command("rewardsmith.integrations.serve_command:serve", name="serve")
app.command("rewardsmith.viewer.view_command:view", name="view")
app.command(App(name="prepare", help="Make the data that reward models and judges are trained on."))
app.register_install_completion_command(help="Install completion for the shell in use: bash, zsh or fish.")


def _complete_recipe(context: Any) -> list[str]:
    return completions(context.incomplete)


RecipeFile = Annotated[
    Path, Parameter(help="a TOML file, or the name of a shipped recipe such as quickstart", completer=_complete_recipe)
]
Overrides = Annotated[str, Parameter(help="KEY.PATH=VALUE: settings to change, such as stages.policy.steps=10")]
AsJson = Annotated[bool, Parameter(name="--json", help="print JSON instead of tables", show_default=False)]
All = Annotated[bool, Parameter(name="--all", help="show the rare settings too", show_default=False)]


@app.command(usage="Usage: rewardsmith init [NAME] [FOLDER]")
def init(
    name: Annotated[
        str | None, Parameter(help="a shipped recipe; not given: list them", completer=lambda _: list(recipe_names()))
    ] = None,
    folder: Annotated[Path, Parameter(help="where to write; made if it is not there")] = Path(),
    /,
) -> None:
    """Write a commented recipe, and the files that it needs, into a folder.

    Without NAME the recipes are listed. Files that are there are never overwritten.

    A reward and data of your own: `rewardsmith init own-reward my-project`

    A judge behind a server: `rewardsmith init judge`

    Other good starts: quickstart, gsm8k, ranker, bradley-terry, prime, rubric.
    """
    if name is None:
        print_tables([family_table("recipes"), "rewardsmith init NAME [FOLDER] writes one"])
        return
    sys.stdout.write(next_steps(write_starter(name, folder), folder))


@app.command(name="list", usage="Usage: rewardsmith list [FAMILY] [--json]")
def list_names(
    family: Annotated[FamilyName | None, Parameter(help="what to list; not given: the families")] = None,
    /,
    *,
    as_json: AsJson = False,
) -> None:
    """List what a recipe can name, with a line about each: rewards, rules, losses, data, recipes and more.

    `rewardsmith list` shows the families, `rewardsmith list rewards` the names in one.
    """
    table = overview() if family is None else family_table(family)
    if as_json:
        print_json(table.as_json())
    else:
        print_tables([table])


@app.command(usage="Usage: rewardsmith show [FAMILY] NAME [--all] [--json]")
def show(
    *name: Annotated[str, Parameter(name="NAME", help="a name, or a family and a name where several have it")],
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Show what a name stands for, its settings and an example: a reward, rule, loss, data source, stage or recipe.

    `rewardsmith show judge` shows everything of that name, `rewardsmith show rules math` the one of a family.
    """
    shown = described(name, everything=everything)
    if as_json:
        print_json([one.as_json() for one in shown])
    else:
        print_tables(part for one in shown for part in one.parts())


@app.command(usage="Usage: rewardsmith explain RECIPE [KEY.PATH=VALUE ...] [OPTIONS]")
def explain(
    recipe: RecipeFile,
    /,
    *overrides: Overrides,
    everything: All = False,
    on: Annotated[
        Literal["embedded", "verl"],
        Parameter(help="verl: print what a run on a cluster gives to verl's workers, checked by verl's own check"),
    ] = "embedded",
) -> None:
    """Check a recipe and print it with its defaults and a line about each setting.

    The output is a recipe itself: save it, change it, run it. A reward table, a file with a `type` at its top, is
    explained too, with the models that it calls.

    Example: `rewardsmith explain quickstart stages.policy.advantage.type=rloo`
    """
    table = load_table(recipe, overrides)
    checked = None
    if is_reward(table):
        if on == "verl":
            raise UserError(f"{recipe} is a reward table: --on verl explains a recipe")
        text = explain_reward(table, str(recipe))
    else:
        checked = parse_recipe(table, source=str(recipe))
        RewardTrees(checked, str(recipe))
        for warning in warnings(checked):
            sys.stderr.write(f"warning: {warning}\n")
        if on == "verl":
            check_for_cluster(checked, str(recipe))
            from rewardsmith.runs.verl_command import explain_verl  # noqa: PLC0415 only this needs verl

            text = explain_verl(checked, everything=everything)
        else:
            text = explain_recipe(checked, everything=everything)
    console = Console()
    if console.is_terminal:
        console.print(
            Syntax(
                text,
                "toml" if on == "embedded" else "yaml",
                theme="ansi_dark",
                background_color="default",
                word_wrap=True,
            )
        )
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
    if checked is not None:
        from rewardsmith.runs.memory import check_memory  # noqa: PLC0415 it may import torch

        where = "embedded" if checked.scale is None else "verl"
        check_memory(checked, lambda line: sys.stderr.write(f"{line}\n"), on=where, ignore=True)


export = App(name="export", help="Write a recipe as a job for another system.")
app.command(export)


@export.command(name="verl", usage="Usage: rewardsmith export verl RECIPE FOLDER [KEY.PATH=VALUE ...]")
def export_for_verl(
    recipe: RecipeFile,
    folder: Annotated[Path, Parameter(help="the folder to write")],
    /,
    *overrides: Overrides,
) -> None:
    """Write a recipe as a job for Ray: recipe, verl's configuration, environment, and the command that submits it.

    Example: `rewardsmith export verl scale/quickstart_verl jobs/quickstart`
    """
    table = load_table(recipe, overrides)
    from rewardsmith.runs.verl_export import SUBMIT, export_verl  # noqa: PLC0415 only this needs verl

    export_verl(table, folder, source=find_recipe(recipe))
    sys.stdout.write(f"{folder / SUBMIT} submits it to a Ray cluster; {folder / 'README.md'} says what is where\n")


@app.command(usage="Usage: rewardsmith run RECIPE [KEY.PATH=VALUE ...] [OPTIONS]")
def run(
    recipe: RecipeFile,
    /,
    *overrides: Overrides,
    folder: Annotated[Path | None, Parameter(help="the run folder; default: runs/NAME-OF-RECIPE")] = None,
    resume: Annotated[
        Literal["auto", "must", "never"],
        Parameter(help="auto resumes a run that was stopped; must fails if there is none; never starts a new run"),
    ] = "auto",
    accept_changes: Annotated[
        bool, Parameter(help="resume although the recipe has changed, such as more steps", show_default=False)
    ] = False,
    on: Annotated[
        Literal["embedded", "verl"],
        Parameter(help="embedded: in this process, on a CPU or one GPU; verl: on the [scale] of the recipe, with Ray"),
    ] = "embedded",
    ignore_memory: Annotated[
        bool, Parameter(help="start although the models do not seem to fit the memory", show_default=False)
    ] = False,
) -> int:
    """Run a recipe: its stages in order, in one run folder.

    Ctrl-C saves a checkpoint and stops; the same command resumes. A second Ctrl-C stops at once, and loses what came
    after the last checkpoint.

    A shipped recipe: `rewardsmith run quickstart`

    Your own, with changes: `rewardsmith run my_recipe.toml stages.policy.steps=10 --folder runs/short`
    """
    checked = load_recipe(recipe, overrides)
    rewards = RewardTrees(checked, str(recipe))
    if on == "verl":
        check_for_cluster(checked, str(recipe))
    if not recipe.is_file():
        sys.stderr.write(f"{recipe} is a shipped recipe; rewardsmith init {recipe} writes a copy to change\n")
    sys.stderr.write("importing torch and transformers\n")
    from rewardsmith.runs.start import Stopped, start  # noqa: PLC0415 a mistake in the recipe should not wait for torch

    try:
        start(
            checked, recipe.stem, rewards=rewards, folder=folder, resume=resume, accept_changes=accept_changes, on=on,
            ignore_memory=ignore_memory,
        )  # fmt: skip
    except Stopped as stopped:
        sys.stderr.write(f"{stopped}\n")
        return 130
    return 0


_INPUT_HELP = {
    "reward": "RECIPE[:PATH] or RUN[:PATH]: which reward of a recipe, or of a run with its trained models, such as"
    " recipe.toml:policy; or a TOML file that is a reward table",
    "data": "JSONL or Parquet files: a file, a folder, a pattern; or RECIPE.toml:NAME of its data",
    "model": "One of the models of --models; or RECIPE.toml:NAME, RUN[:NAME] for what a run has trained, a Hugging Face"
    " folder or id, or the URL of a server",
}


def _register(words: str, job: Any) -> None:
    """Add a job as a command of one or two words; its parameters are the settings of the job."""
    *group, name = words.split()
    place = app[group[0]] if group else app
    if name in place:
        return
    kinds = inspect.Parameter
    found: dict[str, inspect.Parameter] = {}
    for settings in (job, *option_classes(job)):
        for setting, info in flags_of(settings):
            if setting == "name":  # of a stage
                continue
            given_as = input_kind(info)
            kind: Any = info.annotation
            if given_as != "value":
                kind = str if info.is_required() else str | None
            default = kinds.empty if info.is_required() else info.get_default(call_default_factory=True)
            positional = settings is job and setting in job.arguments
            flag = None if positional else f"--{setting.removeprefix('as_').replace('_', '-')}"
            about = ". ".join(text for text in (info.description, _INPUT_HELP.get(given_as)) if text)
            shown = default not in (False, None, "", [], {})
            of_type: Any = Annotated[kind, Parameter(help=about, name=flag, show_default=shown)]
            order = kinds.POSITIONAL_ONLY if positional else kinds.KEYWORD_ONLY
            found[setting] = kinds(setting, order, annotation=of_type, default=default)
    read = {"overrides"} & set(job.model_fields) or {"reward", "model"} & set(
        map(input_kind, job.model_fields.values())
    )
    changes: Any = Annotated[Overrides, Parameter(show=bool(read))]  # hidden where no recipe is read
    found["overrides"] = kinds("overrides", kinds.VAR_POSITIONAL, annotation=changes)

    def command(*arguments: Any, **values: Any) -> int:
        count = len(job.arguments)
        return run_command(job, dict(zip(job.arguments, arguments, strict=False)) | values, arguments[count:])

    command.__signature__ = inspect.Signature(sorted(found.values(), key=lambda one: one.kind))  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in found.values()}
    command.__doc__ = inspect.getdoc(job)
    place.command(command, name=name)


def _group_commands() -> None:
    for title, names in GROUPS.items():
        for name in names:
            if name in app:
                app[name].group, app[name].sort_key = _PANELS[title], names.index(name)


def main() -> None:
    """Run the command line; a user's mistake ends with its message and status 2, never with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # descriptions hold letters that a terminal may not have
            stream.reconfigure(errors="backslashreplace")
    try:
        first = sys.argv[1] if len(sys.argv) > 1 else ""
        jobs = {words.split()[0] for words in JOBS}
        everything = first not in jobs and (
            first.startswith("-") or first not in app
        )  # help, completion, a misspelt one
        for words, place in JOBS.items():
            if everything or first == words.split()[0]:
                _register(words, import_name(place))
        if everything:
            _group_commands()  # this imports every command
        sys.exit(app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value") or 0)
    except (UserError, CycloptsError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    except BrokenPipeError:  # the reader went away, as in `rewardsmith explain … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
