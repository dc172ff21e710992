"""Rows as pairs, groups and grades, in the forms of TRL's preference data sets, UltraFeedback, RewardBench and others.

    {"prompt": "Why?", "chosen": "Because …", "rejected": "No idea."}
    {"chosen": [user, assistant], "rejected": [user, assistant]}               the prompt is what both begin with
    {"prompt": "Why?", "candidates": ["Because …", "No idea."], "scores": [8, 2]}
    {"prompt": "Why?", "candidates": ["a", "b", "c"], "ranking": "B > A = C"}
    {"prompt": "7+5?", "response": "12", "points": 7, "out_of": 10}

`docs/data.md` has the schema and the settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewardsmith.data.rows import (
    ABSENT,
    MESSAGES,
    Columns,
    Layout,
    Row,
    RowError,
    describe,
    field_errors,
    find,
    flag_of,
    list_of,
    messages_of,
    no_column,
    number_of,
    text_of,
)
from rewardsmith.text.rankings import letters_of, parse_ranking
from rewardsmith.types import Demonstration, Graded, Message, Preference, Prompt, Ranking

RowItem = Prompt | Demonstration | Preference | Ranking | Graded

SOURCE_TEXT = "src_text"
"""Where the info of a prompt has the text to translate, whatever the column is called."""


@dataclass(frozen=True)
class PreferenceRows:
    """Converts rows to pairs."""

    layout: Layout
    columns: Columns

    def read(self, row: Row, file: str, number: int) -> Preference:
        """Return the pair of a row."""
        chosen_at, lead, chosen = self._answer(row, "chosen", "the better answer")
        rejected_at, other, rejected = self._answer(row, "rejected", "the other answer")
        if lead != other:
            raise RowError(
                f"{chosen_at} and {rejected_at} differ before their last message: a pair is two answers to one prompt"
            )
        margin, tied, used = self._margin(row)
        used += [chosen_at, rejected_at, *([self.layout.prompt] if find(row, self.layout.prompt) is not ABSENT else [])]
        _, subset = self.columns.find(row, "subset")
        messages = self._messages(row, lead, chosen_at)
        subset = subset if isinstance(subset, str) else ""
        prompt = self.layout.prompt_with(row, messages, used, file, number, subset=subset)
        with field_errors("the pair"):
            return Preference(prompt, chosen, rejected, margin, tied)

    def _answer(self, row: Row, side: str, what: str) -> tuple[str, list[Message], str]:
        """Return the column of an answer, the messages before it, and the answer."""
        name, value = self.columns.require(row, side, what)
        if isinstance(value, str):
            return name, [], value
        *lead, last = messages_of(name, value)
        if last.role != "assistant":
            raise RowError(f"the role of the last of {name} is {describe(last.role)}: an answer is the assistant's")
        return name, lead, last.content

    def _messages(self, row: Row, lead: list[Message], chosen_at: str) -> list[Message]:
        """Return the prompt: that of its column, or what the answers begin with, or the fuller of the two."""
        name = self.layout.prompt
        value = find(row, name)
        if value is ABSENT:
            if not lead:
                raise self.layout.no_prompt(row, also=f" and no messages in {chosen_at} before the answer")
            return lead
        messages = messages_of(name, value)
        if not lead or messages[-len(lead) :] == lead:
            return messages
        # The column may have less than the conversation: no system message, or only one of its user messages.
        text = value.strip() if isinstance(value, str) else None
        if lead[-len(messages) :] == messages or any(m.role == "user" and m.content.strip() == text for m in lead):
            return lead
        raise RowError(f"{chosen_at} begins with other messages than {name}: leave one of the two out")

    def _margin(self, row: Row) -> tuple[float, bool, list[str]]:
        """Return the margin, whether it is a tie, and the columns that say so."""
        tied_at, value = self.columns.find(row, "tied")
        tied = value is not ABSENT and flag_of(tied_at, value)
        if "chosen_score" in self.columns.named:
            keys = ("chosen_score", "rejected_score")
            chosen, rejected = (number_of(*self.columns.require(row, key, "a score of its answer")) for key in keys)
            name, margin = "the score of chosen less that of rejected", round(chosen - rejected, 9)
            tied = tied or not margin
            margin = 0.0 if tied and margin > 0 else margin
        else:
            name, value = self.columns.find(row, "margin")
            margin = 0.0 if value is ABSENT else number_of(name, value)
        if margin < 0:
            raise RowError(f"{name} is {margin:g}: by how much the chosen is better, at least 0; swap the answers")
        return margin, tied, [tied_at, name]


@dataclass(frozen=True)
class RankingRows:
    """Converts rows to groups by `scores`, or by a `ranking`; None takes scores, and a ranking in rows without them."""

    layout: Layout
    columns: Columns
    by: str | None = None

    def read(self, row: Row, file: str, number: int) -> Ranking:
        """Return the group of a row."""
        name, value = self.columns.require(row, "candidates", "the answers")
        candidates = [text_of(f"{name}[{i}]", text) for i, text in enumerate(list_of(name, value))]
        if len(candidates) < 2:
            raise RowError(f"{name} has {len(candidates)}: a group needs at least 2 answers")
        scores, scores_at = self._scores(row, len(candidates))
        analysis_at, analysis = self.columns.find(row, "analysis")
        analysis = "" if analysis is ABSENT else text_of(analysis_at, analysis)
        messages, messages_at = self._messages(row)
        used = [name, scores_at, analysis_at, messages_at]
        source_at, source = self.columns.find(row, "source_text")
        if isinstance(source, str) and source_at != SOURCE_TEXT:
            row, used = {**row, SOURCE_TEXT: source}, [*used, source_at]  # where judges look for it
        prompt = self.layout.prompt_with(row, messages, used, file, number)
        with field_errors(name):
            return Ranking(prompt, candidates, scores, analysis)  # type: ignore[arg-type]

    def _messages(self, row: Row) -> tuple[list[Message], str]:
        """Return the prompt and its column; a source text stays in the info too."""
        by_itself = find(row, self.layout.prompt) is ABSENT and find(row, MESSAGES) is ABSENT
        if not by_itself or not self.layout.chat_asks:
            return self.layout.prompt_messages(row)
        name, text = self.columns.find(row, "source_text")
        if text is ABSENT:
            raise self.layout.no_prompt(row, also=f" and no {MESSAGES} and no {name}")
        if not isinstance(text, str) or not text.strip():
            raise RowError(f"{name} is {describe(text)}: it must be text, and not blank")
        return messages_of(name, text), ""

    def _scores(self, row: Row, count: int) -> tuple[list[float], str]:
        """Return a score for each of the candidates, and the column that says so."""
        keys = ("scores", "ranking") if self.by is None else (self.by,)
        for key in keys:
            name, value = self.columns.find(row, key)
            if value is not ABSENT:
                return (_by_score if key == "scores" else _by_rank)(name, value, count), name
        what = "a score of each answer" if keys[0] == "scores" else "the ranking of the answers"
        raise self.columns.missing(row, keys[0], what, *keys[1:])


def _by_score(name: str, value: object, count: int) -> list[float]:
    scores = list_of(name, value)
    if len(scores) != count:
        raise RowError(f"{name} has {len(scores)} for {count} answers: one for each, in the same order")
    return [number_of(f"{name}[{i}]", score) for i, score in enumerate(scores)]


def _by_rank(name: str, value: object, count: int) -> list[float]:
    """Return how many levels lie below each of the candidates."""
    if isinstance(value, list) and value and all(isinstance(rank, int | float) for rank in value):
        ranks = _by_score(name, value, count)
        if min(ranks) < 1:
            raise RowError(f"{name} has the rank {min(ranks):g}: ranks begin with 1, the best, one for each answer")
        below = sorted(set(ranks), reverse=True)
        return [float(below.index(rank)) for rank in ranks]
    try:
        text = " > ".join(map(" = ".join, value)) if isinstance(value, list) else value
        if not isinstance(text, str) or len(text.strip().splitlines()) > 1:
            raise ValueError("no ranking")
        letters = letters_of(count)
        levels = parse_ranking(text, letters, "ranking").levels
    except (TypeError, ValueError) as error:  # too many candidates, or unparsable
        forms = 'one line such as "A > B = C", a list such as ["A", ["B", "C"]], or a list of ranks, 1 the best'
        raise RowError(f"{name} is {describe(value)}: {error}; it must be {forms}") from None
    place = {letter: float(below) for below, level in enumerate(reversed(levels)) for letter in level}
    return [place[letter] for letter in letters]


@dataclass(frozen=True)
class GradedRows:
    """Converts rows to answers with grades from 0 to `out_of`, in rows that do not say."""

    layout: Layout
    columns: Columns
    out_of: float = 1.0

    def read(self, row: Row, file: str, number: int) -> Graded:
        """Return the graded answer of a row."""
        response_at = self.layout.response
        response = find(row, response_at)
        if response is ABSENT:
            raise no_column(response_at, row, "response_column says where a row has the answer that was graded")
        messages, messages_at = self.layout.prompt_messages(row)
        grade_at, grade = self.columns.require(row, "grade", "a grade")
        total_at, total = self.columns.find(row, "out_of")
        points = float(grade) if isinstance(grade, bool) else number_of(grade_at, grade)
        total = self.out_of if total is ABSENT else number_of(total_at, total)
        if not 0 <= points <= total or total <= 0:
            raise RowError(f"{grade_at} is {points:g} out of {total:g}: set out_of to the points that there are in all")
        used, flags = [messages_at, response_at, grade_at, total_at], dict[str, bool | None]()
        for key in ("right", "sound"):
            name, value = self.columns.find(row, key)
            flags[key] = None if value is ABSENT else flag_of(name, value)
            used.append(name)
        prompt = self.layout.prompt_with(row, messages, used, file, number)
        with field_errors(response_at):
            return Graded(prompt, text_of(response_at, response), points / total, **flags)
