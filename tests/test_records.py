"""The nouns as JSON lines: what is written comes back, the bytes never change, and no line can do harm."""

import json
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import (
    Demonstration,
    Failure,
    Message,
    Preference,
    Prompt,
    Ranking,
    Rollout,
    RolloutGroup,
    Score,
    ScoredGroup,
    UserError,
)
from rewardsmith.records import dumps, from_json, loads, to_json

# ---- nouns of every kind -------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NAME = st.text(string.ascii_lowercase + "é.", min_size=1, max_size=5)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.builds(Message, NAME, TEXT)
PROMPTS = st.builds(
    Prompt, NAME, st.lists(MESSAGES, min_size=1, max_size=2), TEXT, JSON, st.dictionaries(TEXT, JSON, max_size=2)
)
FAILURES = st.builds(Failure, st.sampled_from(["timeout", "refused", "cancelled"]), TEXT, st.integers(1, 9))


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
    logprobs = draw(st.lists(st.floats(-(2.0**100), 0, width=32), min_size=len(tokens), max_size=len(tokens)))
    return Rollout(draw(TEXT), tokens, logprobs, draw(st.sampled_from(["stop", "length"])))


@st.composite
def scores(draw: st.DrawFn, tokens: int | None = None, names: tuple[str, ...] = ("rule", "judge")) -> Score:
    parts = {name: draw(scores(tokens, names[1:])) for name in names[:1]}
    if draw(st.booleans()):
        return Score(failure=draw(FAILURES), parts=parts, feedback=draw(TEXT))
    values = None if tokens is None else draw(st.none() | st.lists(FLOAT32, min_size=tokens, max_size=tokens))
    support = None if values is None else draw(st.none() | st.lists(st.booleans(), min_size=tokens, max_size=tokens))
    return Score(draw(NUMBER), parts=parts, token_values=values, token_support=support, feedback=draw(TEXT))


GROUPS = st.builds(RolloutGroup, PROMPTS, st.lists(rollouts(), min_size=1, max_size=2), st.integers(0, 2**60))
SCORED = GROUPS.flatmap(
    lambda group: st.tuples(*(scores(len(r.tokens)) for r in group.rollouts)).map(
        lambda given: ScoredGroup(group, given)
    )
)
RANKINGS = st.lists(st.tuples(TEXT, NUMBER), min_size=2, max_size=4).flatmap(
    lambda items: st.builds(Ranking, PROMPTS, st.just([t for t, _ in items]), st.just([s for _, s in items]), TEXT)
)
PREFERENCES = st.builds(Preference, PROMPTS, TEXT, TEXT, st.floats(0, 9)) | st.builds(
    Preference, PROMPTS, TEXT, TEXT, tied=st.booleans()
)
NOUNS = {
    Message: MESSAGES,
    Prompt: PROMPTS,
    Rollout: rollouts(),
    RolloutGroup: GROUPS,
    Failure: FAILURES,
    Score: scores(3),
    ScoredGroup: SCORED,
    Demonstration: st.builds(Demonstration, PROMPTS, NAME),
    Preference: PREFERENCES,
    Ranking: RANKINGS,
}


