"""A tiny world of translation with programmatic truth: sentences of three words, translated word by word.

    kab   ->   PTQ

`rewardsmith.text.words` has the dictionary and the truth. Nobody in this world works with care, and each is careless in
a way that a training has to mend:

- The translator of the demonstrations takes false friends for translations, above all on the four hard words, and may
  add a word that is one too many, a flourish. A policy that imitates it has seen the right words too, and a reward can
  select them.
- The annotator of rankings and preferences overlooks errors on the hard words, marks others wrongly now and then, and
  may like flourishes. By default it makes no mistakes: then rankings and preferences are the truth.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.text.rankings import letters_of
from rewardsmith.text.words import (
    DICTIONARY,
    FALSE_FRIENDS,
    HARD,
    HIGHEST,
    PER_ERROR,
    SOURCE_WORDS,
    TARGET_WORDS,
    Pair,
    pairs,
    translate,
    write_analysis,
)
from rewardsmith.types import Demonstration, Message, Preference, Prompt, Ranking

SOURCE = "translation"

_PATIENCE = 20_000  # draws; with the smallest share of 0.001, bad luck that long has probability 2e-9

Words = Annotated[int, Field(ge=2, le=5, description="words in a sentence")]
Split = Annotated[
    Literal["train", "held-out"], Field(description="a sentence is in one of the two, by a hash of its text")
]
HeldOut = Annotated[float, Field(ge=0, le=0.99, description="share of the sentences that is held out")]
Fewest = Annotated[int, Field(ge=2, le=4, description="fewest candidates in a group")]
Most = Annotated[int, Field(ge=2, le=4, description="most candidates in a group")]
Misses = Annotated[float, Field(ge=0, le=1, description="annotator: chance that an error on a hard word is overlooked")]
Flips = Annotated[float, Field(ge=0, le=1, description="annotator: chance that another word is marked wrongly")]
Flourishes = Annotated[float, Field(ge=0, le=1, description="chance that a candidate has a word too many")]
Gaps = Annotated[float, Field(ge=0, le=1, description="chance that another candidate lacks its last word")]


class Sentences:
    """The sentences of a split.

    Args:
        words: in each.
        split: `train` or `held-out`.
        held_out: share of the sentences that is held out.
    """

    def __init__(self, words: int, split: str, held_out: float) -> None:
        if split == "held-out" and held_out < 0.001:
            raise UserError(f"held_out is {held_out}: the held-out split needs a share of at least 0.001")
        self._words, self._split, self._held_out = words, split, held_out

    def draw(self, rng: random.Random) -> str:
        """Return a sentence of the split, drawn evenly from all of them."""
        for _ in range(_PATIENCE):
            sentence = "".join(rng.choices(SOURCE_WORDS, k=self._words))
            digest = hashlib.blake2b(sentence.encode(), digest_size=8).digest()
            is_held_out = int.from_bytes(digest, "big") < self._held_out * 2**64
            if is_held_out == (self._split == "held-out"):
                return sentence
        raise UserError(
            f"no sentence of {self._words} words is in the split {self._split!r} with held_out = {self._held_out}:"
            " hold out more, or use more words"
        )


class Groups:
    """Groups of different translations of one sentence.

    Any number of wrong words is equally likely. A wrong word is the false friend half of the time, and any other wrong
    word else.

    Args:
        fewest: candidates in a group.
        most: candidates in a group.
        flourishes: chance that a candidate has a word too many.
        gaps: chance that one of the others lacks its last word.
    """

    def __init__(self, fewest: int, most: int, flourishes: float = 0.0, gaps: float = 0.0) -> None:
        if fewest > most:
            raise UserError(f"fewest is {fewest}, more than most = {most}: no group has so many candidates")
        self._fewest, self._most, self._flourishes, self._gaps = fewest, most, flourishes, gaps

    def draw(self, sentence: str, rng: random.Random) -> list[str]:
        """Return the candidates of a group."""
        count = rng.randint(self._fewest, self._most)
        drawn: dict[str, None] = {}
        while len(drawn) < count:
            drawn[self._candidate(sentence, rng)] = None
        return list(drawn)

    def _candidate(self, sentence: str, rng: random.Random) -> str:
        words = list(translate(sentence))
        for i in rng.sample(range(len(words)), rng.randint(0, len(words))):
            others = [word for word in TARGET_WORDS if word != words[i]]
            words[i] = FALSE_FRIENDS[sentence[i]] if rng.random() < 0.5 else rng.choice(others)
        text = "".join(words)
        if rng.random() < self._flourishes:
            return flourished(text, rng)
        return text[:-1] if rng.random() < self._gaps else text


class Annotator:
    """Marks the words of translations, and scores them by the marks: 10 less 2 for each that it holds to be wrong.

    Args:
        misses: chance that an error on a hard word is overlooked.
        flips: chance that the mark of another word is the wrong one.
        likes: points that it adds for each word too many, which it does not hold to be an error then; 0 for none.
    """

    def __init__(self, misses: float = 0.0, flips: float = 0.0, likes: float = 0.0) -> None:
        self._misses, self._flips, self._likes = misses, flips, likes

    def judge(self, sentence: str, candidates: Sequence[str], rng: random.Random) -> tuple[str, list[float]]:
        """Return its comparison of some translations, and a score for each."""
        compared = [pairs(sentence, text) for text in candidates]
        wrong = [[self._marks(pair, rng) for pair in found] for found in compared]
        scores = [self._score(found, marks) for found, marks in zip(compared, wrong, strict=True)]
        return write_analysis(letters_of(len(candidates)), compared, wrong, scores), scores

    def _marks(self, pair: Pair, rng: random.Random) -> bool:
        """Return whether it marks a pair as wrong."""
        wrong = not pair.right
        if not pair.source:
            return wrong and not self._likes
        if wrong and pair.source in HARD:
            return rng.random() >= self._misses
        return wrong != (rng.random() < self._flips)

    def _score(self, found: Sequence[Pair], wrong: Sequence[bool]) -> float:
        liked = self._likes * sum(not pair.source for pair in found)
        return max(0.0, HIGHEST - PER_ERROR * sum(wrong) + liked)


TRUTH = Annotator()
"""An annotator without mistakes."""


class Translation:
    """Sentences of a toy language to translate word by word, with sloppy demonstrations and ranked candidates."""

    def __init__(
        self,
        *,
        words: Words = 3,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        false_friends: Annotated[
            float, Field(ge=0, le=1, description="demonstrations: chance of a false friend for a hard word")
        ] = 0.6,
        slips: Annotated[
            float, Field(ge=0, le=1, description="demonstrations: chance of a false friend for another word")
        ] = 0.2,
        flourishes: Annotated[
            float, Field(ge=0, le=1, description="chance that a demonstration or a candidate has a word too many")
        ] = 0.0,
        gaps: Gaps = 0.0,
        fewest: Fewest = 2,
        most: Most = 4,
        misses: Misses = 0.0,
        flips: Flips = 0.0,
        likes: Annotated[
            float,
            Field(ge=0, le=10, description="annotator: points that it adds for a word too many, in place of an error"),
        ] = 0.0,
    ) -> None:
        self._sentences = Sentences(words, split, held_out)
        self._false_friends, self._slips, self._flourishes = false_friends, slips, flourishes
        self._groups = Groups(fewest, most, flourishes, gaps)
        self._annotator = Annotator(misses, flips, likes)

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield sentences of this split without end; the answer is the right translation."""
        rng = random.Random(seed)
        while True:
            yield prompt_of(self._sentences.draw(rng))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield sentences of this split, each as the sloppy translator translates it, without end."""
        rng = random.Random(f"translator {seed}")
        for prompt in self.prompts(seed):
            yield Demonstration(prompt, self._sloppy(prompt.info["src_text"], rng))

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield sentences of this split with candidates that the annotator compared, without end."""
        rng = random.Random(f"groups {seed}")
        while True:
            sentence = self._sentences.draw(rng)
            candidates = self._groups.draw(sentence, rng)
            analysis, scores = self._annotator.judge(sentence, candidates, rng)
            yield Ranking(prompt_of(sentence, *candidates), candidates, np.array(scores), analysis)

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield pairs of candidates by the annotator's scores, without end; a group of n gives n − 1 pairs."""
        for ranking in self.rankings(seed):
            for a, b in pairwise(range(len(ranking.candidates))):
                by = float(ranking.scores[a] - ranking.scores[b])
                chosen, rejected = (a, b) if by >= 0 else (b, a)
                texts = ranking.candidates[chosen], ranking.candidates[rejected]
                yield Preference(prompt_of(ranking.prompt.info["src_text"], *texts), *texts, abs(by), tied=by == 0)

    def _sloppy(self, sentence: str, rng: random.Random) -> str:
        def word(source: str) -> str:
            chance = self._false_friends if source in HARD else self._slips
            return (FALSE_FRIENDS if rng.random() < chance else DICTIONARY)[source]

        text = "".join(map(word, sentence))
        return flourished(text, rng) if rng.random() < self._flourishes else text


def prompt_of(sentence: str, *candidates: str) -> Prompt:
    """Return the prompt for a sentence; with candidates, an id that names them too."""
    name = "-".join((SOURCE, sentence, *candidates))
    asked = [Message("user", sentence)]
    return Prompt(name, asked, source=SOURCE, answer=translate(sentence), info={"src_text": sentence})


def flourished(text: str, rng: random.Random) -> str:
    """Return a translation with a word too many at its end."""
    return text + rng.choice(TARGET_WORDS)
