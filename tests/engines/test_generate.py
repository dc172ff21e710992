"""Generation: the responses do not depend on what else is generated at the same time."""

import asyncio
import gc
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.engines.embedded import generate, kv_cache, row_cache
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.kernels import cache_blocks
from rewardsmith.engines.embedded.tiny import MAX_LENGTH, TINY
from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import UserError

from .running import answer, ask, hf_model, open_engine, rows_of, shared_engine, tokens_of

NAMES = list(TINY)
GREEDY = Sampling(temperature=0, max_tokens=24)
# Prompts below, at and beyond the windows of sixteen tokens.
TEXTS = ["", "7", "7+5-3?", "exactly 14 ch.", "a text that is longer than the window", "1", "22", "333", "x" * 60]


def by_transformers(name: str, text: str, max_tokens: int) -> list[int]:
    ids = torch.from_numpy(shared_engine(name).encode(ask(text)).astype(np.int64))[None]
    written = hf_model(name).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
    )
    return written[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_are_those_of_transformers(name: str) -> None:
    engine = open_engine(name, rows=8)  # nine groups of three, so rows are given to others as they become free
    expected = [by_transformers(name, text, GREEDY.max_tokens) for text in TEXTS]
    assert len({tuple(tokens) for tokens in expected}) > 5  # the model does tell the prompts apart
    assert tokens_of(answer(engine, TEXTS, GREEDY, n=3)) == [[tokens] * 3 for tokens in expected]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_learner(name: str, temperature: float) -> None:
    engine = shared_engine(name)
    groups = answer(engine, TEXTS, Sampling(temperature=temperature, max_tokens=30), n=2)
    learner = engine.logprobs(rows_of(engine, groups), temperature=temperature).numpy()
    for row, rollout in zip(learner, (r for g in groups for r in g.rollouts), strict=True):
        assert rollout.logprobs.dtype == np.float32
        np.testing.assert_allclose(rollout.logprobs, row[: len(rollout.tokens)], atol=1e-5)
        assert not row[len(rollout.tokens) :].any()


SAMPLED = Sampling(max_tokens=20)


@pytest.fixture(scope="module")
def alone() -> dict[str, list[list[int]]]:
    """What each text is answered when it is the only one."""
    engine = shared_engine("tiny-gemma2")
    return {text: tokens_of(answer(engine, [text], SAMPLED, n=3, seeds=[seed]))[0] for seed, text in enumerate(TEXTS)}


@given(
    order=st.permutations(range(len(TEXTS))),
    take=st.integers(1, len(TEXTS)),
    rows=st.integers(1, 30),
    steps=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.sampled_from([1, 40, 10_000])),
)
@settings(max_examples=15)
def test_an_answer_depends_on_its_prompt_and_seed_alone(
    alone: dict[str, list[list[int]]], order: list[int], take: int, rows: int, steps: tuple[int, int, int, int]
) -> None:
    chosen = order[:take]
    engine = shared_engine("tiny-gemma2").copy(name="other")
    engine._max_rows = rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(generate.CHECK_EVERY, "cpu", steps[0])
        patch.setitem(generate.ROWS_STEP, "cpu", steps[1])
        patch.setattr(row_cache, "LENGTH_STEP", steps[2])
        patch.setattr(generate, "PREFILL_TOKENS", steps[3])
        found = tokens_of(answer(engine, [TEXTS[i] for i in chosen], SAMPLED, n=3, seeds=chosen))
    assert found == [alone[TEXTS[i]] for i in chosen]


