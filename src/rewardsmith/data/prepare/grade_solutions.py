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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rewardsmith.checks import thawed
from rewardsmith.config import Choice, Refers, build
from rewardsmith.data.prepare.model_calls import CallItem, ModelCallJob
from rewardsmith.data.prepare.prepare_job import (
    Preparation,
    ReadRow,
    SplitJob,
    chat_rows,
    digest_of,
    held_out_limit,
    source_key,
    source_text,
)
from rewardsmith.data.prepare.row_files import responses_of
from rewardsmith.data.prepare.write_rubrics import right_answers
from rewardsmith.data.rows import ABSENT, Row, RowError, describe, find, flag_of, without
from rewardsmith.jobs import JobContext, Result
from rewardsmith.llm import Asker
from rewardsmith.text.grades import PARSER, parse_grade, write_grade
from rewardsmith.text.judge_prompts import (
    Quoting,
    format_number,
    grading_identity,
    grading_prompt,
    load_grading_template,
    question_of,
)
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.rubrics import DECIMALS, InvalidCriteria, list_criteria, parse_criteria, total_points
from rewardsmith.text.templates import Template
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup

Form = Literal["sft", "rl", "eval"]

SOURCE = "grade"
"""The data source of rows that train a judge."""

_REWARD = Choice("rule", "rewardsmith.rewards:REWARDS", methods=("score",))
_ROUNDING = 1e-9  # a share such as 0.6 lies on the edge of a band: a sum of votes may miss it by a rounding error


