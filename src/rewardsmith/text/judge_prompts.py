"""What a judge reads: the same functions make the prompts when a judge is trained and when it is called.

template = load_ranking_template("ranking_translation")
values = ranking_values(source_text="你好", source_language="Chinese", target_language="English")
messages = ranking_prompt(template, values, ["Hello", "Bye"], RankingFormat("both", 0, 10))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Literal

from rewardsmith.text.answers import final
from rewardsmith.text.quoting import harmless, quote, shortened
from rewardsmith.text.rankings import NOUN, RANKING_HEADER, SCORES_HEADER, Output, letters_of
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message, Prompt

Quoting = Literal["fence", "verbatim"]
"""How foreign text stands in a prompt: in a fence that it cannot close, or bare. Role tokens are broken in any case."""

Keep = Literal["keep", "drop"]
"""Whether a scalar reward model is shown a part of the conversation."""


def question_of(prompt: Prompt) -> str:
    """Return the question of a prompt as text; it is foreign text, to be quoted like any other.

    It is `question` of the prompt's `info`, or of the table `extra_info` in it. Else it is the user's message, or, of a
    longer conversation, all messages but those of the system, with their roles.
    """
    nested = prompt.info.get("extra_info")
    for table in (prompt.info, nested if isinstance(nested, Mapping) else {}):
        question = table.get("question")
        if isinstance(question, str) and question.strip():
            return question
    messages = [message for message in prompt.messages if message.role != "system"] or list(prompt.messages)
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)


def format_number(number: float) -> str:
    """Return a number as a judge should write it: all its digits, and no exponent."""
    return format(Decimal(repr(number + 0.0)).normalize(), "f")  # + 0.0: no -0


def quote_as(text: str, quoting: str, max_chars: int | None = None) -> str:
    """Return foreign text as it stands in a prompt; of more than `max_chars` characters the middle is left out."""
    if quoting == "fence":
        return quote(text, max_chars)
    return harmless(text if max_chars is None else shortened(text, max_chars))


# ---- grading by a rubric -----------------------------------------------------------------------------------------


def load_grading_template(name: str) -> Template:
    """Return a template for grading by a whole rubric: a built-in one by its name, such as `rubric`, or a path."""
    places = ("question", "criteria", "total", "response", "reference")
    return load_template(name, known=places, needed=("criteria", "response"))


def grading_prompt(
    template: Template,
    *,
    question: str,
    criteria: str,
    total: float,
    response: str,
    reference: str = "",
    quoting: Quoting = "fence",
    max_chars: int | None = None,
) -> tuple[Message, ...]:
    """Return the messages for a judge that grades; `max_chars` are shown of the response, which is hostile."""
    values = {
        "question": quote_as(question, quoting),
        "criteria": quote_as(criteria, quoting),
        "total": format_number(total),
        "response": quote_as(response, quoting, max_chars),
        "reference": quote_as(reference, quoting),
    }
    return template.render({place: values[place] for place in template.places})


# ---- ranking a group ---------------------------------------------------------------------------------------------

RANKING_PLACES = ("question", "source_text", "source_language", "target_language", "reference", "criteria")
"""What a template may show of a prompt, in addition to the candidates, the task and the format of the verdict."""


@dataclass(frozen=True)
class RankingFormat:
    """What a judge writes: a ranking, scores, or both; scores from `lowest` to `highest`.

    `noun` is what the prompt calls the candidates: `Translation A:`.
    """

    output: Output = "both"
    lowest: float = 0.0
    highest: float = 10.0
    decimals: bool = False
    noun: str = NOUN

    def task(self) -> str:
        """Return the sentence that says what the judge has to do."""
        kind = "a score" if self.decimals else "an integer score"
        between = f"{kind} from {self.lowest:g} (worst) to {self.highest:g} (best)"
        return {
            "both": f"Rank the candidates from best to worst, and give each of them {between}. "
            "Candidates of equal quality share a score. The ranking must say the same as the scores.",
            "ranking": "Rank the candidates from best to worst. Candidates of equal quality share a rank.",
            "scores": f"Give each of the candidates {between}. Candidates of equal quality share a score.",
        }[self.output]

    def example(self) -> str:
        """Return the lines with which a reply must end, with X, Y and Z as letters and scores in range."""
        high, low = (self.lowest + share * (self.highest - self.lowest) for share in (0.8, 0.5))
        if not self.decimals:
            high = round(high)
            low = min(round(low), high - 1)
        ranking, scores = f"{RANKING_HEADER}\n\nX > Y = Z", f"X: {high:g}, Y: {low:g}, Z: {low:g}"
        both = f"{ranking}\n\n{SCORES_HEADER}\n\n{scores}"
        return {"both": both, "ranking": ranking, "scores": scores}[self.output]


def load_ranking_template(name: str) -> Template:
    """Return a template for ranking a group: a built-in one by its name, such as `ranking`, or a path."""
    return load_template(name, known=(*RANKING_PLACES, "candidates", "task", "format"), needed=["candidates"])


def ranking_values(
    *,
    question: str | None = None,
    source_text: str | None = None,
    references: Sequence[str] = (),
    criteria: str = "",
    **languages: str | None,
) -> dict[str, str]:
    """Return what a template may show of a prompt: foreign text quoted, and names of languages, known to be such."""
    shown = {"criteria": f"\n\nAbove all, judge by this:\n{criteria.strip()}" if criteria.strip() else ""}
    foreign = {"question": question, "source_text": source_text}
    shown |= {name: quote(text) for name, text in foreign.items() if text is not None}
    shown |= {name: language for name, language in languages.items() if language is not None}
    return shown | ({"reference": "\n\n".join(map(quote, references))} if references else {})


def ranking_prompt(
    template: Template,
    values: Mapping[str, str],
    candidates: Sequence[str],
    form: RankingFormat,
    *,
    quoted: bool = False,
) -> tuple[Message, ...]:
    """Return the messages for a judge that ranks 2 to 26 hostile candidates, which may be quoted already."""
    listed = show_candidates(candidates if quoted else list(map(quote, candidates)), form.noun)
    return template.render({**values, "task": form.task(), "format": form.example(), "candidates": listed})


def show_candidates(quoted: Sequence[str], noun: str = NOUN) -> str:
    """Return quoted candidates for a prompt, each under the noun and its letter."""
    named = zip(letters_of(len(quoted)), quoted, strict=True)
    return "\n\n".join(f"{noun} {letter}:\n{text}" for letter, text in named)


# ---- identity of a judge's prompt ----------------------------------------------------------------------------------

PromptIdentity = Mapping[str, str | float | bool]
"""What the prompts of a judge depend on apart from the material, by the names of the reward's settings."""


