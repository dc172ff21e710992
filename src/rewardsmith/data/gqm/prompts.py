"""The prompts of many groups by one template, rendered once."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from rewardsmith.text.judge_prompts import RankingFormat, ranking_prompt
from rewardsmith.text.templates import Template


class Prompts:
    """Gives what `ranking_prompt` gives, much faster: it is called once for each number of candidates.

    What a template shows is not looked at when it is filled in. So it may be filled with marks, and the marks with what
    is shown: the text is the same.

    Args:
        template: of `load_ranking_template`.
        verdicts: what the judge is asked for.
    """

    def __init__(self, template: Template, verdicts: RankingFormat) -> None:
        self._template, self._verdicts = template, verdicts
        self._mark = secrets.token_hex(16)  # no text can know it
        self._rendered: dict[int, list[tuple[str, list[str]]]] = {}

    def of(self, shown: Mapping[str, str], quoted: Sequence[str]) -> list[dict[str, str]]:
        """Return the messages.

        Args:
            shown: of `showing`; the same places for all groups.
            quoted: the candidates in their order, quoted.
        """
        if len(quoted) not in self._rendered:
            self._rendered[len(quoted)] = self._render(shown, len(quoted))
        asked = []
        for role, pieces in self._rendered[len(quoted)]:
            filled = pieces.copy()  # text, and what is shown after it, in turn
            filled[1::2] = [quoted[int(name)] if name.isdigit() else shown[name] for name in pieces[1::2]]
            asked.append({"role": role, "content": "".join(filled)})
        return asked

    def _render(self, shown: Mapping[str, str], count: int) -> list[tuple[str, list[str]]]:
        marked = {name: f"{self._mark}{name};" for name in shown}
        candidates = [f"{self._mark}{i};" for i in range(count)]
        messages = ranking_prompt(self._template, marked, candidates, self._verdicts, quoted=True)
        return [(message.role, re.split(rf"{self._mark}(\w+);", message.content)) for message in messages]


__all__ = ["Prompts"]