class GradedJob(ModelCallJob, SplitJob):
    """A teacher grades solutions by their rubrics: what a judge learns from.

    INPUT has a problem, its rubric and solutions in each row; or it is a run folder, or a file of `generate` or
    `score`, whose rollouts are the solutions. Their rubrics are those of the data that they were sampled from.

    The form sft is the grading prompt with the teacher's analysis, for the cold start; rl the prompt with the share of
    the points as ground truth; eval the graded solution, for measuring a judge. The prompt is that of the `rubric`
    reward. With several forms each has a file of its own: graded.sft.jsonl, graded.rl.jsonl.

    Replies are kept as they come: after Ctrl-C or a crash the same command continues.

    For the cold start and for RL, all score bands balanced, every tenth problem held out:

    `rewardsmith prepare graded solved.jsonl graded.jsonl --models models.toml --teacher strong --forms sft --forms rl
    --balance --held-out 0.1 --held-out-file held-out.jsonl`

    The solutions that a run sampled in its last steps, each different one once:

    `rewardsmith prepare graded runs/rrm graded.jsonl --teacher http://localhost:8000/v1 --kind train --step 200-220`

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
        prepared = Preparation(self, limit=self.limit)
        template = load_grading_template(self.template)
        rule = None if self.rule is None else build(_REWARD, {"type": "rule", "rule": self.rule})
        items = await prepared.read(self._parser(template, prepared.counts))
        prepared.require_columns(answer_column=self.answer_column)
        judged = [out for form in self.forms if form != "eval" for out in self.files_of(form)]
        prepared.judge_prompts = dict.fromkeys(judged, grading_identity(template, self.quoting))
        limit = held_out_limit(self.held_out, (item.value.source_key for item in items))

        async def request(asker: Asker, solution: GradedSolution) -> dict[str, Any]:
            total = solution.total
            votes = await asker.votes(solution.request, lambda text: parse_grade(text, total).share, self.votes)
            return {
                "shares": [vote.value for vote in votes],
                "texts": [vote.text.strip() for vote in votes],
                "tries": sum(vote.attempts for vote in votes),
            }

        async def rows(reply: Callable[[str], Any]) -> Iterable[tuple[int, Row]]:
            replies = ((item.value, reply(item.key)) for item in items)
            graded = [solution.with_grade(found, self.bands) for solution, found in replies if found]
            if rule is not None:
                graded = await _checked(rule, graded, self.concurrency)
            return self._rows(graded, limit, prepared.counts)

        return await self.write_replies(
            context,
            prepared,
            self.teacher,
            items,
            request,
            rows,
            outs=[out for form in dict.fromkeys(self.forms) for out in self.files_of(form)],
            made_by={**template.facts(), "parser": PARSER},
            settings={"votes": self.votes},
        )

    def _parser(
        self, template: Template, counts: Counter[str]
    ) -> Callable[[ReadRow], Iterator[CallItem[GradedSolution]]]:
        """Return a function that gives the solutions of a row that can be graded, each once."""
        first: set[str] = set()
        numbers: Counter[str] = Counter()

        def parse(read: ReadRow) -> Iterator[CallItem[GradedSolution]]:
            for solution in [*self._solutions(read, template)]:
                name = f"{solution.prompt.id}#{numbers[solution.prompt.id]}"
                numbers[solution.prompt.id] += 1
                key = digest_of(solution.request, solution.total)
                if not solution.response.strip():
                    counts["blank solutions"] += 1
                elif key in first:
                    counts["repeated solutions"] += 1
                else:
                    first.add(key)
                    where = f"{read.where}, solution {solution.number + 1}"
                    yield CallItem(key, where, dataclasses.replace(solution, id=name))

        return parse

    def _solutions(self, read: ReadRow, template: Template) -> Iterator[GradedSolution]:
        """Yield the solutions of a row, blank ones included; rows are untrusted."""
        column, texts, is_list = responses_of(read.row, self.response_column)
        flags = {name: _flags(read.row, name, len(texts), is_list) for name in ("right", "sound")}
        prompt = self.layout.prompt_of(without(read.row, [column, *flags]), read.file, read.number)
        criteria, shown, total = self._criteria(read.row)
        answers = right_answers(prompt)
        if "reference" in template.places and not answers:
            raise RowError(f"there is no right answer, and {template.where} shows one")
        for i, text in enumerate(texts):
            # The prompt of the teacher: the `rubric` reward sends its judge the same.
            request = grading_prompt(
                template,
                question=question_of(prompt),
                criteria=shown,
                total=total,
                response=text,
                reference="\nor: ".join(answers),
                quoting=self.quoting,
                max_chars=self.max_chars,
            )
            yield GradedSolution(
                read.where, prompt, criteria, total, text, i, request, flags["right"][i], flags["sound"][i]
            )

    def _criteria(self, row: Row) -> tuple[Any, str, float]:
        """Return the criteria as JSON, as a judge reads them, and their points in all."""
        column = self.criteria_column
        value = find(row, column)
        value = find(row, f"extra_info.{column}") if value is ABSENT else value
        try:
            found = parse_criteria(None if value is ABSENT else value, column, "the row")
        except InvalidCriteria as error:
            raise RowError(f"{error}. `rewardsmith prepare rubric` writes them") from None
        if isinstance(found, str):
            return found, found, self.total
        if any(criterion.points < 0 for criterion in found):
            raise RowError(f"{column} has negative points: a whole rubric is graded from 0 to its points")
        given = [entry.get("name") if isinstance(entry, Mapping) else None for entry in value]
        names = [name if isinstance(name, str) and name else one.name for name, one in zip(given, found, strict=True)]
        tables = [
            {"name": name, "points": one.points, "text": one.text} for name, one in zip(names, found, strict=True)
        ]
        return tables, list_criteria(found), total_points(found)

    def _rows(self, graded: Sequence[GradedSolution], limit: int, counts: Counter[str]) -> Iterator[tuple[int, Row]]:
        shares = {one.id: one.share for one in graded if one.source_key >= limit}
        copies = self.copies(shares) if self.balance else dict.fromkeys(shares, 1)
        answers = {True: "final answers: right", False: "final answers: wrong", None: "final answers: unknown"}
        counts.update({f"{band_name(band, self.bands)} points": 0 for band in range(self.bands)})  # printed in order
        for one in graded:
            held_out = one.source_key < limit
            counts.update(["solutions with a grade", answers[one.right], *([] if held_out else [f"{one.band} points"])])
            for place, form in enumerate(dict.fromkeys(self.forms)):
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


def _flags(row: Row, name: str, count: int, is_list: bool) -> list[bool | None]:
    """Return a flag for each solution of a row: a list for a list, one value for one; None where it is unknown."""
    value = row.get(name)
    if value is None:
        return [None] * count
    if not is_list:
        return [flag_of(name, value)]
    if not isinstance(value, list) or len(value) != count:
        raise RowError(f"{name} is {describe(value)}: for {count} solutions it must be a list of as many")
    return [None if one is None else flag_of(f"{name}[{i}]", one) for i, one in enumerate(value)]


async def _checked(rule: Any, graded: Sequence[GradedSolution], concurrency: int) -> list[GradedSolution]:
    """Return the solutions with the verdict of a rule on their final answers; without one, the row's own flag stays."""
    await rule.check()
    slots = asyncio.Semaphore(concurrency)

    async def check(one: GradedSolution) -> GradedSolution:
        async with slots:
            (score,) = await rule.score(RolloutGroup(one.prompt, [Rollout(one.response)]))
        return one if score.value is None else dataclasses.replace(one, right=score.value >= 1.0)

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
    """A solution with its rubric, the prompt of the teacher (`request`), its reply, and the mean `share` of the votes.

    `right` (the final answer) and `sound` (every step) are None where that is not known.
    """

    where: str
    prompt: Prompt
    criteria: Any
    total: float
    response: str
    number: int
    request: Sequence[Message]
    right: bool | None
    sound: bool | None
    id: str = ""
    reply: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    share: float = 0.0
    band: str = ""

    @cached_property
    def source_key(self) -> int:
        """What decides the split."""
        return source_key(source_text(self.prompt))

    def with_grade(self, reply: Mapping[str, Any], bands: int) -> GradedSolution:
        """Return the solution with the teacher's reply."""
        share = sum(reply["shares"]) / len(reply["shares"])
        band = band_name(band_of(share, bands), bands)
        return dataclasses.replace(self, reply=reply, share=round(share, DECIMALS), band=band)

    def _row(self, copy: int, source: str, columns: Row, **info: Any) -> Row:
        facts = {
            "problem": self.prompt.id,
            "problem_source": self.prompt.source,
            "response_index": self.number,
            "copy": copy,
            "from": self.where,
            "share": self.share,
            "total": self.total,
            "band": self.band,
            "shares": [round(share, DECIMALS) for share in self.reply["shares"]],
            "tries": self.reply["tries"],
            "right": self.right,
            "sound": self.sound,
            "graded_by": self.reply["made_by"],
        }
        name = f"{self.id}~{copy}" if copy else self.id
        return {"id": name, "data_source": source, **columns, "extra_info": {**info, **facts}}

    def sft(self, copy: int) -> Row:
        """Return a demonstration: the vote nearest to the mean, with its own grade; `Unparsable` without analysis."""
        shares = self.reply["shares"]
        mean = sum(shares) / len(shares)
        nearest = min(range(len(shares)), key=lambda i: abs(shares[i] - mean))
        answer = write_grade(self.reply["texts"][nearest], shares[nearest], self.total)
        messages = [*chat_rows(self.request), {"role": "assistant", "content": answer}]
        return self._row(copy, SOURCE, {"messages": messages})

    def rl(self, copy: int) -> Row:
        """Return a prompt whose ground truth is the mean share of the points."""
        truth = {"style": "rule", "ground_truth": format_number(self.share)}
        columns = {"prompt": chat_rows(self.request), "ability": "grading", "reward_model": truth}
        return self._row(copy, SOURCE, columns)

    def eval(self, copy: int) -> Row:
        """Return the graded solution with its problem; a `rubric` reward sends its judge the teacher's prompt."""
        columns = {
            "prompt": chat_rows(self.prompt.messages),
            "response": self.response,
            "grade": self.share,
            "right": self.right,
            "sound": self.sound,
            "reward_model": {"style": "rule", "ground_truth": thawed(self.prompt.answer)},
        }
        return self._row(copy, self.prompt.source, columns, question=question_of(self.prompt), criteria=self.criteria)
