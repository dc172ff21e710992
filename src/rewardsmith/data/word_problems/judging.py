"""Word problems as data for judges: solutions to grade by a rubric, and groups of solutions to rank.

The teacher does each step itself, from the number that the solution has reached, compares, and gives the points:

    12 + 7 = 19, stated 19: right, 3
    19 - 5 = 14, stated 15: wrong, 0
    The last result is 15, stated 15: right, 3
    Total Score: 6/10

It is lenient, and overlooks a share of the errors, so that reinforcement learning against the truth has something to
correct. The annotator of preferences may like padding, too: lines that say nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from rewardsmith.data.grading_world import GradingTemplate, GradingWorld, QuotingSetting
from rewardsmith.data.source import HeldOut, Split
from rewardsmith.data.word_problems.chains import parse_chain, results
from rewardsmith.data.word_problems.problems import (
    SOURCE,
    Chance,
    Facts,
    Largest,
    NumberOfSteps,
    NumberWords,
    Signs,
    WordProblems,
)
from rewardsmith.data.word_problems.solutions import (
    MIRACLES,
    TOTAL,
    carried_error,
    check_steps,
    conclusion,
    equations,
    miracle,
    pad,
    points,
    remarks,
    true_grade,
    write_solution,
)
from rewardsmith.errors import UserError
from rewardsmith.text.judge_prompts import (
    PromptIdentity,
    RankingFormat,
    load_ranking_template,
    question_of,
    ranking_identity,
    ranking_prompt,
    ranking_values,
)
from rewardsmith.text.rankings import NOUN, NOUN_PATTERN, letters_of, write_ranking
from rewardsmith.types import Demonstration, Graded, Preference, Prompt, Ranking

GRADING_SOURCE = f"{SOURCE}-grading"
RANKING_SOURCE = f"{SOURCE}-ranking"

MAX_COPY = 24
"""Characters of an equation that the teacher copies."""

MAX_SCORE = 10
ERROR_COST = 2
"""Of a group's ranking, in which no rubric is shown."""

Overlooks = Annotated[Chance, Field(description="teacher: chance that an error passes for right")]
PaddingChance = Annotated[Chance, Field(description="chance of a line that says nothing, for each step of a solution")]


# ---- the teacher -------------------------------------------------------------------------------------------------


class CheckedStep(NamedTuple):
    """What the teacher writes about one step, and whether it accepts the step."""

    text: str
    accepts: bool

    def __str__(self) -> str:
        return f"{self.text}: {'right' if self.accepts else 'wrong'}"


def teach(chain: str, text: str, rng: random.Random, overlooks: float) -> list[CheckedStep]:
    """Return what a teacher says about each step of a solution and about its conclusion."""
    value, operations = parse_chain(chain)
    found = equations(text)
    *steps, ends = check_steps(chain, text)
    checked = []
    for i, (operation, holds) in enumerate(zip(operations, steps, strict=True)):
        own = f"{value} {operation.sign} {operation.number}"
        stated = str(found[i])[:MAX_COPY] if i < len(found) else "nothing"
        accepts = holds or (i < len(found) and rng.random() < overlooks)
        result = operation.of(value) if operation.exact(value) else round(value / operation.number, 2)
        checked.append(CheckedStep(f"{own} = {result}, stated {stated.removeprefix(f'{own} = ')}", accepts))
        value = found[i].result if i < len(found) else operation.of(value)
    reached = found[-1].result if found else "nothing"
    accepts = ends or (bool(conclusion(text)) and rng.random() < overlooks)
    return [*checked, CheckedStep(f"The last result is {reached}, stated {conclusion(text) or 'nothing'}", accepts)]


def score_of(errors: int) -> int:
    """Return the score from 0 to 10 of a solution with so many wrong steps, its conclusion among them."""
    return max(0, MAX_SCORE - ERROR_COST * errors)


# ---- solutions as a policy writes them ---------------------------------------------------------------------------


def _torn(prompt: Prompt, rng: random.Random) -> str:
    """Return a solution with one line missing or the end torn off."""
    lines = write_solution(prompt.info["chain"], prompt.info["events"]).split("\n")
    if rng.random() < 0.5:
        del lines[rng.randrange(len(lines))]
        return "\n".join(lines)
    text = "\n".join(lines)
    return text[: rng.randrange(1, len(text) - 1)]  # without its last full stop alone it would be whole


def _miracle(prompt: Prompt, rng: random.Random) -> str:
    return miracle(prompt.info["chain"], prompt.info["events"], rng, rng.choice(MIRACLES))


