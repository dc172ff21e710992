"""`rewardsmith prepare rubric` and `graded`: data for a model that grades by rubrics."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from rewardsmith.data.rows import ANSWER, PROMPT, Layout
from rewardsmith.data.rubrics import Asking, Balance, ProblemRows, SolutionRows
from rewardsmith.data.rubrics.rows import FORMS
from rewardsmith.errors import UserError, nearest

Problems = Annotated[
    str, typer.Argument(metavar="PROBLEMS", help="JSONL or Parquet with a prompt in each row; a folder or a pattern.")
]
SolutionsPath = Annotated[
    str, typer.Argument(metavar="SOLUTIONS", help="JSONL or Parquet with prompt, criteria and responses in each row.")
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: .jsonl or .parquet.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY.PATH=VALUE", help="Settings of the models file to change: models.judge.concurrency=8"),
]
ModelsFile = Annotated[
    Path, typer.Option("--models", metavar="FILE", help="TOML with [models.NAME] tables; a recipe will do.")
]
JudgeOption = Annotated[str, typer.Option("--judge", metavar="NAME", help="Which of the models writes.")]
TeacherOption = Annotated[str, typer.Option("--teacher", metavar="NAME", help="Which of the models grades.")]
PromptColumn = Annotated[str, typer.Option(metavar="COLUMN", help="The problem: text, or messages.")]
AnswerColumn = Annotated[str, typer.Option(metavar="COLUMN", help="The right answer; rows may lack it.")]
SolutionColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="A reference solution; not set: solution, or extra_info.solution.")
]
ReferenceOption = Annotated[
    bool, typer.Option("--no-reference", help="Do not show the model the right answer and the solution.")
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Write new criteria for rows that have some.")]
TemplateOption = Annotated[str, typer.Option(metavar="NAME", help="The prompt: a built-in one, or the path of a file.")]
TemperatureOption = Annotated[float, typer.Option(metavar="X", min=0, help="Of the first try; 0 is greedy.")]
TokensOption = Annotated[
    int, typer.Option("--max-tokens", metavar="N", min=1, help="Longest answer; one that is cut off is lost.")
]
TriesOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Answers that may be unusable, each at a higher temperature.")
]
DeadlineOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds for all tries of one row together.")
]
SeedOption = Annotated[
    int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Of sampling, and of whom --balance takes.")
]
LimitOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first rows.")]
AtOnceOption = Annotated[int, typer.Option(metavar="N", min=1, help="How many rows are asked about at the same time.")]
WaitOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="Seconds that a model which is out of reach is waited for.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start anew, and replace what is there.")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be used, and list them.")]
FailOption = Annotated[
    float,
    typer.Option(
        "--fail-above",
        metavar="SHARE",
        min=0,
        max=1,
        help="End with status 1 if more than this share got no answer; without any it always does.",
    ),
]
PromptsOption = Annotated[
    int, typer.Option("--show-prompts", metavar="N", min=0, help="Print the first N questions to models, and answers.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
FormOption = Annotated[
    list[str] | None,
    typer.Option("--form", metavar="sft|rl|eval", help="What to write; may be given several times. Not set: sft."),
]
ResponseColumn = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The solutions, a list or one; not set: responses, or response."),
]
CriteriaColumn = Annotated[str, typer.Option(metavar="COLUMN", help="The rubric, in the row or in its extra_info.")]
TotalOption = Annotated[
    float, typer.Option(metavar="X", min=0.01, max=10_000, help="Points in all, where the rubric is text.")
]
QuotingOption = Annotated[str, typer.Option(metavar="fence|verbatim", help="As the rubric reward will have it.")]
LongestOption = Annotated[int, typer.Option(metavar="N", min=100, help="Characters of a solution that are shown.")]
VotesOption = Annotated[
    int, typer.Option(metavar="N", min=1, max=64, help="Grades for each solution, which are averaged.")
]
RuleOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="A rule that says whether a final answer is right, such as math.")
]
BalanceOption = Annotated[bool, typer.Option("--balance", help="Let all score bands be heard when training.")]
BandsOption = Annotated[int, typer.Option(metavar="N", min=1, max=100, help="How many bands from 0 to all points.")]
RatioOption = Annotated[
    float,
    typer.Option(
        "--band-ratio", metavar="X", min=1, help="With --balance: the largest band over the smallest, at most."
    ),
]
RepeatsOption = Annotated[
    int,
    typer.Option(
        "--band-repeats", metavar="N", min=1, help="With --balance: how often a solution of a small band may be there."
    ),
]
HeldOutOption = Annotated[
    float, typer.Option("--held-out", metavar="SHARE", min=0, max=0.99, help="Share of the problems to write apart.")
]
HeldOutTo = Annotated[
    Path | None, typer.Option("--held-out-out", metavar="FILE", help="Where these go; not set: OUT.held-out.")
]


def register(prepare: typer.Typer) -> None:
    """Add the commands of this module."""
    prepare.command("rubric")(rubric)
    prepare.command("graded")(graded)


def rubric(
    problems: Problems,
    out: Out,
    overrides: Overrides = None,
    *,
    models: ModelsFile,
    judge: JudgeOption,
    prompt_column: PromptColumn = PROMPT,
    answer_column: AnswerColumn = ANSWER,
    solution_column: SolutionColumn = None,
    no_reference: ReferenceOption = False,
    replace: ReplaceOption = False,
    template: TemplateOption = "write_rubric",
    temperature: TemperatureOption = 0.0,
    max_tokens: TokensOption = 4096,
    tries: TriesOption = 3,
    deadline: DeadlineOption = 300.0,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    at_once: AtOnceOption = 32,
    wait: WaitOption = 300.0,
    fresh: FreshOption = False,
    skip_bad: SkipOption = False,
    fail_above: FailOption = 1.0,
    show_prompts: PromptsOption = 0,
    json: JsonOption = False,
) -> None:
    """Have a model write a rubric for every problem; the rubrics are checked, and the rubric reward reads them.

    Each rubric has 10 points in all, checks for each way in which a right answer can be reached unsoundly, and the
    skeleton of any proof; it names neither the answer nor the words of the reference. One that lacks something is
    asked for again with the reason. OUT has the rows of PROBLEMS with `extra_info.criteria`, in the same order.

    Answers are kept beside OUT as they come: after Ctrl-C or a crash the same command goes on.

    `rewardsmith prepare rubric problems.jsonl rubrics.jsonl --models models.toml --judge writer`

    What is the model asked, and what does it say?

    `rewardsmith prepare rubric problems.jsonl try.jsonl --models models.toml --judge writer --limit 1 --show-prompts 3`
    """
    # Here, so that other commands need not wait for it.
    from rewardsmith.runs.preparing.models import Judge, find_model  # noqa: PLC0415
    from rewardsmith.runs.preparing.rubrics import Writing, write_rubrics  # noqa: PLC0415
    from rewardsmith.runs.preparing.session import How  # noqa: PLC0415

    layout = Layout(prompt=prompt_column, answer=answer_column)
    asking = Asking(temperature=temperature, max_tokens=max_tokens, tries=tries, deadline=deadline, seed=seed)
    how = How(
        asking=asking,
        limit=limit,
        at_once=at_once,
        wait=wait,
        fresh=fresh,
        skip_bad=skip_bad,
        fail_above=fail_above,
        show_prompts=show_prompts,
        json=json,
    )
    named = find_model(models, Judge(judge=judge), overrides or [])
    writing = Writing(ProblemRows(layout, solution_column, replace), template, not no_reference)
    _finish(lambda: write_rubrics(problems, out, named, writing, how))


def graded(
    solutions: SolutionsPath,
    out: Out,
    overrides: Overrides = None,
    *,
    models: ModelsFile,
    teacher: TeacherOption,
    form: FormOption = None,
    prompt_column: PromptColumn = PROMPT,
    answer_column: AnswerColumn = ANSWER,
    response_column: ResponseColumn = None,
    criteria_column: CriteriaColumn = "criteria",
    total: TotalOption = 10.0,
    template: TemplateOption = "rubric",
    quoting: QuotingOption = "fence",
    longest: LongestOption = 100_000,
    votes: VotesOption = 1,
    rule: RuleOption = None,
    balance: BalanceOption = False,
    bands: BandsOption = 5,
    band_ratio: RatioOption = 2.0,
    band_repeats: RepeatsOption = 2,
    held_out: HeldOutOption = 0.0,
    held_out_out: HeldOutTo = None,
    temperature: TemperatureOption = 0.0,
    max_tokens: TokensOption = 4096,
    tries: TriesOption = 3,
    deadline: DeadlineOption = 300.0,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    at_once: AtOnceOption = 32,
    wait: WaitOption = 300.0,
    fresh: FreshOption = False,
    skip_bad: SkipOption = False,
    fail_above: FailOption = 1.0,
    show_prompts: PromptsOption = 0,
    json: JsonOption = False,
) -> None:
    """Have a teacher grade solutions by their rubrics, and write what a judge learns from.

    `--form sft` writes the grading prompt with the teacher's analysis, for the cold start; `--form rl` the prompt with
    the share of the points as ground truth, for training against the grade; `--form eval` the graded solution, for
    measuring a judge. The prompt is the one that the `rubric` reward asks with. With several forms each has a file of
    its own: graded.sft.jsonl, graded.rl.jsonl.

    Answers are kept beside OUT as they come: after Ctrl-C or a crash the same command goes on.

    For the cold start and for RL, all score bands balanced, every tenth problem held out:

    `rewardsmith prepare graded solutions.jsonl graded.jsonl --models models.toml --teacher strong --form sft --form rl
    --balance --held-out 0.1`

    To measure a judge, with the final answers checked by a rule:

    `rewardsmith prepare graded tested.jsonl eval.jsonl --models models.toml --teacher strong --form eval --rule math`
    """
    from rewardsmith.runs.preparing.grades import Grading, grade_solutions  # noqa: PLC0415
    from rewardsmith.runs.preparing.models import Teacher, find_model  # noqa: PLC0415
    from rewardsmith.runs.preparing.session import How  # noqa: PLC0415

    if held_out_out is not None and not held_out:
        raise UserError("--held-out-out says where the held-out part goes: give --held-out a share, such as 0.1")
    if not math.isfinite(band_ratio):
        raise UserError(f"--band-ratio is {band_ratio}: it must be a number of 1 or more, such as 2")
    how = How(
        asking=Asking(temperature=temperature, max_tokens=max_tokens, tries=tries, deadline=deadline, seed=seed),
        limit=limit,
        at_once=at_once,
        wait=wait,
        fresh=fresh,
        skip_bad=skip_bad,
        fail_above=fail_above,
        show_prompts=show_prompts,
        json=json,
    )
    forms: Any = tuple(dict.fromkeys(_one_of("--form", one, FORMS) for one in form or ["sft"]))
    shown: Any = _one_of("--quoting", quoting, ("fence", "verbatim"))
    grading = Grading(
        rows=SolutionRows(Layout(prompt=prompt_column, answer=answer_column), response_column, criteria_column, total),
        template=template,
        quoting=shown,
        longest=longest,
        votes=votes,
        forms=forms,
        balance=Balance(bands, band_ratio, band_repeats, seed),
        balanced=balance,
        held_out=held_out,
        held_out_to=held_out_out,
        rule=rule,
        seed=seed,
    )
    named = find_model(models, Teacher(teacher=teacher), overrides or [])
    _finish(lambda: grade_solutions(solutions, out, named, grading, how))


def _one_of(option: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise UserError(f"{option} is {value!r}: it must be {', '.join(known)}.{nearest(value, known)}")
    return value


def _finish(command: Callable[[], bool]) -> None:
    """Run a command, and end with the status that it deserves."""
    from rewardsmith.runs.stopping import Interrupted  # noqa: PLC0415

    try:
        enough = command()
    except Interrupted as stopped:
        sys.stderr.write(f"{stopped}\n")
        raise typer.Exit(130) from None
    except KeyboardInterrupt:  # while nothing is asked: reading, or writing
        sys.stderr.write("stopped. The same command goes on\n")
        raise typer.Exit(130) from None
    if not enough:
        raise typer.Exit(1)
