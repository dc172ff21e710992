"""Generation: what is written, whatever else is written at the same time."""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded import generate
from rewardsmith.engines.embedded.engine import EmbeddedEngine
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


# ---- what is written -------------------------------------------------------------------------------------------------


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


# ---- nothing else matters --------------------------------------------------------------------------------------------

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
        patch.setitem(generate.LENGTH_STEP, "cpu", steps[2])
        patch.setattr(generate, "PREFILL_TOKENS", steps[3])
        found = tokens_of(answer(engine, [TEXTS[i] for i in chosen], SAMPLED, n=3, seeds=chosen))
    assert found == [alone[TEXTS[i]] for i in chosen]


def test_a_free_row_leaves_nothing_behind_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows of long prompts become free while only short ones run, and are given to others later. Were they to look at
    # the cache from where they stood, beyond what is read of it, they would see nothing and write NaN.
    monkeypatch.setitem(generate.LENGTH_STEP, "cpu", 4)
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-mistral", device="cpu", rows=8))
    texts = ["x" * n for n in (40, 1, 1, 40, 1, 1, 1, 1)]
    for seed in (200, 210):
        groups = answer(engine, texts, Sampling(max_tokens=100), n=3, seeds=range(seed, seed + 8))
        assert all(np.isfinite(rollout.logprobs).all() for group in groups for rollout in group.rollouts)


def test_seeds_and_rollouts_have_randomness_of_their_own() -> None:
    engine = shared_engine("tiny-llama")
    first, again, other = (answer(engine, ["7+5-3?"], SAMPLED, n=8, seeds=[seed])[0] for seed in (5, 5, 6))
    assert tokens_of([first]) == tokens_of([again])
    assert [r.logprobs.tolist() for r in first.rollouts] == [r.logprobs.tolist() for r in again.rollouts]
    both = [tuple(r.tokens) for r in (*first.rollouts, *other.rollouts)]
    assert len(set(both)) == len(both)


def test_a_prompt_may_be_one_token() -> None:
    engine = shared_engine("tiny-mistral")
    prompts = [[7], [9], [7, 9]]

    async def run() -> dict[int, tuple[generate.Completion, ...]]:
        requests = [generate.GenerationRequest(np.array(prompt, dtype=np.int32), 1, 0) for prompt in prompts]
        return {number: completions async for number, completions in engine.complete(requests, GREEDY)}

    found = asyncio.run(run())
    for number, prompt in enumerate(prompts):
        expected = hf_model("tiny-mistral").generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=24, do_sample=False
        )
        assert found[number][0].tokens.tolist() == expected[0, len(prompt) :].tolist()


def test_no_more_answers_are_written_at_a_time_than_rows() -> None:
    engine = open_engine("tiny-llama", rows=2)
    most = 0

    run = generate.Generator._run

    def counting(generator: generate.Generator) -> None:
        nonlocal most
        most = max(most, sum(owner is not None for owner in generator._owners))
        run(generator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate.Generator, "_run", counting)
        answer(engine, TEXTS, SAMPLED, n=1)
    assert most == 2


# ---- groups come as they are complete --------------------------------------------------------------------------------


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


def test_the_event_loop_runs_between_two_steps() -> None:
    engine = shared_engine("tiny-llama")

    async def run() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(tick())
        stream = engine.generate([ask("7")], Sampling(temperature=0.1, max_tokens=40, min_tokens=40), n=1, seeds=[0])
        length = max([len(group.rollouts[0].tokens) async for _, group in stream])
        other.cancel()
        return ticks, length

    ticks, length = asyncio.run(run())
    assert length == 40
    assert ticks >= length - 2


def test_a_consumer_may_walk_away() -> None:
    engine = shared_engine("tiny-llama")

    async def first() -> int:
        stream = engine.generate([ask("7"), ask("8")], SAMPLED, n=1, seeds=[0, 1])
        number, _ = await anext(stream)
        await stream.aclose()
        return number

    assert asyncio.run(first()) in (0, 1)
    assert tokens_of(answer(engine, ["7"], SAMPLED)) == tokens_of(answer(engine, ["7"], SAMPLED))
    assert not torch.is_inference_mode_enabled()


# ---- what is refused -------------------------------------------------------------------------------------------------


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
