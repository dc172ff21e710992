"""A teacher grades solutions by their rubrics, with the prompt that the judge who learns from it will be called with.

| form | for | a row has |
|---|---|---|
| `sft` | the cold start of a judge | `messages`: the grading prompt, and the teacher's analysis with its verdict |
| `rl` | training a judge against the grade | verl's columns: `prompt`, and the share of the points as `ground_truth` |
| `eval` | measuring a judge | the problem as `prompt`, the solution as `response`, `grade`, `right`, `sound` |
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rewardsmith.config import Choice, Refers, build
from rewardsmith.data.prepare.model_calls import CallItem, KeptReplies, ModelCallJob
from rewardsmith.data.prepare.prepare_job import SplitJob, chat_rows, collect, write_prepared
from rewardsmith.data.prepare.row_files import RowFiles
from rewardsmith.data.prepare.rubric_rows import SolutionToGrade, read_solutions, right_answers
from rewardsmith.data.prepare.splits import digest_of, held_out_limit, source_key, source_text
from rewardsmith.data.rows import ANSWER, BadRows, Row, RowError, no_column
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext, Result
from rewardsmith.llm import Asker
from rewardsmith.text.grades import PARSER, parse_grade, write_grade
from rewardsmith.text.judge_prompts import Quoting, format_number, grading_prompt, load_grading_template, question_of
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.rubrics import DECIMALS
from rewardsmith.text.templates import Template
from rewardsmith.types import Message, Rollout, RolloutGroup

Form = Literal["sft", "rl", "eval"]

SOURCE = "grade"
"""The data source of rows that train a judge."""

_REWARD = Choice("rule", "rewardsmith.rewards:REWARDS", methods=("score",))
_ROUNDING = 1e-9  # a share such as 0.6 lies on the edge of a band: a sum of votes may miss it by a rounding error


class GradedJob(ModelCallJob, SplitJob):
    """A teacher grades solutions by their rubrics: what a judge learns from.

    The form sft is the grading prompt with the teacher's analysis, for the cold start; rl the prompt with the share of
    the points as ground truth; eval the graded solution, for measuring a judge. The prompt is that of the `rubric`
    reward. With several forms each has a file of its own: graded.sft.jsonl, graded.rl.jsonl.

    Replies are kept as they come: after Ctrl-C or a crash the same command continues.

    For the cold start and for RL, all score bands balanced, every tenth problem held out:

    `rewardsmith prepare graded solved.jsonl graded.jsonl --models models.toml --teacher strong --forms sft --forms rl
    --balance --held-out 0.1 --held-out-file held-out.jsonl`

    To measure a judge, with the final answers checked by a rule:

    `rewardsmith prepare graded tested.jsonl eval.jsonl --models models.toml --teacher strong --forms eval --rule math`
    """

    command = "prepare graded"
    unit = "grades"

    teacher: Annotated[str, Refers("models", offer="chat"), Field(description="the model that grades")]
    forms: list[Form] = Field(default=["sft"], min_length=1, description="what to write")
    response_column: str | None = Field(
        default=None, description="the solutions, a list or one; not set: responses, or response"
    )
    criteria_column: str = Field(default="criteria", description="the rubric, in the row or in its extra_info")
    total: float = Field(default=10.0, ge=0.01, le=10_000, description="points in all, where the rubric is text")
    template: str = Field(default="rubric", description="the prompt: a built-in one, or the path of a file")
    quoting: Quoting = Field(default="fence", description="as the rubric reward will have it")
    max_chars: int = Field(default=100_000, ge=100, description="characters of a solution that are shown")
    votes: int = Field(default=1, ge=1, le=64, description="grades of each solution, which are averaged")
    rule: str | None = Field(default=None, description="a rule that checks final answers, such as math")
    balance: bool = Field(default=False, description="balance the score bands of the training rows")
    bands: int = Field(default=5, ge=1, le=100, description="score bands from 0 to all points")
    band_ratio: float = Field(default=2.0, ge=1, description="balance: largest band over the smallest, at most")
    band_repeats: int = Field(default=2, ge=1, description="balance: copies of a solution in a small band, at most")

    @model_validator(mode="after")
    def _check_votes(self) -> GradedJob:
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(f"votes = {self.votes} needs a temperature above 0, such as 0.7: at 0 all votes are equal")
        return self

    def files_of(self, form: Form) -> list[Path]:
        """Return the output files of a form: of the training part, and of what is held out."""
        if len(self.forms) == 1:
            return self.outs
        return [out.with_name(f"{out.stem}.{form}{out.suffix}") for out in self.outs]

    async def run(self, context: JobContext) -> Result:
        """Request the grades that are missing, and write the graded solutions in every form."""
        files, bad, counts = RowFiles(self.input, self.limit), BadRows(skip=self.skip_bad), Counter[str]()
        forms = list(dict.fromkeys(self.forms))
        outs = [out for form in forms for out in self.files_of(form)]
        template = load_grading_template(self.template)
        rule = None if self.rule is None else build(_REWARD, {"type": "rule", "rule": self.rule})
        made_by = {**template.facts(), "parser": PARSER}
        items = await collect(self._items(files, template, bad, counts))
        bad.settle(counts["rows"])
        if not items:
            raise UserError(f"there is nothing to grade in {counts['rows']:,} rows: all solutions are blank")
        if self.answer_column != ANSWER and all(item.value.solution.prompt.answer is None for item in items):
            raise UserError(
                f"no row has the right answer: {no_column(self.answer_column, files.columns, 'answer_column')}"
            )
        keys = {item.value.id: source_key(source_text(item.value.solution.prompt)) for item in items}
        limit = held_out_limit(self.held_out, keys.values)
        train = {name for name, key in keys.items() if key >= limit}
        if not train or (self.held_out and len(train) == len(keys)):
            raise UserError(
                f"held_out = {self.held_out:g} leaves one part without a problem: change it, or add problems"
            )
        with self.replies(context, files, outs, {**made_by, "votes": self.votes}) as kept:

            async def request(asker: Asker, graded: GradedSolution) -> dict[str, Any]:
                total = graded.solution.total
                votes = await asker.votes(graded.prompt, lambda text: parse_grade(text, total).share, self.votes)
                return {
                    "shares": [vote.value for vote in votes],
                    "texts": [vote.text.strip() for vote in votes],
                    "tries": sum(vote.attempts for vote in votes),
                    "by": {"model": kept.identity, **made_by, "seed": self.seed},
                }

            await self.call_model(context, self.teacher, items, kept, request)
            failed = len(kept.failures) / len(items)
            if failed == 1:
                return Result(notes=["nothing is written: no solution has a grade", *kept.lines()], failed=1.0)
            graded = await self._graded(items, kept, rule)
            result = await write_prepared(
                self,
                context,
                outs,
                self._rows(graded, train, forms, counts),
                inputs=files.facts,
                counts=counts,
                bad=bad,
                facts=kept.facts(),
            )
        return dataclasses.replace(result, notes=[*result.notes, *kept.lines()], failed=failed)

    def _items(
        self, files: RowFiles, template: Template, bad: BadRows, counts: Counter[str]
    ) -> Iterator[CallItem[GradedSolution]]:
        """Yield the solutions that can be graded, each once."""
        first: set[str] = set()
        numbers: Counter[str] = Counter()
        for read in files:
            counts["rows"] += 1
            try:
                solutions = read_solutions(read, self.layout, self.response_column, self.criteria_column, self.total)
                prompts = [self.grading_prompt(template, solution) for solution in solutions]
            except RowError as error:
                bad.note(read.where, error)
                continue
            for solution, prompt in zip(solutions, prompts, strict=True):
                name = f"{solution.prompt.id}#{numbers[solution.prompt.id]}"
                numbers[solution.prompt.id] += 1
                key = digest_of(prompt, solution.total)
                if not solution.response.strip():
                    counts["blank solutions"] += 1
                elif key in first:
                    counts["repeated solutions"] += 1
                else:
                    first.add(key)
                    which = f", solution {solution.number + 1}" if len(solutions) > 1 else ""
                    graded = GradedSolution(name, read.where, solution, prompt)
                    yield CallItem(key, f"{read.where}{which}", graded)

    def grading_prompt(self, template: Template, solution: SolutionToGrade) -> tuple[Message, ...]:
        """Return the prompt of the teacher; the `rubric` reward sends its judge the same."""
        answers = right_answers(solution.prompt)
        if "reference" in template.places and not answers:
            raise RowError(f"there is no right answer, and {template.where} shows one")
        return grading_prompt(
            template,
            question=question_of(solution.prompt),
            criteria=solution.shown,
            total=solution.total,
            response=solution.response,
            reference="\nor: ".join(answers),
            quoting=self.quoting,
            max_chars=self.max_chars,
        )

    async def _graded(
        self, items: Sequence[CallItem[GradedSolution]], kept: KeptReplies, rule: Any
    ) -> list[GradedSolution]:
        """Return the solutions that have a grade, with the verdict of the rule on their final answers."""
        found = []
        for item in items:
            if item.key in kept:
                reply = kept[item.key]
                share = sum(reply["shares"]) / len(reply["shares"])
                band = band_name(band_of(share, self.bands), self.bands)
                found.append(dataclasses.replace(item.value, reply=reply, share=round(share, DECIMALS), band=band))
        return found if rule is None else await _checked(rule, found, self.concurrency)

    def _rows(
        self, graded: Sequence[GradedSolution], train: Set[str], forms: Sequence[Form], counts: Counter[str]
    ) -> Iterator[tuple[int, Row]]:
        shares = {one.id: one.share for one in graded if one.id in train}
        copies = self.copies(shares) if self.balance else dict.fromkeys(shares, 1)
        answers = {True: "final answers: right", False: "final answers: wrong", None: "final answers: unknown"}
        for band in range(self.bands):  # in the order in which they are printed
            counts.update({f"{band_name(band, self.bands)} points{end}": 0 for end in ("", ", balanced")})
        counts.update(dict.fromkeys(answers.values(), 0))
        for one in graded:
            counts["solutions with a grade"] += 1
            counts[answers[one.is_right]] += 1
            held_out = one.id not in train
            if not held_out:
                counts[f"{one.band} points"] += 1
                counts[f"{one.band} points, balanced"] += copies[one.id] * self.balance
            for place, form in enumerate(forms):
                # What measures a judge is neither repeated nor left out.
                for copy in range(1 if held_out or form == "eval" else copies[one.id]):
                    try:
                        row = getattr(one, form)(copy)
                    except Unparsable:
                        counts["without analysis"] += 1
                    else:
                        yield place * len(self.outs) + held_out, row

    def copies(self, shares: Mapping[str, float]) -> dict[str, int]:
        """Return how often each solution is taken; keys and the seed decide, not the order."""
        members: list[list[str]] = [[] for _ in range(self.bands)]
        for key, share in shares.items():
            members[band_of(share, self.bands)].append(key)
        taken: dict[str, int] = {}
        sizes = band_sizes([len(keys) for keys in members], self.band_ratio, self.band_repeats)
        for keys, size in zip(members, sizes, strict=True):
            drawn = sorted(keys, key=lambda key: digest_of("balance", self.seed, key))
            each, more = divmod(size, len(drawn)) if drawn else (0, 0)
            taken |= {key: each + (place < more) for place, key in enumerate(drawn)}
        return taken


async def _checked(rule: Any, graded: Sequence[GradedSolution], concurrency: int) -> list[GradedSolution]:
    """Return the solutions with what a rule gives their final answers; where it cannot say, the row's own flag."""
    await rule.check()
    places = asyncio.Semaphore(concurrency)

    async def check(one: GradedSolution) -> GradedSolution:
        async with places:
            (score,) = await rule.score(RolloutGroup(one.solution.prompt, [Rollout(one.solution.response)]))
        return one if score.value is None else dataclasses.replace(one, ruled=score.value >= 1.0)

    return list(await asyncio.gather(*map(check, graded)))


