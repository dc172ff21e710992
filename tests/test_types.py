"""The nouns: what they accept, what they refuse and how they say so, and that they cannot be changed."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from rewardsmith import (
    Demonstration,
    Failure,
    Graded,
    Message,
    Preference,
    Prompt,
    Ranking,
    Rollout,
    RolloutGroup,
    Score,
    ScoredGroup,
)
from rewardsmith.records import dumps
from rewardsmith.types import MAX_DETAIL

LONE = "a\ud800b"  # half of a surrogate pair: a Python string, but not Unicode


def prompt(**changes: Any) -> Prompt:
    given = {"id": "p-1", "messages": [Message("user", "7+5?")], "source": "sums", "answer": [12, None]}
    return Prompt(**(given | {"info": {"tests": [1, {"deep": 2.5}]}} | changes))


def rollout(**changes: Any) -> Rollout:
    return Rollout(**({"text": "12", "tokens": [4, 7], "logprobs": [-0.5, 0.0], "stop_reason": "length"} | changes))


def group(**changes: Any) -> RolloutGroup:
    return RolloutGroup(**({"prompt": prompt(), "rollouts": [rollout(), rollout()], "policy_version": 3} | changes))


def score(**changes: Any) -> Score:
    given = {"value": 0.5, "parts": {"rule": Score(1.0), "judge": Score(failure=failure())}}
    return Score(**(given | {"token_values": [0.25, 0.25], "feedback": "good", "label": "exact"} | changes))


def failure(**changes: Any) -> Failure:
    return Failure(**({"kind": "timeout", "detail": "after 5 s", "attempts": 2} | changes))


def scored(**changes: Any) -> ScoredGroup:
    return ScoredGroup(**({"group": group(), "scores": [score(), score(value=1)]} | changes))


def demonstration(**changes: Any) -> Demonstration:
    return Demonstration(**({"prompt": prompt(), "response": "12"} | changes))


def preference(**changes: Any) -> Preference:
    given = {"prompt": prompt(), "chosen": "12", "rejected": "13", "margin": 1.5, "tied": False}
    return Preference(**(given | changes))


def ranking(**changes: Any) -> Ranking:
    given = {"prompt": prompt(), "candidates": ["a", "b", "c"], "scores": [1, 0.5, 0.5], "analysis": "a is best"}
    return Ranking(**(given | changes))


def graded(**changes: Any) -> Graded:
    given = {"prompt": prompt(), "response": "7+5=12", "grade": 0.8, "right": True, "sound": None}
    return Graded(**(given | changes))


def message(**changes: Any) -> Message:
    return Message(**({"role": "user", "content": "7+5?"} | changes))


REFUSED = [
    (message, {"role": 7}, r"Message\.role is of type int: it must be str"),
    (message, {"content": LONE}, r"Message\.content has a lone surrogate at character 1"),
    (prompt, {"id": ""}, r"Prompt\.id is empty"),
    (prompt, {"messages": "hello"}, r"Prompt\.messages is of type str: it must be a list or tuple"),
    (prompt, {"messages": [{"role": "user"}]}, r"Prompt\.messages\[0\] is of type dict: it must be Message"),
    (prompt, {"answer": {1, 2}}, r"Prompt\.answer is of type set: only JSON values"),
    (prompt, {"answer": float("nan")}, r"Prompt\.answer is nan: JSON has no such number"),
    (prompt, {"info": {"a": {"b": [1, object()]}}}, r"Prompt\.info\.a\.b\[1\] is of type object"),
    (prompt, {"info": {1: 2}}, r"the key 1 of Prompt\.info is of type int"),
    (rollout, {"tokens": [4]}, "Rollout has 1 tokens but 2 logprobs"),
    (rollout, {"tokens": [4, -1]}, r"Rollout\.tokens holds -1: a token id is not negative"),
    (rollout, {"tokens": [4, 2**31]}, r"Rollout\.tokens holds a value that does not fit int32"),
    (rollout, {"tokens": [4.0, 7.0]}, r"Rollout\.tokens has dtype float64"),
    (rollout, {"logprobs": [-1, np.nan]}, r"Rollout\.logprobs\[1\] is nan: it must be finite"),
    (rollout, {"logprobs": [-1, 0.5]}, r"Rollout\.logprobs holds 0\.5: a log-probability is at most 0"),
    (rollout, {"logprobs": [-1, -1e300]}, r"Rollout\.logprobs holds a value that does not fit float32"),
    (rollout, {"ends": [2, 1]}, r"Rollout\.ends must not fall, and must lie between 0 and the length of the text"),
    (rollout, {"tokens": [1] * 5, "logprobs": [], "ends": [0, 2**31 - 1, -(2**31), -1, 2]}, r"ends must not fall"),
    (rollout, {"stop_reason": "eos"}, r"Rollout\.stop_reason is 'eos': one of \('stop', 'length'\)"),
    (group, {"rollouts": []}, "RolloutGroup of prompt 'p-1' has no rollouts"),
    (group, {"policy_version": -1}, r"RolloutGroup\.policy_version is -1: it must be at least 0"),
    (failure, {"kind": "slow"}, r"Failure\.kind is 'slow': one of timeout, "),
    (failure, {"attempts": 0}, r"Failure\.attempts is 0: it must be at least 1"),
    (score, {"value": None}, "Score has value None and failure None: give exactly one"),
    (score, {"value": float("nan")}, r"Score\.value is nan: it must be finite"),
    (score, {"value": True}, r"Score\.value is of type bool: it must be a number"),
    (score, {"value": None, "failure": "timeout"}, r"Score\.failure is of type str: it must be Failure"),
    (score, {"parts": {"rule": 1.0}}, r"Score\.parts\['rule'\] is of type float: it must be Score"),
    (score, {"value": None, "failure": failure()}, r"Score\.token_values is given for a failed score"),
    (score, {"label": "Cut off"}, r"Score\.label is 'Cut off': up to 40 lower-case letters"),
    (score, {"token_support": [1, 0]}, r"Score\.token_support has dtype int64"),
    (score, {"token_support": [True]}, r"Score\.token_support has no token_values of its length"),
    (scored, {"scores": [score()]}, "ScoredGroup of prompt 'p-1' has 2 rollouts but 1 scores"),
    (
        scored,
        {"scores": [score(), Score(1.0)]},
        r"ScoredGroup\.scores\[1\] has parts \[\] but scores\[0\] has \['judge'",
    ),
    (scored, {"scores": [score(), score(token_values=[1.0])]}, r"ScoredGroup\.scores\[1\]: 1 token_values .* 2 tokens"),
    (
        scored,
        {"scores": [score(), score(parts={"rule": Score(1.0, token_values=[1.0]), "judge": Score(1.0)})]},
        r"ScoredGroup\.scores\[1\]\.rule: 1 token_values",
    ),
    (demonstration, {"response": ""}, r"Demonstration\.response is empty"),
    (preference, {"margin": -1}, r"Preference\.margin is -1\.0: swap chosen and rejected"),
    (preference, {"tied": 1}, r"Preference\.tied is of type int"),
    (preference, {"tied": True}, r"Preference\.margin is 1\.5 in a tied pair"),
    (ranking, {"candidates": ["a"], "scores": [1]}, "Ranking of prompt 'p-1' has 1 candidates: at least 2"),
    (ranking, {"scores": [1, 2]}, "Ranking of prompt 'p-1' has 3 candidates but 2 scores"),
    (graded, {"grade": 8}, r"Graded\.grade is 8\.0: from 0 to 1"),
    (graded, {"right": 1}, r"Graded\.right is of type int"),
]


def test_what_cannot_be_used_is_refused_by_field() -> None:
    for make, changes, words in REFUSED:
        with pytest.raises((TypeError, ValueError), match=words):
            make(**changes)


CHANGED = {
    message: {"content": "?"}, prompt: {"info": {}}, rollout: {"tokens": [4, 8]}, group: {"policy_version": 4},
    failure: {"attempts": 1}, score: {"token_values": [0.25, 0.5]}, scored: {"scores": [score(value=2), score()]},
    demonstration: {"response": "13"}, preference: {"margin": 0.0}, ranking: {"scores": [1, 1, 1]},
    graded: {"right": None},
}  # fmt: skip


def test_equal_content_is_equal_arrays_included() -> None:
    for make, change in CHANGED.items():
        assert make() == make()
        assert make() != "something else"
        assert make() != make(**change), make


def test_nouns_are_frozen_and_not_hashable() -> None:
    for make in CHANGED:
        noun = make()
        for field in fields(noun):
            with pytest.raises(FrozenInstanceError):
                setattr(noun, field.name, None)
        with pytest.raises(TypeError):
            hash(noun)


def test_arrays_are_read_only() -> None:
    one = rollout(ends=[1, 2])
    for array in (one.tokens, one.logprobs, one.ends, score().token_values, ranking().scores):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_tables_cannot_be_changed_at_any_depth() -> None:
    noun = prompt()
    for change in (
        lambda table: table.update(a=1),
        lambda table: table.__setitem__("a", 1),
        lambda table: table.pop("tests"),
        lambda table: table["tests"][1].update(deep=1),
        lambda table: table["tests"].append(1),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change(noun.info)
    assert noun == prompt()
    with pytest.raises(TypeError, match="frozen noun"):
        score().parts["rule"] = Score(0.0)


def test_what_was_passed_in_is_copied() -> None:
    tokens, info, messages = np.array([1, 2], np.int32), {"a": [1]}, [message()]
    kept_rollout, kept_prompt = rollout(tokens=tokens), prompt(info=info, messages=messages)
    tokens[0], info["a"] = 9, [2]
    messages.append(message())
    assert kept_rollout.tokens.tolist() == [1, 2]
    assert kept_prompt == prompt(info={"a": [1]}, messages=[message()])


def test_values_are_kept_in_one_form() -> None:
    assert [a.dtype for a in (rollout().tokens, rollout().logprobs, score().token_values, ranking().scores)] == [
        np.int32, np.float32, np.float32, np.float64,
    ]  # fmt: skip
    assert type(Score(np.float32(0.5)).value) is float
    assert type(Score(1).value) is float
    assert prompt(answer=np.arange(3)).answer == (0, 1, 2)
    assert Rollout("a").tokens.size == 0
    assert failure(detail="x" * (MAX_DETAIL + 5)).detail == "x" * MAX_DETAIL


def test_scores_know_whether_they_are_and_name_their_parts_from_the_outside_in() -> None:
    nested = Score(1.0, parts={"judge": Score(1.0, parts={"rubric": Score(failure=failure())}), "rule": Score(0.0)})
    assert [(name, part.ok) for name, part in nested.named_parts()] == [
        ("judge", True), ("judge.rubric", False), ("rule", True),
    ]  # fmt: skip


def test_nouns_survive_pickling_and_copying() -> None:
    for make in CHANGED:
        for copied in (pickle.loads(pickle.dumps(make())), copy.deepcopy(make()), replace(make())):  # noqa: S301
            assert copied == make()
            assert dumps(copied) == dumps(make())


def test_reporting_a_failure_cannot_fail() -> None:
    hostile = "\ud800" + "x" * 10_000
    assert Failure("unparsable", hostile).detail.startswith("?x")
    assert len(Failure("unparsable", hostile).detail) == 2_000
    assert Score(1.0, feedback="\udfff").feedback == "?"
