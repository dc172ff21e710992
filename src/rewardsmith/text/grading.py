"""The prompt of a grading judge, the same when it is trained and when it is asked.

    template = load_grading_template("rubric")
    messages = grading_prompt(template, question="7+5?", criteria="Each step: 5 points.", total=10, response="7+5=12")

A judge that was trained on these messages must be asked with these messages: both sides call this one function.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from rewardsmith.text.quoting import harmless, quote, shortened
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message

Quoting = Literal["fence", "verbatim"]
"""How foreign text stands in a prompt: in a fence that it cannot close, or bare. Role tokens are broken in any case."""

PLACES = ("question", "criteria", "total", "response", "reference")
"""What a template may show."""


def load_grading_template(name: str) -> Template:
    """Return a template for grading by a whole rubric: a built-in one by its name, such as `rubric`, or a path.

    Raises:
        UserError: there is no such template, or it does not show what a judge must see.
    """
    return load_template(name, known=PLACES, needed=("criteria", "response"))


def grading_prompt(
    template: Template,
    *,
    question: str,
    criteria: str,
    total: float,
    response: str,
    reference: str = "",
    quoting: Quoting = "fence",
    longest: int | None = None,
) -> tuple[Message, ...]:
    """Return what a judge is asked.

    Args:
        template: of `load_grading_template`.
        question: what the policy was asked.
        criteria: the rubric as text.
        total: points in all.
        response: what the policy wrote; hostile.
        reference: the right answer, for templates that show it.
        quoting: see `Quoting`.
        longest: characters of the response that are shown; None shows all.
    """
    values = {
        "question": placed(question, quoting),
        "criteria": placed(criteria, quoting),
        "total": plain(total),
        "response": placed(response, quoting, longest),
        "reference": placed(reference, quoting),
    }
    return template.render({place: values[place] for place in template.places})


def placed(text: str, quoting: str, longest: int | None = None) -> str:
    """Return foreign text as it stands in a prompt; `longest` as in `quote`."""
    if quoting == "fence":
        return quote(text, longest)
    return harmless(text if longest is None else shortened(text, longest))


def plain(number: float) -> str:
    """Return a number as a judge should write it: all its digits, and no exponent."""
    return format(Decimal(repr(number + 0.0)).normalize(), "f")  # + 0.0: no -0


__all__ = ["PLACES", "Quoting", "grading_prompt", "load_grading_template", "placed", "plain"]
