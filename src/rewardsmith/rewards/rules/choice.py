"""Multiple choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.normalised import normal
from rewardsmith.rewards.rules.settings import Final, spoken
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.answers import tagged
from rewardsmith.text.choices import choice as chosen
from rewardsmith.text.choices import wording
from rewardsmith.types import Prompt


def choice(
    prompt: Prompt,
    text: str,
    *,
    letters: Annotated[str, Field(pattern=r"^[A-Z]{2,26}$", description="letters of the options, in order")] = "ABCDE",
    final: Final = "auto",
) -> float:
    """1 when the text chooses the right option, else 0; choosing none, or several, or saying what it is not, is wrong.

    The answer is a letter, the index of the option from 0, or the text of the option as `info["choices"]` or
    `info["options"]` has it (a list; a table of letters; or a table of the lists `label` and `text`). Where these are
    known, a text that states the words of an option, with its letter or without, is understood too.
    """
    options = _options(prompt, letters)
    gold = _gold(prompt, options, letters)
    said = spoken(text, final)
    if not said:
        return 0.0
    inner = tagged(said) or said
    letter = chosen(inner, letters)
    if letter is None and options:
        words = wording(inner)
        letter = _lookup(words, options) if words and len(words) < 1_000 else None
    return float(letter == gold)


def _options(prompt: Prompt, letters: str) -> dict[str, str]:
    """Return the texts of the options by letter; empty when the prompt does not give them."""
    given: Any = extra(prompt, "choices", extra(prompt, "options"))
    if isinstance(given, Mapping) and {"label", "text"} <= set(given):
        labels, texts = given["label"], given["text"]
        if isinstance(labels, list | tuple) and isinstance(texts, list | tuple) and len(labels) == len(texts):
            # Some data sets number their options; what counts is the place.
            given = (
                texts if any(str(label) not in letters for label in labels) else dict(zip(labels, texts, strict=True))
            )
    if isinstance(given, Mapping):
        return {str(letter).upper(): str(words) for letter, words in given.items() if str(letter).upper() in letters}
    if isinstance(given, list | tuple):
        return {letter: str(words) for letter, words in zip(letters, given, strict=False)}
    return {}


def _gold(prompt: Prompt, options: Mapping[str, str], letters: str) -> str:
    answer = prompt.answer
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(letters):
        return letters[answer]
    if isinstance(answer, str):
        bare = answer.strip().strip("()[].:").upper()
        letter = bare if len(bare) == 1 and bare in letters else _lookup(answer, options)
        if letter:
            return letter
    known = "; the prompt gives no options" if not options else ""
    raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is none of the options {letters}{known}")


def _lookup(words: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the only option with these words; its label may stand before them."""
    given = normal(words)
    found = [
        letter
        for letter, option in options.items()
        if given
        in {normal(option), *(normal(label + option) for label in (f"({letter}) ", f"{letter}) ", f"{letter}. "))}
    ]
    return found[0] if len(found) == 1 else None