def grading_identity(template: Template, quoting: str) -> PromptIdentity:
    """Return the identity of prompts for grading."""
    return {**template.facts(), "quoting": quoting}


def ranking_identity(template: Template, form: RankingFormat, criteria: str) -> PromptIdentity:
    """Return the identity of prompts for ranking."""
    return {**template.facts(), **asdict(form), "criteria": criteria.strip()}


def is_identity(value: object) -> bool:
    """Return whether a value from a file is the identity of a prompt."""
    return (
        isinstance(value, dict)
        and {"template", "template_sha256"} <= value.keys()
        and all(isinstance(one, str | float | int) for one in value.values())
    )


def different_settings(one: PromptIdentity, other: PromptIdentity) -> Iterator[tuple[str, object, object]]:
    """Yield each setting in which two prompts differ, with both values; what only one of them has does not count.

    Templates are compared by their text, whatever they are called.
    """
    for name in one:
        if name != "template" and name in other and one[name] != other[name]:
            setting = name.removesuffix("_sha256")
            yield setting, one[setting], other[setting]


# ---- scalar reward models ----------------------------------------------------------------------------------------


def rated_answer(text: str, *, think: Keep) -> str:
    """Return the part of an answer that is scored: `drop` leaves out everything up to `</think>`."""
    return text if think == "keep" else final(text) or ""


def rated_conversation(prompt: Prompt, answer: str, *, system: Keep) -> tuple[Message, ...]:
    """Return what a scalar reward model reads; role tokens inside the messages are broken, so none can open a turn."""
    messages = [m for m in prompt.messages if system == "keep" or m.role != "system"]
    return tuple(Message(m.role, harmless(m.content)) for m in (*messages, Message("assistant", answer)))


# ---- languages ---------------------------------------------------------------------------------------------------

_LANGUAGES = (
    "ar=Arabic bg=Bulgarian bn=Bengali ca=Catalan cs=Czech da=Danish de=German el=Greek en=English "
    "es=Spanish et=Estonian fa=Persian fi=Finnish fr=French gu=Gujarati he=Hebrew hi=Hindi hr=Croatian "
    "hu=Hungarian id=Indonesian is=Icelandic it=Italian ja=Japanese kk=Kazakh km=Khmer ko=Korean "
    "lt=Lithuanian lv=Latvian ms=Malay nb=Norwegian nl=Dutch no=Norwegian pl=Polish pt=Portuguese "
    "ro=Romanian ru=Russian sk=Slovak sl=Slovenian sr=Serbian sv=Swedish sw=Swahili ta=Tamil th=Thai "
    "tr=Turkish uk=Ukrainian ur=Urdu vi=Vietnamese zh=Chinese"
)
LANGUAGES: dict[str, str] = dict(re.findall(r"(\w+)=(\w+)", _LANGUAGES))
"""From ISO 639-1 codes to English names."""


def language(name: str) -> str | None:
    """Return the English name for a code such as `zh` or `pt-BR`; a longer name as it is; None for an unknown code."""
    code = name.replace("_", "-").partition("-")[0].lower()
    if len(code) == 2:
        return LANGUAGES.get(code)
    return name if len(code) > 2 else None
