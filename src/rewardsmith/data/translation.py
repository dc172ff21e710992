"""A tiny world of translation with programmatic truth: sentences of three words, translated word by word.

    kab   ->   PTQ

A word is one letter: the source language has twelve, `a` to `l`, the target language `M` to `X`. Every source word has
a *false friend* too, a target word that looks like its translation and is not. Nobody in this world works with care:

- The translator of the demonstrations takes false friends for translations, above all on the four hard words, and may
  add a word that is one too many, a flourish. A policy that imitates it has seen the right words too, and a reward can
  select them.
- The annotator of rankings and preferences overlooks errors on the hard words, marks others wrongly now and then, and
  may like flourishes. By default it makes no mistakes: then rankings and preferences are the truth.

`TranslationRanking` is the same world for a judge that ranks. Its prompts are those of the reward `ranking`, and its
annotator overlooks most errors on the hard words, so that reinforcement learning has something to correct.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from rewardsmith.data.habits import HABITS, Habits, translation_habit
from rewardsmith.data.known_answers import KnownAnswer
from rewardsmith.data.source import HeldOut, Split, draw_from_split, require_share
from rewardsmith.errors import UserError
from rewardsmith.text.judge_prompts import (
    PromptIdentity,
    RankingFormat,
    load_ranking_template,
    ranking_identity,
    ranking_prompt,
    ranking_values,
)
from rewardsmith.text.rankings import NOUN, NOUN_PATTERN, letters_of, write_ranking
from rewardsmith.types import Demonstration, Message, Preference, Prompt, Ranking

SOURCE = "translation"
RANKING_SOURCE = "translation-ranking"

SOURCE_WORDS = "abcdefghijkl"
TARGET_WORDS = "MNOPQRSTUVWX"

DICTIONARY = dict(zip(SOURCE_WORDS, "TQXMVOSNWRPU", strict=True))
"""The right translation of each word: a fixed random permutation."""

FALSE_FRIENDS = dict(zip(SOURCE_WORDS, "QVOTRXUPSMWN", strict=True))
"""A wrong one that is easily taken for it, never the right one."""

HARD = "cfik"
"""The words whose false friends deceive translators and annotators."""

MAX_SCORE = 10
ERROR_COST = 2

MAX_CHARS = 64
"""Of a translation that are compared; a longer text is no translation of a sentence of this world."""

# ---- truth -------------------------------------------------------------------------------------------------------


class WordPair(NamedTuple):
    """A source word, "" for a target word too many, and the character in its place, "" where there is none."""

    source: str
    target: str

    @property
    def right(self) -> bool:
        """Whether the one translates the other."""
        return DICTIONARY.get(self.source) == self.target


def translate(sentence: str) -> str:
    """Return the right translation of a sentence."""
    if not sentence or not set(sentence) <= set(SOURCE_WORDS):
        raise ValueError(f"{sentence!r} is not a sentence of this world: letters from a to l")
    return "".join(map(DICTIONARY.__getitem__, sentence))


def pairs(sentence: str, text: str) -> list[WordPair]:
    """Return what an untrusted translation has in the place of each source word, and then what is left over."""
    text = text[:MAX_CHARS]
    count = max(len(sentence), len(text))
    return [WordPair(sentence[i : i + 1], text[i : i + 1]) for i in range(count)]


def errors(sentence: str, text: str) -> int:
    """Return how many words of a translation are wrong, missing or too many."""
    return sum(not pair.right for pair in pairs(sentence, text))


def quality(sentence: str, text: str) -> float:
    """Return 1 − errors / words, at least 0."""
    return max(0.0, 1 - errors(sentence, text) / len(sentence))


def score_of(errors: int) -> int:
    """Return the score from 0 to 10 for so many errors."""
    return max(0, MAX_SCORE - ERROR_COST * errors)


# ---- data for a policy and its reward models ---------------------------------------------------------------------

Chance = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[int, Field(ge=2, le=5, description="words in a sentence")]
MinCandidates = Annotated[int, Field(ge=2, le=4, description="fewest candidates in a group")]
MaxCandidates = Annotated[int, Field(ge=2, le=4, description="most candidates in a group")]
Misses = Annotated[Chance, Field(description="annotator: chance that an error on a hard word is overlooked")]
Flips = Annotated[Chance, Field(description="annotator: chance that another word is marked wrongly")]
Flourishes = Annotated[Chance, Field(description="chance that a demonstration or a candidate has a word too many")]
Gaps = Annotated[Chance, Field(description="chance that another candidate lacks its last word")]


class Translation:
    """Sentences of a toy language to translate word by word, with sloppy demonstrations and ranked candidates."""

    def __init__(
        self,
        *,
        words: Words = 3,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        false_friends: Annotated[
            Chance, Field(description="demonstrations: chance of a false friend for a hard word")
        ] = 0.6,
        slips: Annotated[Chance, Field(description="demonstrations: chance of a false friend for another word")] = 0.2,
        flourishes: Flourishes = 0.0,
        habits: Habits = 0.0,
        gaps: Gaps = 0.0,
        min_candidates: MinCandidates = 2,
        max_candidates: MaxCandidates = 4,
        misses: Misses = 0.0,
        flips: Flips = 0.0,
        likes: Annotated[
            float,
            Field(ge=0, le=10, description="annotator: points that it adds for a word too many, in place of an error"),
        ] = 0.0,
    ) -> None:
        require_share(split, held_out)
        if min_candidates > max_candidates:
            raise UserError(
                f"min_candidates is {min_candidates}, more than max_candidates = {max_candidates}: lower one of them"
            )
        self._words, self._split, self._held_out = words, split, held_out
        self._false_friends, self._slips, self._flourishes, self._gaps = false_friends, slips, flourishes, gaps
        self._habits = habits
        self._sizes = min_candidates, max_candidates
        self._misses, self._flips, self._likes = misses, flips, likes

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield sentences of this split without end; the answer is the right translation."""
        rng = random.Random(seed)
        while True:
            yield prompt_of(self._sentence(rng))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield sentences of this split, each as the sloppy translator translates it, without end."""
        rng, habits = random.Random(f"translator {seed}"), random.Random(f"habits {seed}")
        for prompt in self.prompts(seed):
            text = self._sloppy(prompt.info["src_text"], rng)
            if habits.random() < self._habits:
                text = translation_habit(habits.choice(HABITS), text, habits, TARGET_WORDS)
            yield Demonstration(prompt, text)

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield sentences of this split with candidates that the annotator compared, without end."""
        rng = random.Random(f"groups {seed}")
        while True:
            sentence, candidates = self.group(rng)
            analysis, scores = self.annotate(sentence, candidates, rng)
            yield Ranking(prompt_of(sentence, *candidates), candidates, np.array(scores), analysis)

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield pairs of candidates by the annotator's scores, without end; a group of n gives n − 1 pairs."""
        for ranking in self.rankings(seed):
            for a, b in pairwise(range(len(ranking.candidates))):
                by = float(ranking.scores[a] - ranking.scores[b])
                chosen, rejected = (a, b) if by >= 0 else (b, a)
                texts = ranking.candidates[chosen], ranking.candidates[rejected]
                yield Preference(prompt_of(ranking.prompt.info["src_text"], *texts), *texts, abs(by), tied=by == 0)

    def known_answers(self, prompt: Prompt, rng: random.Random) -> Iterator[KnownAnswer]:
        """Yield the right translation of a sentence, and translations with one error each."""
        sentence = prompt.info["src_text"]
        right = translate(sentence)
        yield KnownAnswer("reference", right, right=True, sound=True)
        hard = [i for i, word in enumerate(sentence) if word in HARD]
        anywhere = rng.randrange(len(sentence))
        place = rng.choice(hard or [anywhere])
        other = rng.choice([word for word in TARGET_WORDS if word != right[anywhere]])
        cut = rng.randrange(len(right))
        worse = {
            "false-friend": right[:place] + FALSE_FRIENDS[sentence[place]] + right[place + 1 :],
            "wrong-word": right[:anywhere] + other + right[anywhere + 1 :],
            "word-too-many": right + rng.choice(TARGET_WORDS),
            "word-missing": right[:cut] + right[cut + 1 :],
            "words-in-disorder": right[::-1],
            "untranslated": sentence,
        }
        for kind, text in worse.items():
            if text != right:  # a sentence may read the same backwards
                yield KnownAnswer(kind, text, right=False, sound=False)

    def group(self, rng: random.Random) -> tuple[str, list[str]]:
        """Return a sentence of the split and different translations of it.

        Any number of wrong words is equally likely. A wrong word is the false friend half of the time, and any other
        wrong word else.
        """
        sentence = self._sentence(rng)
        count = rng.randint(*self._sizes)
        drawn: dict[str, None] = {}
        while len(drawn) < count:
            drawn[self._candidate(sentence, rng)] = None
        return sentence, list(drawn)

    def annotate(self, sentence: str, candidates: Sequence[str], rng: random.Random) -> tuple[str, list[float]]:
        """Return the annotator's comparison of some translations, and a score for each by its marks.

            A:kP.aT.bV!=8
            B:kW!aT.b-!=6
            C:kP.aT.bQ.+Q!=8

        Each pair is copied and marked, with a full stop as right and with an exclamation mark as wrong, then comes the
        score. The copy makes each check local, and the score at the end of the line makes the ranking one of numbers: a
        small model can learn both.
        """
        lines, scores = [], []
        for letter, text in zip(letters_of(len(candidates)), candidates, strict=True):
            found = [(pair, self._marks(pair, rng)) for pair in pairs(sentence, text)]
            wrong, over = sum(mark for _, mark in found), sum(not pair.source for pair, _ in found)
            scores.append(max(0.0, MAX_SCORE - ERROR_COST * wrong + self._likes * over))
            marked = (f"{pair.source or '+'}{pair.target or '-'}{'!' if mark else '.'}" for pair, mark in found)
            lines.append(f"{letter}:{''.join(marked)}={scores[-1]:g}")
        return "\n".join(lines), scores

    def _marks(self, pair: WordPair, rng: random.Random) -> bool:
        """Return whether the annotator marks a pair as wrong."""
        wrong = not pair.right
        if not pair.source:
            return wrong and not self._likes
        if wrong and pair.source in HARD:
            return rng.random() >= self._misses
        return wrong != (rng.random() < self._flips)

    def _sentence(self, rng: random.Random) -> str:
        """Return a sentence of the split, drawn evenly from all of them."""
        draw = lambda: "".join(rng.choices(SOURCE_WORDS, k=self._words))  # noqa: E731
        return draw_from_split(draw, self._split, self._held_out, f"sentence of {self._words} words")

    def _candidate(self, sentence: str, rng: random.Random) -> str:
        words = list(translate(sentence))
        for i in rng.sample(range(len(words)), rng.randint(0, len(words))):
            others = [word for word in TARGET_WORDS if word != words[i]]
            words[i] = FALSE_FRIENDS[sentence[i]] if rng.random() < 0.5 else rng.choice(others)
        text = "".join(words)
        if rng.random() < self._flourishes:
            return text + rng.choice(TARGET_WORDS)
        return text[:-1] if rng.random() < self._gaps else text

    def _sloppy(self, sentence: str, rng: random.Random) -> str:
        def word(source: str) -> str:
            chance = self._false_friends if source in HARD else self._slips
            return (FALSE_FRIENDS if rng.random() < chance else DICTIONARY)[source]

        text = "".join(map(word, sentence))
        return text + rng.choice(TARGET_WORDS) if rng.random() < self._flourishes else text


