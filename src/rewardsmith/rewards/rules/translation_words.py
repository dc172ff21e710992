"""The quality of a translation in the tiny world of translation."""

from __future__ import annotations

from rewardsmith.data.translation import SOURCE_WORDS, quality
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.types import Prompt


def translation_words(prompt: Prompt, text: str) -> float:
    """1 less the share of words that are wrong, missing or too many, at least 0; the source is `info.src_text`."""
    sentence = extra(prompt, "src_text")
    if not isinstance(sentence, str) or not sentence or not set(sentence) <= set(SOURCE_WORDS):
        raise CannotScore(
            "invalid", f"the prompt {prompt.id!r} has no sentence of letters from a to l in info.src_text"
        )
    return quality(sentence, text.strip())
