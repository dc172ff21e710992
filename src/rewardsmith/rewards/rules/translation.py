"""Translation quality against references: chrF and BLEU of one sentence or passage, computed by sacrebleu.

Both are fractions here, 0 to 1, where sacrebleu says 0 to 100. BLEU was made for whole corpora: of one sentence it is a
rough number, and chrF is the better reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.settings import Extract, Final, spoken
from rewardsmith.text.answers import extract as found_in
from rewardsmith.types import Prompt

TIMES = 100
FLOOR = 10_000
"""What is more than 100 times as long as each reference, and above 10,000 characters, is 0 without being counted.

At most 1 of 100 characters could match then, so that chrF with beta = 2 would be below 5 / (4 + 100) = 0.05.
"""

Reference = Annotated[
    str,
    Field(min_length=1, description='"answer", or the place in the prompt\'s info or extra_info: "references"'),
]
Lowercase = Annotated[bool, Field(description="compare without regard to case")]


def chrf(
    prompt: Prompt,
    text: str,
    *,
    reference: Reference = "answer",
    extract: Extract = ("text",),
    final: Final = "auto",
    char_order: Annotated[int, Field(ge=1, le=20, description="longest run of characters that is compared")] = 6,
    word_order: Annotated[int, Field(ge=0, le=4, description="longest run of words; 2 is chrF++")] = 0,
    beta: Annotated[int, Field(ge=1, le=10, description="how many times recall counts as much as precision")] = 2,
    lowercase: Lowercase = False,
) -> float:
    """How much of the reference's runs of characters the text has, and the reverse: chrF, 0 to 1."""
    references = references_of(prompt, reference)
    hypothesis = _hypothesis(spoken(text, final), extract, references)
    if not hypothesis:
        return 0.0
    return _fraction(_chrf(char_order, word_order, beta, lowercase), hypothesis, references)


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
    references = references_of(prompt, reference)
    hypothesis = _hypothesis(spoken(text, final), extract, references)
    if not hypothesis:
        return 0.0
    metric = _bleu(tokenize, smooth, effective_order, lowercase)
    try:
        return _fraction(metric, hypothesis, references)
    finally:
        _forget(metric.tokenizer)


def references_of(prompt: Prompt, place: str) -> list[str]:
    """Return the reference translations of a prompt, at least one, none of them blank.

    Args:
        prompt: whose `answer` or `info` holds one text, or a list of texts.
        place: `answer`, or the name of an entry of `info`, or else of `extra_info` there; dots lead into tables.

    Raises:
        CannotScore: `invalid`, when there is no such text.
    """
    found: Any = prompt.answer
    if place != "answer":
        found = _at(prompt.info, place)
        found = _at(prompt.info.get("extra_info"), place) if found is None else found
    texts = [found] if isinstance(found, str) else found
    where = "answer" if place == "answer" else f"info.{place}"
    if not isinstance(texts, Sequence) or not texts:
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has no reference text in {where}")
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has a reference in {where} that is blank or no text")
    return list(texts)


def _at(table: Any, path: str) -> Any:
    """Return what lies at a dotted path, None where there is nothing."""
    for name in path.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table


def _hypothesis(said: str | None, ways: Sequence[str], references: Sequence[str]) -> str:
    """Return the translation within a text; "" where there is none, or one of absurd length."""
    found = (found_in(said or "", ways) or "").strip()
    return found if len(found) <= max(FLOOR, TIMES * max(map(len, references))) else ""


def _fraction(metric: Any, hypothesis: str, references: Sequence[str]) -> float:
    # A corpus of one: `sentence_score` computes the same, but writes a warning for each BLEU without effective order.
    score = float(metric.corpus_score([hypothesis], [[reference] for reference in references]).score)
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


def _forget(tokenizer: Any) -> None:
    """Empty the tokenizers' caches, which keep 65,536 lines of any length: a worker may live for days."""
    for part in (tokenizer, *vars(tokenizer).values()):
        clear = getattr(getattr(type(part), "__call__", None), "cache_clear", None)  # noqa: B004 not whether, but which
        if clear is not None:
            clear()