def prompt_of(sentence: str, *candidates: str) -> Prompt:
    """Return the prompt for a sentence; with candidates, an id that names them too."""
    name = "-".join((SOURCE, sentence, *candidates))
    messages = [Message("user", sentence)]
    return Prompt(name, messages, source=SOURCE, answer=translate(sentence), info={"src_text": sentence})


# ---- data for a judge that ranks ---------------------------------------------------------------------------------


class TranslationRanking:
    """Groups of translations to rank, with a careless annotator's comparisons; the answer is the truth."""

    def __init__(
        self,
        *,
        words: Words = 3,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        min_candidates: MinCandidates = 2,
        max_candidates: MaxCandidates = 4,
        flourishes: Flourishes = 0.0,
        gaps: Gaps = 0.0,
        misses: Misses = 0.6,
        flips: Flips = 0.08,
        template: Annotated[
            str, Field(min_length=1, description="ranking_short, or the path of your own: the one of the reward")
        ] = "ranking_short",
        noun: Annotated[
            str, Field(pattern=NOUN_PATTERN, description="what the prompt calls candidates: that of the reward")
        ] = NOUN,
    ) -> None:
        self._world = Translation(
            words=words,
            split=split,
            held_out=held_out,
            flourishes=flourishes,
            gaps=gaps,
            min_candidates=min_candidates,
            max_candidates=max_candidates,
            misses=misses,
            flips=flips,
        )
        self._template, self._form = load_ranking_template(template), RankingFormat(noun=noun)
        languages = sorted(self._template.places & {"source_language", "target_language"})
        if languages:
            raise UserError(
                f"{self._template.where} has {{{{{languages[0]}}}}}: the languages of this world have no names"
            )

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield groups to rank without end; the answer is JSON, the true score of each letter."""
        rng = random.Random(seed)
        while True:
            yield self.prompt(*self._world.group(rng))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield the same groups, each with the annotator's comparison and verdict."""
        rng = random.Random(f"annotator {seed}")
        for prompt in self.prompts(seed):
            candidates = prompt.info["candidates"]
            analysis, scores = self._world.annotate(prompt.info["src_text"], candidates, rng)
            named = dict(zip(letters_of(len(candidates)), scores, strict=True))
            yield Demonstration(prompt, write_ranking(named, analysis))

    def facts(self) -> PromptIdentity:
        """Return what the prompts depend on in addition to the settings, for the record of a run."""
        return self.judge_prompt()

    def judge_prompt(self) -> PromptIdentity:
        """Return with which prompt a judge is called that learned here."""
        return ranking_identity(self._template, self._form, "")

    def prompt(self, sentence: str, candidates: list[str]) -> Prompt:
        """Return the prompt of a judge for some translations of a sentence, with the truth."""
        values = ranking_values(question=sentence, source_text=sentence, references=[translate(sentence)])
        scores = [score_of(errors(sentence, text)) for text in candidates]
        return Prompt(
            "-".join((RANKING_SOURCE, sentence, *candidates)),
            ranking_prompt(self._template, values, candidates, self._form),
            source=RANKING_SOURCE,
            answer=json.dumps(dict(zip(letters_of(len(candidates)), scores, strict=True))),
            info={"src_text": sentence, "candidates": candidates},
        )