@pytest.mark.parametrize("kind", NOUNS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_what_is_written_comes_back_unchanged(kind: type, data: st.DataObject) -> None:
    noun = data.draw(NOUNS[kind])
    line = dumps(noun)
    assert "\n" not in line
    again = loads(kind, line)
    assert again == noun
    assert dumps(again) == line  # stricter than equality, for which 1, 1.0 and True are one
    assert loads(kind, line.encode("utf-8")) == noun
    assert from_json(kind, json.loads(json.dumps(to_json(noun)))) == noun


# ---- the form is stable --------------------------------------------------------------------------------------------

GOLDEN = (
    '{"group":{"prompt":{"id":"p-1","messages":[{"role":"user","content":"7+5 = ?\\nÄ"}],"source":"sums",'
    '"answer":"12","info":{"level":2,"tags":["a",null,true]}},"rollouts":[{"text":"12","tokens":{"int32":"AQAAAAABAAA="},'
    '"logprobs":{"float32":"AAAAvwAAAAA="},"stop_reason":"stop","ends":null}],"policy_version":3},"scores":[{"value":0.1,'
    '"failure":null,"parts":{"judge":{"value":null,"failure":{"kind":"timeout","detail":"5 s","attempts":2},"parts":{},'
    '"token_values":null,"token_support":null,"feedback":"","label":"late"}},"token_values":{"float32":"AACAPwAAAMA="},'
    '"token_support":{"bool":"AAE="},"feedback":"ok","label":""}]}'
)
GOLDEN_NOUN = ScoredGroup(
    RolloutGroup(
        Prompt("p-1", [Message("user", "7+5 = ?\nÄ")], "sums", "12", {"level": 2, "tags": ["a", None, True]}),
        [Rollout("12", [1, 256], [-0.5, 0.0])],
        policy_version=3,
    ),
    [
        Score(
            0.1,
            parts={"judge": Score(failure=Failure("timeout", "5 s", 2), label="late")},
            token_values=[1, -2],
            token_support=[False, True],
            feedback="ok",
        )
    ],
)


def test_the_bytes_of_a_line_never_change() -> None:
    assert dumps(GOLDEN_NOUN) == GOLDEN
    assert loads(ScoredGroup, GOLDEN) == GOLDEN_NOUN


def test_plain_lists_and_missing_defaults_are_accepted() -> None:
    assert loads(Rollout, '{"text": "12", "tokens": [1, 256], "logprobs": [-0.5, 0]}') == Rollout(
        "12", [1, 256], [-0.5, 0]
    )
    assert loads(Rollout, '{"text": ""}') == Rollout("")
    assert loads(Score, '{"value": 1, "token_values": [0.5]}') == Score(1.0, token_values=[0.5])


# ---- hostile lines -------------------------------------------------------------------------------------------------

ASK = '"id": "p", "messages": [{"role": "user", "content": ""}]'
P = f'"prompt": {{{ASK}}}'


HOSTILE = [
    (Score, "{", "not JSON"),
    (Score, b"\xff\xfe\xfa", "not JSON"),
    (Score, '{"value": ' + "9" * 5000 + "}", "not JSON"),
    (Score, "[" * 100_000, "nested too deeply"),
    (Score, '{"value":1,"parts":{"a":' * 400 + '{"value":1}' + "}}" * 400, "nested too deeply"),
    (Score, '{"value": 1, "parts": {"a": ' * 20 + '{"value": 1}' + "}}" * 20, "nested deeper than 16"),
    (Prompt, "{" + ASK + ', "info": {"a": ' + "[" * 70 + "]" * 70 + "}}", "nested"),
    (Score, "[]", r"Score is \[\]: it must be a table"),
    (Score, '"' + "x" * 500 + '"', "Score is 'xxx.*…: it must be a table"),
    (Score, '{"value": NaN}', r"Score\.value is nan"),
    (Score, '{"value": "1"}', r"Score\.value is of type str"),
    (Score, '{"value": true}', r"Score\.value is of type bool"),
    (Score, '{"value": ' + "9" * 400 + "}", r"Score\.value"),
    (Score, "{}", "give exactly one of the two"),
    (Score, '{"valeu": 1}', "unknown field 'valeu'. Did you mean \"value\"\\? Score has: failure, feedback, label"),
    (Score, '{"\\ud800": 1}', "unknown field"),
    (Score, '{"value": 1, "parts": {"a": {"b": 1}}}', r"Score\.parts\.a has an unknown field 'b'"),
    (Score, '{"value": 1, "parts": {"\\ud800": {"value": "1"}}}', "Score"),
    (Score, '{"failure": {"kind": "slow"}}', r"Score\.failure: Failure\.kind is 'slow'"),
    (Score, '{"failure": {}}', r"Score\.failure has no field 'kind': Failure needs it"),
    (Score, '{"value": 1, "value": 2}', "the key 'value' appears twice"),
    (Message, '{"role": "user", "content": "\\udfff"}', r"Message\.content has a lone surrogate"),
    (Prompt, '{"id": "p", "messages": "hi"}', r"Prompt\.messages is 'hi': it must be a list"),
    (Prompt, '{"id": "p", "messages": [7]}', r"Prompt\.messages\[0\] is 7: it must be a table"),
    (Prompt, "{" + ASK + ', "answer": [NaN]}', r"Prompt\.answer\[0\] is nan"),
    (Rollout, '{"text": "", "tokens": {"int32": "!!!!"}, "logprobs": [1]}', r"Rollout\.tokens is not base64 of int32"),
    (Rollout, '{"text": "", "tokens": {"int32": "AAA="}}', r"Rollout\.tokens is not base64 of int32 numbers"),
    (
        Rollout,
        '{"text": "", "tokens": {"int64": "AAAAAAAAAAA="}}',
        r"Rollout\.tokens is .*: it must be a list, or base64",
    ),
    (Rollout, '{"text": "", "tokens": [1.5], "logprobs": [0]}', r"Rollout\.tokens has dtype float64"),
    (Rollout, '{"text": "", "tokens": [[1], [2, 3]], "logprobs": [0]}', "Rollout"),
    (Rollout, '{"text": "", "tokens": [99999999999], "logprobs": [0]}', "tokens holds a value that does not fit"),
    (Rollout, '{"text": "", "tokens": [' + "9" * 400 + ', 1.5], "logprobs": [0, 0]}', "Rollout"),
    (Rollout, '{"text": "", "tokens": [1], "logprobs": {"float32": "AADAfw=="}}', r"Rollout\.logprobs\[0\] is nan"),
    (RolloutGroup, "{" + P + ', "rollouts": [{}]}', r"RolloutGroup\.rollouts\[0\] has no field 'text'"),
    (ScoredGroup, '{"group": {' + P + ', "rollouts": [{"text": ""}]}, "scores": []}', "1 rollouts but 0 scores"),
    (Preference, "{" + P + ', "chosen": "", "rejected": "", "margin": -1}', r"Preference\.margin is -1"),
    (Ranking, "{" + P + ', "candidates": ["a", "b"], "scores": [1, Infinity]}', r"Ranking\.scores\[1\] is inf"),
]


def test_a_bad_line_ends_in_a_user_error_that_names_the_place() -> None:
    for kind, line, words in HOSTILE:
        with pytest.raises(UserError, match=words) as caught:
            loads(kind, line)
        str(caught.value).encode("utf-8")  # it can be printed
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", NOUNS, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_line_is_read_or_refused_but_never_crashes(kind: type, data: st.DataObject) -> None:
    value = to_json(data.draw(NOUNS[kind]))
    *inner, last = data.draw(st.sampled_from(list(paths(value))))
    place = value
    for key in inner:
        place = place[key]
    place[last] = data.draw(JSON | st.sampled_from([float("nan"), float("inf"), 10**400, {"int32": "AAA"}, "\ud800"]))
    try:
        loads(kind, json.dumps(value))
    except UserError as error:
        assert kind.__name__ in str(error)  # noqa: PT017


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Any:
    """Yield the path of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*prefix, key)
        yield from paths(item, (*prefix, key))


@pytest.mark.parametrize(("noun", "field"), [(Failure("timeout"), "attempts"), (GOLDEN_NOUN.group, "policy_version")])
def test_a_count_that_is_accepted_can_be_written(noun: Any, field: str) -> None:
    try:
        noun = replace(noun, **{field: 10**5000})
    except ValueError as error:
        assert field in str(error)  # noqa: PT017
    else:
        dumps(noun)
