"""Translation quality against references: chrF and BLEU of one sentence or passage, computed by sacrebleu.

Both are fractions here, 0 to 1, where sacrebleu has 0 to 100. BLEU was made for whole corpora: of one sentence it is a
rough number, and chrF is the better reward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.rewards.rules.rule_settings import Extract, Final, extracted
from rewardsmith.rewards.rules.truth import Reference, references_of
from rewardsmith.types import Prompt

MAX_RATIO = 100
MIN_CHARACTERS = 10_000
"""What is more than 100 times as long as each reference, and above 10,000 characters, is 0 without being counted.

At most 1 of 100 characters could match then, so that chrF with beta = 2 would be below 5 / (4 + 100) = 0.05.
"""

Lowercase = Annotated[bool, Field(description="compare without regard to case")]


def chrf(
    prompt: Prompt,
    text: str,
    *,
    reference: Reference = "answer",
    extract: Extract = ("text",),
    final: Final = "auto",
    char_order: Annotated[int, Field(ge=1, le=20, description="maximum length of character n-grams")] = 6,
    word_order: Annotated[int, Field(ge=0, le=4, description="maximum length of word n-grams; 2 is chrF++")] = 0,
    beta: Annotated[int, Field(ge=1, le=10, description="how many times recall counts as much as precision")] = 2,
    lowercase: Lowercase = False,
) -> float:
    """How much of the reference's runs of characters the text has, and the reverse: chrF, 0 to 1."""
    metric = partial(_chrf, char_order, word_order, beta, lowercase)
    return _score(metric, references_of(prompt, reference), extracted(text, extract, final))


def bleu(
    prompt: Prompt,
    text: str,
    *,
    reference: Reference = "answer",
    extract: Extract = ("text",),
    final: Final = "auto",
    tokenize: Annotated[
        Literal["13a", "intl", "zh", "char", "none"], Field(description="how text becomes words; zh for Chinese")
    ] = "13a",
    smooth: Annotated[
        Literal["exp", "floor", "add-k", "none"], Field(description="what a length of runs without a match counts")
    ] = "exp",
    effective_order: Annotated[
        bool, Field(description="leave out the runs that are longer than the text; false: fewer than 4 words are 0")
    ] = True,
    lowercase: Lowercase = False,
) -> float:
    """How much of the text's runs of one to four words the reference has, less when it is too short: BLEU, 0 to 1."""
    metric = partial(_bleu, tokenize, smooth, effective_order, lowercase)
    return _score(metric, references_of(prompt, reference), extracted(text, extract, final))


def _score(metric: Callable[[], Any], references: Sequence[str], text: str | None) -> float:
    text = (text or "").strip()
    if not text or len(text) > max(MIN_CHARACTERS, MAX_RATIO * max(map(len, references))):
        return 0.0
    # A corpus of one: `sentence_score` computes the same, but writes a warning for each BLEU without effective order.
    score = float(metric().corpus_score([text], [[reference] for reference in references]).score)
    return min(1.0, max(0.0, score / 100))  # a perfect match can come out a rounding error above 100


@lru_cache(maxsize=64)
def _chrf(char_order: int, word_order: int, beta: int, lowercase: bool) -> Any:
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415 optional

    return CHRF(char_order=char_order, word_order=word_order, beta=beta, lowercase=lowercase)


@lru_cache(maxsize=64)
def _bleu(tokenize: str, smooth: str, effective_order: bool, lowercase: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 optional

    return BLEU(
        tokenize=tokenize,
        smooth_method=smooth,
        effective_order=effective_order,
        lowercase=lowercase,
        force=True,  # do not warn about text that looks tokenized: model output looks like anything
    )
