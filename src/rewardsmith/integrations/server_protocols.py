"""What the reward server reads and writes: our own form, OpenRLHF's remote reward, NeMo Gym's resources server.

Bodies come from outside: whatever is wrong with one is a `UserError` that names the field.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rewardsmith.checks import finite
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.integrations.openrlhf_reward import answer_in_query
from rewardsmith.records import from_json, to_json
from rewardsmith.rewards.answer_groups import AnswerGroups
from rewardsmith.types import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup

Noun = TypeVar("Noun")

PROMPT_FIELDS = tuple(one.name for one in fields(Prompt) if one.name != "messages")
GROUP_FIELDS = ("prompt", "responses", "rollouts", "policy_version", *PROMPT_FIELDS)

ANSWER_FIELDS = ("answer", "expected_answer", "ground_truth", "label", "target")
"""Task fields of NeMo Gym that may hold the right answer; the first that is there counts."""

TASK_INDEX, FAILURE_CLASS = "_ng_task_index", "_ng_failure_class"


@dataclass(frozen=True)
class ScoreRequest:
    """The groups of a request, and the seconds that the client waits; None where it does not say."""

    groups: Sequence[RolloutGroup]
    deadline: float | None = None
    single: bool = False  # one group, not a list of groups

    @property
    def rollouts(self) -> int:
        """How many answers are to be scored."""
        return sum(len(group.rollouts) for group in self.groups)


# ---- our own form --------------------------------------------------------------------------------------------------


def parse_score_request(body: object) -> ScoreRequest:
    """Return the groups of `{"prompt": …, "responses": […]}`, or of `{"groups": [{…}, …]}`."""
    table = _table(body, "the body")
    deadline = table.pop("deadline", None)
    if deadline is not None:
        deadline = _number(deadline, "deadline")
        if deadline <= 0:
            raise UserError(f"deadline is {deadline:g}: it must be positive seconds")
    if "groups" not in table:
        return ScoreRequest([_group(table, "")], deadline, single=True)
    groups = _list(table.pop("groups"), "groups")
    if table:
        raise UserError(f"{_name(next(iter(table)))} is given next to groups: a field of a group belongs inside it")
    if not groups:
        raise UserError("groups is empty: it needs at least one group")
    made = [_group(_table(one, f"groups[{i}]"), f"groups[{i}].") for i, one in enumerate(groups)]
    return ScoreRequest(made, deadline)


def _group(table: dict[str, Any], path: str) -> RolloutGroup:
    for name in table:
        if name not in GROUP_FIELDS:
            known = f"{nearest(name, GROUP_FIELDS)} A group has: {listing(GROUP_FIELDS)}"
            raise UserError(f"{path}{_name(name)} is unknown.{known}")
    if "prompt" not in table:
        raise UserError(f"{path}prompt is missing: a text, a list of messages, or a table with messages")
    if ("responses" in table) == ("rollouts" in table):
        raise UserError(f"{path}responses is needed: a list of texts; or rollouts in its place, which may have tokens")
    prompt = _prompt(table["prompt"], {name: table[name] for name in PROMPT_FIELDS if name in table}, f"{path}prompt")
    if "rollouts" in table:
        rollouts = [from_json(Rollout, one) for one in _list(table["rollouts"], f"{path}rollouts")]
    else:
        texts = _list(table["responses"], f"{path}responses")
        rollouts = [_rollout(text, f"{path}responses[{i}]") for i, text in enumerate(texts)]
    return _made(RolloutGroup, path or "the group", prompt, rollouts, table.get("policy_version", 0))


def _prompt(given: object, around: Mapping[str, Any], path: str) -> Prompt:
    if isinstance(given, str):
        message = _made(Message, path, "user", given)
        return _made(Prompt, path, **{"id": text_id(given), "messages": [message], **around})
    if isinstance(given, Mapping):
        if around:
            raise UserError(f"{next(iter(around))} is given next to {path}, which is a table: put it inside")
        table: dict[str, Any] = dict(given)
    else:
        table = {**around, "messages": _list(given, path)}
    table.setdefault("id", text_id(str(table.get("messages"))))
    return from_json(Prompt, table)


def _rollout(text: object, path: str) -> Rollout:
    if not isinstance(text, str):
        raise UserError(f"{path} is of type {type(text).__name__}: it must be text")
    return _made(Rollout, path, text)


def score_json(score: Score) -> dict[str, Any]:
    """Return a score; one that failed has `value: null` and a `failure`."""
    table: dict[str, Any] = {
        "value": score.value,
        "failure": None if score.failure is None else failure_json(score.failure),
        "parts": {name: score_json(part) for name, part in score.parts.items()},
        "feedback": score.feedback,
        "label": score.label,
    }
    for name in ("token_values", "token_support"):
        if (values := getattr(score, name)) is not None:
            table[name] = to_json(values)
    return table


def failure_json(failure: Failure) -> dict[str, Any]:
    """Return a failure."""
    return {"kind": failure.kind, "detail": failure.detail, "attempts": failure.attempts}


def score_reply(request: ScoreRequest, scored: Sequence[ScoredGroup]) -> dict[str, Any]:
    """Return the scores in the order of the request."""
    groups = [{"id": one.group.prompt.id, "scores": [score_json(score) for score in one.scores]} for one in scored]
    return groups[0] if request.single else {"groups": groups}


# ---- OpenRLHF ------------------------------------------------------------------------------------------------------


def parse_openrlhf(body: object, source: str) -> AnswerGroups:
    """Return the samples of `{"query": […], "prompts": […], "labels": […]}`; equal prompt and label form a group."""
    table = _table(body, "the body")
    queries, prompts = _texts(table, "query"), _texts(table, "prompts")
    labels = _list(table.get("labels") or [None] * len(queries), "labels")
    if not queries or not len(queries) == len(prompts) == len(labels):
        counts = f"{len(queries)}, {len(prompts)} and {len(labels)}"
        raise UserError(f"query, prompts and labels have {counts} entries: one of each per sample")
    groups: dict[tuple[str, str], tuple[int, Prompt, list[Rollout]]] = {}
    places = []
    for i, (query, text, label) in enumerate(zip(queries, prompts, labels, strict=True)):
        key = (text, repr(label))
        if key not in groups:
            message = _made(Message, f"prompts[{i}]", "user", text)
            answer = None if label == "" else label
            prompt = _made(Prompt, f"labels[{i}]", text_id("\0".join(key)), [message], source, answer)
            groups[key] = (len(groups), prompt, [])
        number, _, rollouts = groups[key]
        places.append((number, len(rollouts)))
        rollouts.append(_rollout(answer_in_query(query, text, i), f"query[{i}]"))
    return AnswerGroups([RolloutGroup(prompt, rollouts) for _, prompt, rollouts in groups.values()], places)


# ---- NeMo Gym ------------------------------------------------------------------------------------------------------


def parse_verify(body: object, source: str) -> ScoreRequest:
    """Return the one rollout of Gym's `/verify`: a Responses request, the response, and the fields of the task."""
    table = _table(body, "the body")
    try:
        json.dumps(table, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is part of the reply, and cannot be sent back: {error}") from None
    params = _table(table.get("responses_create_params"), "responses_create_params")
    response = _table(table.get("response"), "response")
    task = {name: value for name, value in table.items() if name not in ("responses_create_params", "response")}
    answer = next((task[name] for name in ANSWER_FIELDS if task.get(name) is not None), None)
    messages = [{"role": role, "content": text} for role, text in _messages(params)]
    prompt = from_json(
        Prompt,
        {
            "id": str(task.get("id") or task.get("uuid") or text_id(str(messages)))[:200],
            "messages": messages,
            "source": source or (task["source"] if isinstance(task.get("source"), str) else ""),
            "answer": answer,
            "info": task,
        },
    )
    details = response.get("incomplete_details")
    cut = isinstance(details, dict) and details.get("reason") == "max_output_tokens"
    rollout = _made(Rollout, "response.output", _output_text(response), stop_reason="length" if cut else "stop")
    return ScoreRequest([RolloutGroup(prompt, [rollout])], single=True)


def verify_reply(body: Mapping[str, Any], score: Score) -> dict[str, Any]:
    """Return the request with its reward; the score has a value."""
    components = {name: part.value for name, part in score.named_parts() if part.ok}
    return {**body, "reward": score.value} | ({"reward_components": components} if components else {})


def aggregate_metrics(body: object) -> dict[str, Any]:
    """Return Gym's statistics of the numbers in verify responses, by task and overall; failed rows are left out."""
    rows = _list(_table(body, "the body").get("verify_responses"), "verify_responses")
    tables = [_table(row, f"verify_responses[{i}]") for i, row in enumerate(rows)]
    kept = [row for row in tables if FAILURE_CLASS not in row]
    tasks: dict[int, list[dict[str, Any]]] = {}
    for row in kept:
        index = row.get(TASK_INDEX, 0)
        if type(index) is not int:
            raise UserError(f"{TASK_INDEX} is of type {type(index).__name__}: it must be an integer")
        tasks.setdefault(index, []).append(row)
    overall = _statistics(kept)
    return {
        "group_level_metrics": [{**_statistics(tasks[index]), TASK_INDEX: index} for index in sorted(tasks)],
        "agent_metrics": overall,
        "key_metrics": {name: value for name, value in overall.items() if name.startswith("mean/")},
    }


def _statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if type(value) in (int, float, bool) and not name.startswith("_"):
                columns.setdefault(name, []).append(_number(float(value) if isinstance(value, bool) else value, name))
    found: dict[str, float] = {}
    for name, values in columns.items():
        try:
            numbers = {
                f"mean/{name}": statistics.fmean(values),
                f"max/{name}": max(values),
                f"min/{name}": min(values),
                f"median/{name}": statistics.median(values),
                f"std/{name}": statistics.stdev(values) if len(values) > 1 else 0.0,
            }
        except OverflowError:
            raise UserError(f"{_name(name)} has values that are too large for a mean") from None
        found |= {key: _number(value, key) for key, value in numbers.items()}
    return found


def _messages(params: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    """Yield role and text of each message of a Responses request."""
    if isinstance(params.get("instructions"), str) and params["instructions"]:
        yield "system", params["instructions"]
    given = params.get("input")
    if isinstance(given, str):
        yield "user", given
        return
    for i, item in enumerate(_list(given, "responses_create_params.input")):
        message = _table(item, f"responses_create_params.input[{i}]")
        if "role" in message:  # else a tool call or its result
            yield message["role"], _content(message.get("content"))


def _output_text(response: Mapping[str, Any]) -> str:
    """Return the text of the assistant's messages; reasoning and tool calls are not part of the answer."""
    items = _list(response.get("output"), "response.output")
    messages = (item for item in items if isinstance(item, dict) and item.get("type") == "message")
    return "".join(_content(message.get("content")) for message in messages)


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


# ---- fields --------------------------------------------------------------------------------------------------------


def text_id(text: str) -> str:
    """Return an id for a prompt that has none."""
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def _made(kind: Callable[..., Noun], path: str, *values: Any, **named: Any) -> Noun:
    try:
        return kind(*values, **named)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path.rstrip('.')}: {error}") from None


def _table(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path} is of type {type(value).__name__}: it must be a table")
    return dict(value)


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{path} is of type {type(value).__name__}: it must be a list")
    return value


def _texts(table: Mapping[str, Any], name: str) -> list[str]:
    values = _list(table.get(name), name)
    wrong = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
    if wrong is not None:
        raise UserError(f"{name}[{wrong}] is of type {type(values[wrong]).__name__}: it must be text")
    return values


def _number(value: object, path: str) -> float:
    try:
        return finite(path, value)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def _name(name: str) -> str:
    return repr(name[:60].encode("utf-8", "backslashreplace").decode())