@given(
    take=st.integers(1, len(TEXTS)),
    rows=st.integers(1, 30),
    tokens=st.integers(1, 90),
    spare=st.integers(0, 60),
    check_every=st.integers(1, 9),
)
@settings(max_examples=15)
@pytest.mark.slow
def test_an_answer_does_not_depend_on_blocks_and_on_waiting_for_them(
    alone: dict[str, list[list[int]]], take: int, rows: int, tokens: int, spare: int, check_every: int
) -> None:
    engine = shared_engine("tiny-gemma2").copy(name="other")
    engine._max_rows, engine._in_blocks = rows, True
    longest = max(len(engine.encode(ask(text))) for text in TEXTS[:take]) + SAMPLED.max_tokens
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_blocks, "BLOCK_TOKENS", tokens)
        patch.setitem(generate.CHECK_EVERY, "cpu", check_every)
        patch.setattr(EmbeddedEngine, "_blocks", lambda *_: 1 + math.ceil(longest / tokens) + spare)
        for _ in range(2):  # the second time in the state of the first
            found = tokens_of(answer(engine, TEXTS[:take], SAMPLED, n=3, seeds=range(take)))
            assert found == [alone[text] for text in TEXTS[:take]]


def test_no_more_rows_than_the_limit_and_none_after_the_consumer_walks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, counts, caches = open_engine("tiny-llama", rows=2), [], []
    run, allocate = generate.Generator._run, kv_cache.KeyValueCache.__init__

    def counting(generator: generate.Generator) -> None:
        counts.append(sum(owner is not None for owner in generator._owners))
        run(generator)

    def recording(cache: kv_cache.KeyValueCache, *sizes: int) -> None:
        caches.append(weakref.ref(cache))
        allocate(cache, *sizes)

    monkeypatch.setattr(generate.Generator, "_run", counting)
    monkeypatch.setattr(kv_cache.KeyValueCache, "__init__", recording)
    expected = tokens_of(answer(engine, TEXTS, SAMPLED))
    assert max(counts) == 2

    async def first() -> int:
        stream = engine.generate([ask("7"), ask("8")], SAMPLED, n=1, seeds=[0, 1])
        number, _ = await anext(stream)
        await stream.aclose()
        return number

    assert asyncio.run(first()) in (0, 1)
    gc.collect()
    assert [cache() for cache in caches] == [None] * 4  # the memory of the rows is free
    assert not torch.is_inference_mode_enabled()
    assert tokens_of(answer(engine, TEXTS, SAMPLED)) == expected


def test_a_group_comes_as_soon_as_it_is_complete_and_others_go_on() -> None:
    sampling = Sampling(max_tokens=80)
    texts = [f"{i}?" for i in range(24)]
    prompts = [ask(text) for text in texts]

    async def order(rows: int) -> list[tuple[int, int]]:
        """Return (steps of the longest answer, number) of the groups as they come."""
        stream = open_engine("tiny-llama", rows=rows).generate(prompts, sampling, n=2, seeds=range(24))
        return [(max(len(r.tokens) for r in group.rollouts), number) async for number, group in stream]

    together = asyncio.run(order(48))
    lengths = [length for length, _ in together]
    assert lengths == sorted(lengths)  # all start at once, so the shortest come first
    assert len(set(lengths)) > 4
    in_turn = asyncio.run(order(8))
    assert sorted(in_turn) == sorted(together)
    # Four groups run at a time, and each starts after others have ended.
    places = {number: place for place, (_, number) in enumerate(in_turn)}
    assert all(place >= number - 4 for number, place in places.items())
    assert any(place < number for number, place in places.items())


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    engine = shared_engine("tiny-llama")
    longest = "x" * (MAX_LENGTH - 2 - 5)  # the chat template takes two tokens
    assert len(tokens_of(answer(engine, [longest], Sampling(max_tokens=5, min_tokens=5)))[0][0]) == 5
    with pytest.raises(UserError, match=r"has 1020 tokens and max_tokens is 5.*1024 positions"):
        answer(engine, ["7", "x" * (MAX_LENGTH - 2 - 4)], Sampling(max_tokens=5))


@pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, Sampling(top_k=3, max_tokens=9), Sampling(max_tokens=9, stop=("a",))]
)
def test_broken_weights_are_named(sampling: Sampling) -> None:
    engine = open_engine("tiny-llama")
    with torch.no_grad():
        engine.model.lm_head.weight[3, 5] = float("nan")
    with pytest.raises(UserError, match="weights are broken"):
        answer(engine, ["7", "8"], sampling, n=2)
