"""The tiny world of translation for a judge that ranks: what it is asked, and how a careless annotator answers.

The prompts are those of the reward `ranking`, made by the same function, so that a judge that learned here can be
asked there. The answer of a prompt is the truth; the demonstrations are the annotator's, who overlooks most errors on
the hard words. A judge that imitates them is lenient where the annotator is, and reinforcement learning against the
truth has something to mend.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rewardsmith.data.translation import (
    TRUTH,
    Annotator,
    Fewest,
    Flips,
    Flourishes,
    Gaps,
    Groups,
    HeldOut,
    Misses,
    Most,
    Sentences,
    Split,
    Words,
)
from rewardsmith.errors import UserError
from rewardsmith.text.ranking_prompts import Verdicts, load_ranking_template, ranking_prompt, showing
from rewardsmith.text.rankings import letters_of, write_ranking
from rewardsmith.text.words import translate
from rewardsmith.types import Demonstration, Prompt

SOURCE = "translation-ranking"

_VERDICTS = Verdicts("both", 0, 10)


class TranslationRanking:
    """Groups of translations to rank, with a careless annotator's comparisons; the answer is the truth."""

    def __init__(
        self,
        *,
        words: Words = 3,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        fewest: Fewest = 2,
        most: Most = 4,
        flourishes: Flourishes = 0.0,
        gaps: Gaps = 0.0,
        misses: Misses = 0.6,
        flips: Flips = 0.08,
        template: Annotated[
            str, Field(min_length=1, description="ranking_short, or the path of your own: the one of the reward")
        ] = "ranking_short",
    ) -> None:
        self._sentences = Sentences(words, split, held_out)
        self._groups = Groups(fewest, most, flourishes, gaps)
        self._annotator = Annotator(misses, flips)
        self._template = load_ranking_template(template)
        languages = sorted(self._template.places & {"source_language", "target_language"})
        if languages:
            raise UserError(
                f"{self._template.where} has {{{{{languages[0]}}}}}: the languages of this world have no names"
            )

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield groups to rank without end; the answer is JSON, the true score of each letter."""
        rng = random.Random(seed)
        while True:
            sentence = self._sentences.draw(rng)
            yield self.prompt(sentence, self._groups.draw(sentence, rng))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield the same groups, each with the annotator's comparison and verdict."""
        rng = random.Random(f"annotator {seed}")
        for prompt in self.prompts(seed):
            sentence, candidates = prompt.info["src_text"], prompt.info["candidates"]
            analysis, scores = self._annotator.judge(sentence, candidates, rng)
            named = dict(zip(letters_of(len(candidates)), scores, strict=True))
            yield Demonstration(prompt, write_ranking(named, analysis))

    def facts(self) -> dict[str, str]:
        """Return what the prompts depend on beside the settings, for the record of a run."""
        return self._template.facts()

    def prompt(self, sentence: str, candidates: list[str]) -> Prompt:
        """Return what a judge is asked about some translations of a sentence, with the truth."""
        shown = showing(question=sentence, source_text=sentence, references=[translate(sentence)])
        _, scores = TRUTH.judge(sentence, candidates, random.Random(0))
        truth = dict(zip(letters_of(len(candidates)), map(int, scores), strict=True))
        return Prompt(
            "-".join((SOURCE, sentence, *candidates)),
            ranking_prompt(self._template, shown, candidates, _VERDICTS),
            source=SOURCE,
            answer=json.dumps(truth),
            info={"src_text": sentence, "candidates": candidates},
        )
