"""Rules for the tests, with settings that were checked as those of a recipe are."""

from typing import Any

from rewardsmith import Message, Prompt
from rewardsmith.config import Choice, Chosen, build
from rewardsmith.errors import RecipeError

RULE = Choice("rule", "rewardsmith.rewards.rules:RULES", inputs=2)


def chosen(rule: str, **settings: Any) -> Chosen:
    return RULE.choose({"type": rule, **settings})


def value(rule: str, text: str, answer: Any = None, info: dict[str, Any] | None = None, **settings: Any) -> float:
    """Return what a rule gives for a text."""
    prompt = Prompt("p", [Message("user", "?")], answer=answer, info=info or {})
    found = chosen(rule, **settings)
    result = found.target(prompt, text, **found.arguments())
    assert isinstance(result, float)
    return result


def problem(rule: str, **settings: Any) -> str:
    """Return the message about settings that cannot be used."""
    try:
        build(RULE, {"type": rule, **settings})
    except RecipeError as error:
        return str(error)
    except TypeError:  # a rule is not called without a prompt: its settings were fine
        return ""
    return ""