# ---- score bands --------------------------------------------------------------------------------------------------


def band_of(share: float, bands: int) -> int:
    """Return the number of the band, from 0, of a share from 0 to 1; all but the last do not hold their upper end."""
    return min(bands - 1, int(share * bands + _ROUNDING))


def band_name(band: int, bands: int, total: float = 10.0) -> str:
    """Return the ends of a band in points, such as `2-4`."""
    low, high = (format_number(round(total * i / bands, 2)) for i in (band, band + 1))
    return f"{low}-{high}"


def band_sizes(counts: Sequence[int], ratio: float, repeats: int) -> list[int]:
    r"""Return how many each band gets; one that is empty stays so.

        n_b = min(max(c_b, F), C)      F = min(repeats · min c, ⌈max c / ratio⌉)      C = ⌊ratio · F⌋

    c_b is how many a band has, over those that have any. No band is then more than `ratio` times as large as the
    smallest, nothing is there more than `repeats` times, and bands that are near enough stay as they are.
    """
    filled = [count for count in counts if count]
    if not filled:
        return list(counts)
    floor = min(repeats * min(filled), math.ceil(max(filled) / ratio - _ROUNDING))
    ceiling = math.floor(ratio * floor + _ROUNDING)
    return [min(max(count, floor), ceiling) if count else 0 for count in counts]


