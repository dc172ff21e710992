"""The prompt of a judge that ranks a group, the same when it is trained and when it is asked.

    template = load_ranking_template("ranking_translation")
    shown = showing(template, source_text="你好", source_language="Chinese", target_language="English")
    messages = ranking_prompt(template, shown, ["Hello", "Bye"], Verdicts("both", 0, 10))

A judge that was trained on these messages must be asked with these messages: both sides call these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardsmith.text.quoting import quote
from rewardsmith.text.rankings import Output, format_of, show_candidates, task_of
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message

PLACES = ("question", "source_text", "source_language", "target_language", "reference", "criteria")
"""What a template may show beside the candidates, the task and the format of the verdict."""


@dataclass(frozen=True)
class Verdicts:
    """What a judge is asked for.

    Attributes:
        output: a ranking, scores, or both.
        lowest: score of the worst candidate possible.
        highest: score of the best.
        decimals: whether scores between integers are allowed.
    """

    output: Output = "both"
    lowest: float = 0.0
    highest: float = 10.0
    decimals: bool = False


def load_ranking_template(name: str) -> Template:
    """Return a template for ranking a group: a built-in one by its name, such as `ranking`, or a path.

    Raises:
        UserError: there is no such template, or it does not show the candidates.
    """
    return load_template(name, known=(*PLACES, "candidates", "task", "format"), needed=["candidates"])


def showing(
    *,
    question: str | None = None,
    source_text: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    references: Sequence[str] = (),
    criteria: str = "",
) -> dict[str, str]:
    """Return what a template may show of a prompt: foreign text quoted, names of languages as they are.

    Args:
        question: what the candidates answer.
        source_text: what the candidates translate.
        source_language: by its English name; it is not quoted, so it must be known to be one.
        target_language: the same.
        references: right answers.
        criteria: what matters most, in the words of the recipe.
    """
    shown = {"criteria": f"\n\nAbove all, judge by this:\n{criteria.strip()}" if criteria.strip() else ""}
    shown |= {} if question is None else {"question": quote(question)}
    shown |= {} if source_text is None else {"source_text": quote(source_text)}
    shown |= {} if source_language is None else {"source_language": source_language}
    shown |= {} if target_language is None else {"target_language": target_language}
    return shown | ({"reference": "\n\n".join(map(quote, references))} if references else {})


def ranking_prompt(
    template: Template, shown: Mapping[str, str], candidates: Sequence[str], verdicts: Verdicts
) -> tuple[Message, ...]:
    """Return what a judge is asked.

    Args:
        template: of `load_ranking_template`.
        shown: of `showing`; what the template does not show may be missing.
        candidates: 2 to 26 texts, in the order of their letters; hostile.
        verdicts: what is asked for.
    """
    return quoted_ranking_prompt(template, shown, list(map(quote, candidates)), verdicts)


def quoted_ranking_prompt(
    template: Template, shown: Mapping[str, str], quoted: Sequence[str], verdicts: Verdicts
) -> tuple[Message, ...]:
    """Return the same for candidates that are quoted already, for who shows them in many orders."""
    bounds = (verdicts.output, verdicts.lowest, verdicts.highest)
    values = {
        **shown,
        "task": task_of(*bounds, decimals=verdicts.decimals),
        "format": format_of(*bounds, decimals=verdicts.decimals),
        "candidates": show_candidates(quoted),
    }
    return template.render(values)


__all__ = ["PLACES", "Verdicts", "load_ranking_template", "quoted_ranking_prompt", "ranking_prompt", "showing"]
