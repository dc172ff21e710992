"""Prompts and answers of a Python program, or of another trainer, as groups, and the scores in the order given.

found = group_answers(["7+5?", "7+5?", "1+1?"], ["12", "13", "2"], answers=["12", "12", "2"])
len(found.groups)                    # 2: equal prompts form a group
found.arrange([["a", "b"], ["c"]])   # ["a", "b", "c"]: one value for each answer, in the order given
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

from rewardsmith.data.readers import parse_table
from rewardsmith.data.rows import Layout, RowError, messages_of
from rewardsmith.errors import UserError
from rewardsmith.records import flat_rows, to_json
from rewardsmith.rewards.base import Part
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup, ScoredGroup

Value = TypeVar("Value")


@dataclass(frozen=True)
class AnswerGroups:
    """Groups, and of each answer in the order given the group and the number in it.

    `sizes` has the number of answers for each prompt where they were given as lists, and is None where they were flat.
    """

    groups: Sequence[RolloutGroup]
    places: Sequence[tuple[int, int]]
    sizes: Sequence[int] | None = None

    def arrange(self, values: Sequence[Sequence[Value]]) -> list[Any]:
        """Return values of the groups in the order and the form in which the answers were given."""
        flat: Iterator[Value] = (values[group][number] for group, number in self.places)
        return list(flat) if self.sizes is None else [[next(flat) for _ in range(size)] for size in self.sizes]


@dataclass(frozen=True)
class Scores(Sequence[ScoredGroup]):
    """The scored groups of some answers; `values`, `failures` and `part` are in the order and form of the answers."""

    groups: Sequence[ScoredGroup]
    answers: AnswerGroups
    streams: Mapping[str, Part] = field(default_factory=dict)  # parts that may be streams of their own, see advantages

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: Any) -> Any:
        return self.groups[index]

    @property
    def values(self) -> list[Any]:
        """The reward of each answer; None where it could not be scored."""
        return self.answers.arrange([[score.value for score in group.scores] for group in self.groups])

    @property
    def failures(self) -> list[Any]:
        """Why each answer could not be scored, as a `Failure`; None where it was."""
        return self.answers.arrange([[score.failure for score in group.scores] for group in self.groups])

    def part(self, name: str) -> list[Any]:
        """Return the values of a part by its dotted name; None where it failed or was not computed."""
        known = {name for group in self.groups for score in group.scores for name, _ in score.named_parts()}
        if name not in known:
            raise UserError(f"the scores have no part {name!r}. Known: {', '.join(sorted(known)) or 'none'}")
        found = [[dict(score.named_parts()).get(name) for score in group.scores] for group in self.groups]
        return self.answers.arrange([[one and one.value for one in column] for column in found])

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat table for each answer, for `pandas.DataFrame(scores.rows())`."""
        return [row for group in self.groups for row in flat_rows(group)]

    def __repr__(self) -> str:
        failed = sum(not score.ok for group in self.groups for score in group.scores)
        total = sum(len(group.scores) for group in self.groups)
        return f"Scores({len(self.groups)} groups, {total} answers, {failed} failed)"


def group_answers(
    prompts: Any,
    responses: Any,
    *,
    answers: Any = None,
    sources: Any = None,
    infos: Any = None,
    size: int | None = None,
) -> AnswerGroups:
    """Return prompts with their answers as groups.

    Args:
        prompts: one prompt or a list of them; each is text, a list of messages, a row in the schema of `docs/data.md`,
            or a `Prompt`.
        responses: of one prompt a list of answers. Of several prompts a list of answers for each, or one answer for
            each; then equal prompts form a group. An answer is text, a list of messages, or a `Rollout`.
        answers: the ground truth of each prompt, or one for all.
        sources: the source of each prompt, or one for all.
        infos: a table for each prompt, with what else rewards need to know, or one for all.
        size: of flat lists: every `size` answers in a row form a group, whether or not another group has the prompt.
    """
    prompts, responses = _listed("prompts", prompts), _listed("responses", responses)
    if isinstance(prompts, str | Prompt | Mapping) or _is_chat(prompts):
        prompts, responses = [prompts], [responses]
        answers = [answers]
    count = len(prompts)
    if len(responses) != count:
        raise UserError(f"there are {count} prompts and {len(responses)} responses: give one entry for each prompt")
    given = zip(
        prompts, _column("answers", answers, count), _column("sources", sources, count),
        _column("infos", infos, count), strict=True,
    )  # fmt: skip
    made = [_prompt(number, *one) for number, one in enumerate(given)]
    if all(isinstance(one, list | tuple) and not _is_chat(one) for one in responses):
        groups = [RolloutGroup(made[i], _rollouts(i, responses[i])) for i in range(count)]
        places = [(i, number) for i, group in enumerate(groups) for number in range(len(group.rollouts))]
        return AnswerGroups(groups, places, [len(group.rollouts) for group in groups])
    rollouts = [_rollout(i, response) for i, response in enumerate(responses)]
    return _grouped(made, rollouts, size)


