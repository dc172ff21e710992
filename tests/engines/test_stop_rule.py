"""Where an answer ends: stop texts, stop tokens, limits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.engines.embedded import generate
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import Completion, StopRule
from rewardsmith.engines.protocol import Sampling

from .running import answer, open_engine, shared_engine, tokens_of

TEXTS = ["7", "7+5-3?", "a text that is longer than the window"]
FREE = Sampling(max_tokens=40, temperature=1.5)


def decoded(engine: EmbeddedEngine, tokens: list[int]) -> str:
    return engine.tokenizer.decode(tokens, skip_special_tokens=True)


def cut(engine: EmbeddedEngine, tokens: list[int], stops: tuple[str, ...]) -> tuple[list[int], str, bool]:
    """Return tokens, text and whether it stopped: look after every token, as if it were the last."""
    for n in range(1, len(tokens) + 1):
        text = decoded(engine, tokens[:n])
        places = [text.index(stop) for stop in stops if stop in text]
        if places:
            return tokens[:n], text[: min(places)], True
    return tokens, decoded(engine, tokens), tokens[-1] in engine.stop_ids


@pytest.fixture(scope="module")
def whole() -> dict[str, list[list[int]]]:
    """Answers without a stop text, of two engines: one whose tokens are characters, one whose tokens are bytes."""
    names = ("tiny-llama", "tiny-llama-bytes")
    return {name: [t for g in tokens_of(answer(shared_engine(name), TEXTS, FREE, n=3)) for t in g] for name in names}


@pytest.mark.parametrize("check_every", [1, 2, 8])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama-bytes"])
@given(data=st.data())
@settings(max_examples=5)
def test_stop_texts_end_an_answer(
    whole: dict[str, list[list[int]]], name: str, check_every: int, data: st.DataObject
) -> None:
    engine = shared_engine(name)
    text = decoded(engine, data.draw(st.sampled_from(whole[name])))
    # One or two pieces of an answer, somewhere, or at its very end.
    places = data.draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(1, 5)), min_size=1, max_size=2))
    stops = tuple({text[start : start + length] for start, length in places if "\ufffd" not in text[start:][:length]})
    if any(a != b and a in b for a in stops for b in stops):
        stops = stops[:1]  # a stop text within another one is tested below
    sampling = Sampling(max_tokens=40, temperature=1.5, stop=stops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(generate.CHECK_EVERY, "cpu", check_every)
        groups = answer(engine, TEXTS, sampling, n=3)
    for rollout, tokens in zip((r for g in groups for r in g.rollouts), whole[name], strict=True):
        kept, expected, stopped = cut(engine, tokens, stops)
        assert rollout.tokens.tolist() == kept
        assert rollout.text == expected
        assert rollout.stop_reason == ("stop" if stopped else "length")
        assert len(rollout.logprobs) == len(kept)


def finish(tokens: str, stops: tuple[str, ...], *, end: bool = False) -> Completion:
    """Return the answer that these characters make."""
    engine = shared_engine("tiny-llama")
    ids = [*engine.tokenizer.encode(tokens), *([engine.tokenizer.eos_token_id] if end else [])]
    rule = StopRule(lambda t: decoded(engine, list(t)), engine.stop_ids, Sampling(stop=stops))
    return rule.completion(np.array(ids, dtype=np.int32), -np.arange(1, len(ids) + 1, dtype=np.float32))


def test_what_a_stop_text_cuts_off() -> None:
    cases: list[tuple[str, tuple[str, ...], bool, int, str, bool]] = [
        ("abc", (), True, 4, "abc", True),
        ("abc", (), False, 3, "abc", False),
        ("", (), True, 1, "", True),
        ("abcd", ("bc",), False, 3, "a", True),
        ("abcd", ("cd",), True, 4, "ab", True),  # the end token after a stop text is not part of the answer
        ("abcd", ("xx", "d", "b"), False, 2, "a", True),
        ("abcd", ("abcd",), True, 4, "", True),
        ("abab", ("ab",), False, 2, "", True),
        ("abcd", ("x",), False, 4, "abcd", False),
        ("abc", ("bcd", "c"), False, 3, "ab", True),
        ("abcd", ("bcd", "c"), False, 3, "ab", True),  # the same, however often the host looks
    ]
    for tokens, stops, end, count, text, stopped in cases:
        found = finish(tokens, stops, end=end)
        assert (len(found.tokens), found.text, found.stopped) == (count, text, stopped), (tokens, stops)
        assert found.logprobs.tolist() == [-float(n) for n in range(1, count + 1)]


def test_no_answer_ends_before_min_tokens() -> None:
    engine = shared_engine("tiny-llama")
    (group,) = answer(engine, ["7"], Sampling(max_tokens=30, min_tokens=30), n=4)
    stop = group.rollouts[0].text[3:5]
    (again,) = answer(engine, ["7"], Sampling(max_tokens=30, min_tokens=20, stop=(stop,)), n=4)
    assert all(len(rollout.tokens) >= 20 for rollout in again.rollouts)


def test_a_stop_text_frees_its_row_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared_engine("tiny-llama")
    text = answer(engine, ["7"], Sampling(max_tokens=20))[0].rollouts[0].text
    steps: list[int] = []
    step = generate.Generator._decode
    monkeypatch.setattr(generate.Generator, "_decode", lambda *args: (steps.append(1), step(*args)))
    for check_every in (1, 8):
        monkeypatch.setitem(generate.CHECK_EVERY, "cpu", check_every)
        steps.clear()
        (group,) = answer(engine, ["7"], Sampling(max_tokens=200, stop=(text[9:12],)))
        assert len(steps) <= len(group.rollouts[0].tokens) + check_every < 30


def eager_to_end(share: float) -> EmbeddedEngine:
    """Return an engine whose end token has about this probability everywhere."""
    engine = open_engine("tiny-llama", rows=16)
    with torch.no_grad():
        engine.model.lm_head.weight *= 0
        engine.model.lm_head.weight[engine.stop_ids[0]] = 0
        engine.model.model.norm.weight.zero_()  # all logits are 0: every token is as likely as any other
    engine.stop_ids = tuple(range(round(share * engine.model.config.vocab_size)))
    return engine


def test_lengths_are_geometric_when_each_token_may_be_the_last() -> None:
    engine = eager_to_end(0.25)
    p = len(engine.stop_ids) / engine.model.config.vocab_size
    (group,) = answer(engine, ["7"], Sampling(max_tokens=8), n=1000)
    lengths = np.array([len(rollout.tokens) for rollout in group.rollouts])
    reasons = [rollout.stop_reason for rollout in group.rollouts]
    for n in range(1, 8):
        share = p * (1 - p) ** (n - 1)
        assert abs((lengths == n).mean() - share) < 4.5 * np.sqrt(share * (1 - share) / 1000)
    for rollout, reason in zip(group.rollouts, reasons, strict=True):
        ended = int(rollout.tokens[-1]) in engine.stop_ids
        assert reason == ("stop" if ended else "length")
        assert not set(rollout.tokens[:-1].tolist()) & set(engine.stop_ids)
        assert ended or len(rollout.tokens) == 8
        body = rollout.tokens[:-1] if ended else rollout.tokens
        assert rollout.text == decoded(engine, body.tolist())


@pytest.mark.parametrize(("min_tokens", "temperature"), [(1, 1.0), (3, 0.0), (6, 1.0)])
def test_stop_tokens_wait_for_min_tokens(min_tokens: int, temperature: float) -> None:
    engine = eager_to_end(0.6)
    sampling = Sampling(max_tokens=6, min_tokens=min_tokens, temperature=temperature)
    (group,) = answer(engine, ["7"], sampling, n=40)
    for rollout in group.rollouts:
        assert not set(rollout.tokens[:min_tokens].tolist()) & set(engine.stop_ids)
        uniform = np.log(engine.model.config.vocab_size)
        free = np.log(engine.model.config.vocab_size - len(engine.stop_ids))
        expected = [-free if i < min_tokens else -uniform for i in range(len(rollout.tokens))]
        np.testing.assert_allclose(rollout.logprobs, expected, atol=1e-5)
    if min_tokens < 6:
        assert any(rollout.stop_reason == "stop" for rollout in group.rollouts)


def test_stop_tokens_end_an_answer_and_special_tokens_may_be_written_as_text(
    whole: dict[str, list[list[int]]],
) -> None:
    engine, tokens = shared_engine("tiny-llama"), whole["tiny-llama"][0]
    stop = tokens[len(tokens) // 2]
    (group, *_) = answer(engine, TEXTS, Sampling(max_tokens=40, temperature=1.5, stop_tokens=(stop,)), n=3)
    assert group.rollouts[0].tokens.tolist() == tokens[: tokens.index(stop) + 1]
    assert group.rollouts[0].stop_reason == "stop"
    assert group.rollouts[0].text == decoded(engine, tokens[: tokens.index(stop)])
    marker = engine.tokenizer.convert_tokens_to_ids("<|user|>")
    by_text, by_token = (
        tokens_of(answer(engine, TEXTS, Sampling(max_tokens=40, temperature=1.5, **stop), n=3))
        for stop in ({"stop": ("<|user|>",)}, {"stop_tokens": (marker,)})
    )
    assert by_text == by_token
    assert any(t[-1] == marker for group in by_token for t in group)
