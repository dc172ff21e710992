"""What is written: problems with criteria, and graded solutions in three forms; all rows of a file have one schema.

| form | for | a row has |
|---|---|---|
| `sft` | the cold start of a judge | `messages`: the grading prompt, and the teacher's analysis with its verdict |
| `rl` | training a judge against the grade | verl's columns: `prompt`, and the share of the points as `ground_truth` |
| `eval` | measuring a judge | the problem as `prompt`, the solution as `response`, `grade`, `right`, `sound` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rewardsmith.data.rows import Row
from rewardsmith.data.rubrics.grading import Grades
from rewardsmith.data.rubrics.problems import Solution
from rewardsmith.text.grades import write_grade
from rewardsmith.text.judge_prompts import format_number
from rewardsmith.text.rubrics import DECIMALS, RubricItem, WrittenRubric
from rewardsmith.types import Message

Form = Literal["sft", "rl", "eval"]

SOURCE = "grade"
"""The source of rows that train a judge."""

MADE_BY = "criteria_made_by"
"""Where a row says how its criteria came about."""


def rubric_facts(rubric: WrittenRubric, made_by: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row keeps of its rubric beside the criteria: who wrote it, and what each item is for."""
    return {
        **made_by,
        "parts": [item.part for item in rubric.items],
        "checks": [list(item.checks) for item in rubric.items],
        "not_applicable": [{"failure": name, "why": why} for name, why in rubric.not_applicable.items()],
    }


def with_criteria(row: Row, criteria: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with `extra_info.criteria`, where the `rubric` reward finds them, and how they came about."""
    made = {name: value for name, value in row.items() if name != "criteria"}  # this would be found first
    return made | {"extra_info": {**(row.get("extra_info") or {}), "criteria": list(criteria), MADE_BY: dict(facts)}}


def example_rubric(row: Row, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with criteria as they will be: what tells the types of columns before a rubric is written.

    Args:
        row: of the problem.
        facts: of the template and the parser.
    """
    items = (RubricItem("name", 1.0, "text", "part", ("check",)),)
    made_by = {"model": "", **facts, "seed": 0, "tries": 1, "prompt_tokens": 0, "tokens": 0}
    rubric = WrittenRubric(items, {"failure": "why"})
    return with_criteria(row, rubric.criteria(), rubric_facts(rubric, made_by))


class Uniform:
    """Gives all rows the same fields, at the top and in `extra_info`: what a row lacks is null.

    `learn` sees each row once before the first is written.
    """

    def __init__(self) -> None:
        self._fields: dict[str, None] = {}
        self._extra: dict[str, None] = {}

    def learn(self, row: Row) -> None:
        """Take in the fields of a row."""
        self._fields |= dict.fromkeys(row)
        extra = row.get("extra_info")
        self._extra |= dict.fromkeys(extra) if isinstance(extra, Mapping) else {}

    def __call__(self, row: Row) -> dict[str, Any]:
        """Return a row with all fields that there are; those that only this row has come last."""
        full = dict.fromkeys(self._fields) | dict(row)
        extra = full.get("extra_info")
        return full | {"extra_info": dict.fromkeys(self._extra) | dict(extra)} if isinstance(extra, Mapping) else full


@dataclass(frozen=True)
class GradedSolution:
    """A solution with its grades.

    Attributes:
        id: unique.
        solution: what was graded.
        prompt: what the teacher was asked.
        grades: what it gave.
        right: whether the final answer is right; None where that is not known.
        made_by: model, template and parser, for the provenance of the row.
        where: file and row of the solution.
        band: the score band, in points.
        copy: which copy this is, from 0.
    """

    id: str
    solution: Solution
    prompt: Sequence[Message]
    grades: Grades
    right: bool | None
    made_by: Mapping[str, Any]
    where: str
    band: str
    copy: int = 0

    @property
    def share(self) -> float:
        """The grade from 0 to 1."""
        return round(self.grades.share, DECIMALS)

    def _name(self) -> str:
        return f"{self.id}~{self.copy}" if self.copy else self.id

    def _facts(self) -> dict[str, Any]:
        """Return what all forms say of where a row comes from."""
        return {
            "problem": self.solution.prompt.id,
            "problem_source": self.solution.prompt.source,
            "response_index": self.solution.number,
            "copy": self.copy,
            "from": self.where,
            "share": self.share,
            "total": self.solution.total,
            "band": self.band,
            "shares": [round(share, DECIMALS) for share in self.grades.shares],
            "tries": self.grades.tries,
            "right": self.right,
            "sound": self.solution.sound,
            "graded_by": dict(self.made_by),
        }

    def sft(self) -> dict[str, Any]:
        """Return a demonstration: the vote nearest to the mean, with the grade that it gave itself.

        Raises:
            Unreadable: that vote has no analysis.
        """
        nearest = self.grades.nearest
        answer = write_grade(self.grades.texts[nearest], self.grades.shares[nearest], self.solution.total)
        messages = [*_messages(self.prompt), {"role": "assistant", "content": answer}]
        return {"id": self._name(), "data_source": SOURCE, "messages": messages, "extra_info": self._facts()}

    def rl(self) -> dict[str, Any]:
        """Return a prompt whose ground truth is the mean share of the points."""
        return {
            "id": self._name(),
            "data_source": SOURCE,
            "prompt": _messages(self.prompt),
            "ability": "grading",
            "reward_model": {"style": "rule", "ground_truth": format_number(self.share)},
            "extra_info": self._facts(),
        }

    def eval(self) -> dict[str, Any]:
        """Return the graded solution with its problem; a `rubric` reward asks its judge what the teacher was asked."""
        prompt = self.solution.prompt
        return {
            "id": self._name(),
            "data_source": prompt.source,
            "prompt": _messages(prompt.messages),
            "response": self.solution.response,
            "grade": self.share,
            "right": self.right,
            "sound": self.solution.sound,
            "reward_model": {"style": "rule", "ground_truth": _thawed(prompt.answer)},
            "extra_info": {"question": self.solution.question, "criteria": self.solution.criteria, **self._facts()},
        }


FORMS: dict[Form, Callable[[GradedSolution], dict[str, Any]]] = {
    "sft": GradedSolution.sft,
    "rl": GradedSolution.rl,
    "eval": GradedSolution.eval,
}


def _messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _thawed(value: object) -> Any:
    """Return a frozen JSON value as plain dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: _thawed(inner) for name, inner in value.items()}
    return [_thawed(inner) for inner in value] if isinstance(value, list | tuple) else value


__all__ = ["FORMS", "SOURCE", "Form", "GradedSolution", "Uniform", "example_rubric", "rubric_facts", "with_criteria"]