def _grouped(prompts: Sequence[Prompt], rollouts: Sequence[Rollout], size: int | None) -> AnswerGroups:
    members: dict[Any, list[int]] = {}
    contents = [_content(prompt) for prompt in prompts]
    for i, content in enumerate(contents):
        members.setdefault(content if size is None else i // size, []).append(i)
    for rows in members.values():
        if len(list(groupby(contents[i] for i in rows))) > 1:
            raise UserError(f"answers {rows[0]} to {rows[-1]} have different prompts: groups of {size} were expected")
    groups = [RolloutGroup(prompts[rows[0]], [rollouts[i] for i in rows]) for rows in members.values()]
    places = {i: (group, at) for group, rows in enumerate(members.values()) for at, i in enumerate(rows)}
    return AnswerGroups(groups, [places[i] for i in range(len(rollouts))])


def _content(prompt: Prompt) -> str:
    """Return what makes two prompts equal: everything but the id."""
    return json.dumps(to_json(replace(prompt, id="-")), sort_keys=True)


def _listed(name: str, value: Any) -> Any:
    """Return an array, a column of a frame or an iterator as a list; text, a table or a prompt as it is."""
    if isinstance(value, str | Prompt | Mapping | list | tuple):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__iter__"):
        return list(value)
    raise UserError(f"{name} is of type {type(value).__name__}: give text, or a list")


def _is_chat(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and bool(value)
    return is_list and all(isinstance(one, Message) or (isinstance(one, Mapping) and "role" in one) for one in value)


def _column(name: str, value: Any, count: int) -> Sequence[Any]:
    """Return a value for each prompt: those of a list of that length, or one for all."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        if len(value) != count:
            raise UserError(
                f"there are {count} prompts and {len(value)} {name}: give one for each prompt, or one value"
            )
        return value
    return [value] * count


def _prompt(number: int, value: Any, answer: Any, source: Any, info: Any) -> Prompt:
    try:
        if isinstance(value, Prompt):
            prompt = value
        elif isinstance(value, Mapping):
            row = parse_table(value)
            if isinstance(row, RowError):
                raise row
            prompt = Layout().prompt_of(row, "prompt", number)
        else:
            messages = value if isinstance(value, str) else [_joined(to_json(one)) for one in value]
            prompt = Prompt(f"prompt-{number}", messages_of("messages", messages))
        changes = {"answer": answer, "source": source, "info": info}
        return replace(prompt, **{name: new for name, new in changes.items() if new is not None})
    except (RowError, TypeError, ValueError) as error:
        raise UserError(f"prompt {number} cannot be used: {error}") from None


def _joined(message: Any) -> Any:
    """Return a message whose content is a list of text parts, as OpenAI's clients write it, with the text itself."""
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list) or not all(isinstance(one, Mapping) and one.get("type") == "text" for one in parts):
        return message
    return {**message, "content": "\n".join(str(one.get("text", "")) for one in parts)}


def _rollouts(number: int, responses: Sequence[Any]) -> list[Rollout]:
    if not responses:
        raise UserError(f"prompt {number} has no response: give at least one")
    return [_rollout(number, response) for response in responses]


def _rollout(number: int, response: Any) -> Rollout:
    if isinstance(response, Rollout):
        return response
    if _is_chat(response):
        last = response[-1]
        response = last.content if isinstance(last, Message) else last.get("content")
    try:
        return Rollout(response)
    except (TypeError, ValueError) as error:
        raise UserError(f"the response to prompt {number} cannot be used: {error}") from None