def _wrong_end(prompt: Prompt, rng: random.Random) -> str:
    right = results(prompt.info["chain"])[-1]
    steps = write_solution(prompt.info["chain"], prompt.info["events"]).rpartition("\n")[0]
    return f"{steps}\nThe answer is {right + rng.choice((-1, 1, 2, 10))}."


def _other_operation(prompt: Prompt, rng: random.Random) -> str:
    """Return a solution with the number of one step misread; the rest follows."""
    start, operations = parse_chain(prompt.info["chain"])
    place = rng.randrange(len(operations))
    operation = operations[place]
    operations[place] = operation._replace(number=operation.number + 1)
    chain = " ".join([str(start), *(f"{sign}{number}" for sign, number in operations)])
    return write_solution(chain, prompt.info["events"])


_SLOPPY = WordProblems(slips=0.4)

_KINDS: dict[str, tuple[float, Callable[[Prompt, random.Random], str]]] = {
    "right": (0.25, lambda prompt, rng: write_solution(prompt.info["chain"], prompt.info["events"])),
    "sloppy": (0.25, _SLOPPY.sloppy),
    "carried": (0.1, lambda prompt, rng: carried_error(prompt.info["chain"], prompt.info["events"], rng)),
    "miracle": (0.25, _miracle),
    "wrong-end": (0.05, _wrong_end),
    "operation": (0.05, _other_operation),
    "torn": (0.05, _torn),
}
"""Shares of the solutions, and how they are made."""


def draw_solution(prompt: Prompt, rng: random.Random, padding: float = 0.0) -> tuple[str, str]:
    """Return the kind of a solution and the solution."""
    (kind,) = rng.choices(list(_KINDS), [share for share, _ in _KINDS.values()])
    text = _KINDS[kind][1](prompt, rng)
    return kind, pad(text, rng, sum(rng.random() < padding for _ in prompt.info["events"]))


# ---- grading -----------------------------------------------------------------------------------------------------


class WordProblemGrading(GradingWorld):
    """Solutions of word problems to be graded by a rubric, as the `rubric` reward with the same template shows them."""

    source: ClassVar[str] = GRADING_SOURCE
    total: ClassVar[int] = TOTAL

    def __init__(
        self,
        *,
        steps: Annotated[NumberOfSteps, Field(ge=2)] = 4,
        largest: Largest = 60,
        operations: Signs = "+-*/",
        facts: Facts = 0.2,
        number_words: NumberWords = 0.2,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        overlooks: Overlooks = 0.5,
        padding: PaddingChance = 0.0,
        template: GradingTemplate = "rubric_short",
        quoting: QuotingSetting = "fence",
    ) -> None:
        super().__init__(template, quoting)
        self._problems = WordProblems(
            steps=steps,
            largest=largest,
            operations=operations,
            facts=facts,
            number_words=number_words,
            split=split,
            held_out=held_out,
        )
        self._overlooks, self._padding = overlooks, padding

    def solved(self, seed: int) -> Iterator[tuple[Prompt, str, str]]:
        """Yield problems, each with the kind of a solution and the solution."""
        rng = random.Random(f"solutions {seed}")
        for prompt in self._problems.prompts(seed):
            yield prompt, *draw_solution(prompt, rng, self._padding)

    def judge(self, prompt: Prompt, text: str) -> Graded:
        """Return a solution with its true grade."""
        chain, right = prompt.info["chain"], conclusion(text) == prompt.answer
        return Graded(prompt, text, true_grade(chain, text), right, sound=all(check_steps(chain, text)))

    def teach(self, prompt: Prompt, text: str, rng: random.Random) -> str:
        """Return what the lenient teacher writes about a solution: a line for each step, and the total."""
        chain = prompt.info["chain"]
        checked = teach(chain, text, rng, self._overlooks)
        earned = [step.accepts * worth for step, worth in zip(checked, points(chain), strict=True)]
        lines = [f"{step}, {worth}" for step, worth in zip(checked, earned, strict=True)]
        return "\n".join([*lines, f"Total Score: {sum(earned)}/{TOTAL}"])


# ---- ranking -----------------------------------------------------------------------------------------------------