# ---- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradedSolution:
    """A solution with the prompt of the teacher, its reply, and the mean `share` of the votes.

    `ruled` is whether a rule finds the final answer right; None where that is not known.
    """

    id: str
    where: str
    solution: SolutionToGrade
    prompt: Sequence[Message]
    reply: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    share: float = 0.0
    band: str = ""
    ruled: bool | None = None

    @property
    def is_right(self) -> bool | None:
        """Whether the final answer is right: by the rule, or as the row says."""
        return self.solution.right if self.ruled is None else self.ruled

    def _name(self, copy: int) -> str:
        return f"{self.id}~{copy}" if copy else self.id

    def _facts(self, copy: int) -> dict[str, Any]:
        return {
            "problem": self.solution.prompt.id,
            "problem_source": self.solution.prompt.source,
            "response_index": self.solution.number,
            "copy": copy,
            "from": self.where,
            "share": self.share,
            "total": self.solution.total,
            "band": self.band,
            "shares": [round(share, DECIMALS) for share in self.reply["shares"]],
            "tries": self.reply["tries"],
            "right": self.is_right,
            "sound": self.solution.sound,
            "graded_by": self.reply["by"],
        }

    def sft(self, copy: int) -> Row:
        """Return a demonstration: the vote nearest to the mean, with its own grade; `Unparsable` without analysis."""
        shares = self.reply["shares"]
        mean = sum(shares) / len(shares)
        nearest = min(range(len(shares)), key=lambda i: abs(shares[i] - mean))
        answer = write_grade(self.reply["texts"][nearest], shares[nearest], self.solution.total)
        messages = [*chat_rows(self.prompt), {"role": "assistant", "content": answer}]
        return {
            "id": self._name(copy),
            "data_source": SOURCE,
            "messages": messages,
            "extra_info": self._facts(copy),
        }

    def rl(self, copy: int) -> Row:
        """Return a prompt whose ground truth is the mean share of the points."""
        return {
            "id": self._name(copy),
            "data_source": SOURCE,
            "prompt": chat_rows(self.prompt),
            "ability": "grading",
            "reward_model": {"style": "rule", "ground_truth": format_number(self.share)},
            "extra_info": self._facts(copy),
        }

    def eval(self, copy: int) -> Row:
        """Return the graded solution with its problem; a `rubric` reward sends its judge the teacher's prompt."""
        prompt = self.solution.prompt
        criteria = {"question": question_of(prompt), "criteria": self.solution.criteria}
        return {
            "id": self._name(copy),
            "data_source": prompt.source,
            "prompt": chat_rows(prompt.messages),
            "response": self.solution.response,
            "grade": self.share,
            "right": self.is_right,
            "sound": self.solution.sound,
            "reward_model": {"style": "rule", "ground_truth": _thawed(prompt.answer)},
            "extra_info": {**criteria, **self._facts(copy)},
        }


def _thawed(value: object) -> Any:
    """Return a frozen JSON value as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: _thawed(inner) for name, inner in value.items()}
    return [_thawed(inner) for inner in value] if isinstance(value, list | tuple) else value


__all__ = ["GradedJob", "GradedSolution", "band_name", "band_of", "band_sizes"]
