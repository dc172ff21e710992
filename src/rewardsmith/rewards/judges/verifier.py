"""A model that decides whether an answer is the reference answer in other words, as TinyV does."""

from __future__ import annotations

from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    DEFAULT_WAYS,
    MAX_CHARS,
    ChatModelName,
    Judge,
    MaxChars,
    OwnTemplate,
    Question,
    QuotingStyle,
    Rendered,
    Request,
    Show,
    Votes,
    Ways,
    require_extracting,
    visible_text,
)
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.judge_prompts import question_of, quote_as
from rewardsmith.text.templates import Template, load_template
from rewardsmith.text.verdicts import NO, PARSER, YES, parse_boolean
from rewardsmith.types import Prompt, RolloutGroup, Score

_YES = (*YES, "equivalent", "correct")
_NO = (*NO, "not equivalent", "incorrect", "wrong")


class Verifier(Judge):
    """Score 1 if a model finds the answer equivalent to the reference answer, else 0; with votes, the share of yes.

    A response without an answer is worth 0 without a call.
    """

    parser = PARSER
    _template: Template

    def __init__(
        self,
        *,
        model: ChatModelName,
        show: Show = "answer",
        extract: Ways = DEFAULT_WAYS,
        max_chars: MaxChars = MAX_CHARS,
        quoting: QuotingStyle = "fence",
        template: OwnTemplate = "verifier",
        votes: Votes = 1,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        require_extracting(show, extract)
        super().__init__(model, request, votes)
        self._show, self._ways, self._max_chars, self._quoting = show, extract, max_chars, quoting
        known = ("question", "reference", "response")
        self._template = load_template(template, known=known, needed=("reference", "response"))

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no reference answer."""
        truths(prompt)

    def render(self, group: RolloutGroup) -> Rendered:
        """Return question, reference and answer; any one of several references is right."""
        prompt = group.prompt
        known = {"reference": "\nor: ".join(truths(prompt)), "question": question_of(prompt)}
        quoted = {name: quote_as(text, self._quoting) for name, text in known.items()}
        rendered: list[Score | Question] = []
        for rollout in group.rollouts:
            text = visible_text(rollout.text, self._show, self._ways)
            messages = self._template.render({**quoted, "response": quote_as(text, self._quoting, self._max_chars)})
            rendered.append(Question(messages) if text else Score(0.0, feedback="There is no answer."))
        return rendered

    def parse(self, reply: str, about: None) -> float:
        """Return 1 for equivalent, else 0."""
        return float(parse_boolean(reply, yes=_YES, no=_NO))