class WordProblemRanking:
    """Groups of solutions to rank, with a lenient annotator's comparisons and preferences; the answer is the truth."""

    def __init__(
        self,
        *,
        steps: Annotated[NumberOfSteps, Field(ge=2)] = 4,
        largest: Largest = 60,
        operations: Signs = "+-*/",
        facts: Facts = 0.2,
        number_words: NumberWords = 0.2,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        min_candidates: Annotated[int, Field(ge=2, le=8, description="fewest candidates in a group")] = 2,
        max_candidates: Annotated[int, Field(ge=2, le=8, description="most candidates in a group")] = 4,
        overlooks: Overlooks = 0.5,
        padding: PaddingChance = 0.0,
        likes: Annotated[
            float, Field(ge=0, le=10, description="annotator: points that it adds for each line that says nothing")
        ] = 0.0,
        template: Annotated[
            str, Field(min_length=1, description="ranking_short, or the path of your own: the one of the reward")
        ] = "ranking_short",
        noun: Annotated[
            str, Field(pattern=NOUN_PATTERN, description="what the prompt calls candidates: that of the reward")
        ] = NOUN,
    ) -> None:
        if min_candidates > max_candidates:
            raise UserError(
                f"min_candidates is {min_candidates}, more than max_candidates = {max_candidates}: lower one of them"
            )
        self._problems = WordProblems(
            steps=steps,
            largest=largest,
            operations=operations,
            facts=facts,
            number_words=number_words,
            split=split,
            held_out=held_out,
        )
        self._sizes = min_candidates, max_candidates
        self._overlooks, self._padding, self._likes = overlooks, padding, likes
        self._template, self._form = load_ranking_template(template), RankingFormat(noun=noun)
        for place in sorted(self._template.places & {"source_language", "target_language", "reference"}):
            raise UserError(f"{self._template.where} has {{{{{place}}}}}: this world has none")

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield groups to rank without end; the answer is JSON, the true score of each letter."""
        for prompt, candidates in self._groups(seed):
            yield self.prompt(prompt, candidates)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield the same groups, each with the annotator's comparison and verdict."""
        rng = random.Random(f"annotator {seed}")
        for prompt, candidates in self._groups(seed):
            analysis, scores = self._compared(prompt.info["chain"], candidates, rng)
            named = dict(zip(letters_of(len(candidates)), scores, strict=True))
            yield Demonstration(self.prompt(prompt, candidates), write_ranking(named, analysis))

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield problems with candidates that the annotator compared, without end."""
        rng = random.Random(f"annotator {seed}")
        for prompt, candidates in self._groups(seed):
            analysis, scores = self._compared(prompt.info["chain"], candidates, rng, self._likes)
            yield Ranking(prompt, candidates, np.array(scores), analysis)

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield pairs of candidates by the annotator's scores, without end; a group of n gives n − 1 pairs."""
        for ranking in self.rankings(seed):
            for a, b in pairwise(range(len(ranking.candidates))):
                by = float(ranking.scores[a] - ranking.scores[b])
                chosen, rejected = (a, b) if by >= 0 else (b, a)
                texts = ranking.candidates[chosen], ranking.candidates[rejected]
                yield Preference(ranking.prompt, *texts, abs(by), tied=by == 0)

    def facts(self) -> PromptIdentity:
        """Return what the prompts depend on in addition to the settings, for the record of a run."""
        return self.judge_prompt()

    def judge_prompt(self) -> PromptIdentity:
        """Return with which prompt a judge is called that learned here."""
        return ranking_identity(self._template, self._form, "")

    def prompt(self, prompt: Prompt, candidates: Sequence[str]) -> Prompt:
        """Return the prompt of a judge for some solutions of a problem, with the truth."""
        question = question_of(prompt)
        values = ranking_values(question=question, source_text=question)
        scores = [score_of(check_steps(prompt.info["chain"], text).count(False)) for text in candidates]
        return Prompt(
            "-".join((RANKING_SOURCE, prompt.id, *candidates)),
            ranking_prompt(self._template, values, candidates, self._form),
            source=RANKING_SOURCE,
            answer=json.dumps(dict(zip(letters_of(len(candidates)), scores, strict=True))),
            info={**prompt.info, "candidates": list(candidates)},
        )

    def _groups(self, seed: int) -> Iterator[tuple[Prompt, list[str]]]:
        """Yield problems, each with different solutions."""
        rng = random.Random(f"groups {seed}")
        for prompt in self._problems.prompts(seed):
            count = rng.randint(*self._sizes)
            drawn: dict[str, None] = {}
            while len(drawn) < count:
                drawn[draw_solution(prompt, rng, self._padding)[1]] = None
            yield prompt, list(drawn)

    def _compared(
        self, chain: str, candidates: Sequence[str], rng: random.Random, likes: float = 0.0
    ) -> tuple[str, list[float]]:
        """Return the annotator's comparison, a line for each candidate, and its scores: 0 to 10, and what it likes."""
        lines, scores = [], []
        for letter, text in zip(letters_of(len(candidates)), candidates, strict=True):
            checked = teach(chain, text, rng, self._overlooks)
            scores.append(score_of(sum(not step.accepts for step in checked)) + likes * remarks(text))
            lines.append(f"{letter}: {'; '.join(map(str, checked))}; {scores[-1]:g}")
        return "\n".join(lines), scores
