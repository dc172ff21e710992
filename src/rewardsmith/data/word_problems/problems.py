"""Word problems as a data source: prompts, demonstrations that may be sloppy, and answers with known faults."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rewardsmith.data.distractors import distractors
from rewardsmith.data.known_answers import KnownAnswer
from rewardsmith.data.source import HeldOut, Split, draw_from_split, require_share
from rewardsmith.data.word_problems.chains import MAX_STEPS, can_draw, draw_chain, parse_chain, results
from rewardsmith.data.word_problems.solutions import (
    MIRACLES,
    carried_error,
    criteria,
    miracle,
    nearby,
    pad,
    write_solution,
)
from rewardsmith.data.word_problems.stories import Story, tell
from rewardsmith.errors import UserError
from rewardsmith.types import Demonstration, Message, Prompt

SOURCE = "word-problems"

Chance = Annotated[float, Field(ge=0, le=1)]
NumberOfSteps = Annotated[int, Field(ge=1, le=MAX_STEPS, description="operations in a problem")]
Largest = Annotated[int, Field(ge=10, le=10_000, description="largest number on the way")]
Signs = Annotated[str, Field(pattern=r"^[-+*/]{1,8}$", description="operations that occur; twice for twice as often")]
Facts = Annotated[Chance, Field(description="chance of a sentence that does not matter before a step")]
NumberWords = Annotated[Chance, Field(description="chance that a number up to twelve is a word")]


class WordProblems:
    """Word problems in English with several steps, each of which a program can check."""

    def __init__(
        self,
        *,
        steps: NumberOfSteps = 4,
        largest: Largest = 60,
        operations: Signs = "+-*/",
        facts: Facts = 0.2,
        number_words: NumberWords = 0.2,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        slips: Annotated[Chance, Field(description="demonstrations: chance that a step has a wrong result")] = 0.0,
        miracles: Annotated[Chance, Field(description="demonstrations: share of right answers with a flaw")] = 0.0,
        padding: Annotated[Chance, Field(description="demonstrations: chance of a line that says nothing")] = 0.0,
    ) -> None:
        require_share(split, held_out)
        if miracles and steps < 2:
            raise UserError(f"miracles is {miracles}: a miracle needs a step before the last, so steps >= 2")
        if not can_draw(steps, largest, operations):
            raise UserError(
                f"operations is {operations!r}: there is no problem of steps = {steps} with numbers up to"
                f" largest = {largest}, or hardly any; lower steps, raise largest, or take operations = '+-'"
            )
        self._difficulty = steps, largest, operations
        self._facts, self._number_words = facts, number_words
        self._split, self._held_out = split, held_out
        self._slips, self._miracles, self._padding = slips, miracles, padding
        self._chain(random.Random(0))  # a split without problems is found here

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield problems of this split without end."""
        rng = random.Random(seed)
        while True:
            chain = self._chain(rng)
            yield problem(chain, tell(chain, rng, facts=self._facts, number_words=self._number_words))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield problems of this split without end, each with a solution that may slip or be a miracle."""
        rng = random.Random(f"solutions {seed}")
        for prompt in self.prompts(seed):
            yield Demonstration(prompt, self.sloppy(prompt, rng))

    def sloppy(self, prompt: Prompt, rng: random.Random) -> str:
        """Return a solution as the demonstrations have it."""
        chain, events = prompt.info["chain"], prompt.info["events"]
        if rng.random() < self._miracles:
            text = miracle(chain, events, rng, rng.choice(MIRACLES))
        else:
            text = write_solution(chain, events, self._errors(chain, rng))
        return pad(text, rng, sum(rng.random() < self._padding for _ in events))

    def known_answers(self, prompt: Prompt, rng: random.Random) -> Iterator[KnownAnswer]:
        """Yield solutions of a problem, right and wrong, of which it is known what they are worth."""
        chain, events = prompt.info["chain"], prompt.info["events"]
        reference, right = write_solution(chain, events), results(chain)[-1]
        steps, _, _ = reference.rpartition("\n")
        wrong = distractors(str(right), rng, 1)[0]
        yield KnownAnswer("reference", reference, right=True, sound=True)
        yield KnownAnswer("wrong-answer", f"{steps}\nThe answer is {wrong}.", right=False, sound=False)
        yield KnownAnswer("carried-error", carried_error(chain, events, rng), right=False, sound=False)
        if len(events) > 1:
            for kind in MIRACLES:
                yield KnownAnswer(f"miracle-{kind}", miracle(chain, events, rng, kind), right=True, sound=False)
        yield KnownAnswer("answer-only", f"The answer is {right}.", right=True, sound=False)
        yield KnownAnswer("no-conclusion", steps, right=False, sound=False)

    def _chain(self, rng: random.Random) -> str:
        """Draw a chain of this split."""
        steps, largest, signs = self._difficulty
        what = f"word problem with steps = {steps}, largest = {largest} and operations = {signs!r}"
        return draw_from_split(lambda: draw_chain(rng, steps, largest, signs), self._split, self._held_out, what)

    def _errors(self, chain: str, rng: random.Random) -> dict[int, int]:
        """Return the wrong results of a solution by step; an error is carried on."""
        value, operations = parse_chain(chain)
        stated = {}
        for i, operation in enumerate(operations):
            value = operation.of(value)
            if rng.random() < self._slips:
                value = stated[i] = nearby(value, rng)
        return stated


def problem(chain: str, story: Story) -> Prompt:
    """Return the prompt that tells a story about a chain."""
    digest = hashlib.blake2b(story.text.encode(), digest_size=4).hexdigest()
    return Prompt(
        f"{SOURCE}-{chain.replace(' ', '')}-{digest}",
        [Message("user", f"{story.text} Solve it step by step.")],
        source=SOURCE,
        answer=str(results(chain)[-1]),
        info={"chain": chain, "events": list(story.events), "criteria": criteria(chain, story.events)},
    )
