"""Similarity to a reference: the angle as other libraries compute it, and the curve that shapes it."""

import asyncio
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.engines.model_settings import SentenceSettings
from rewardsmith.engines.sentences import SentenceModel
from rewardsmith.llm import ModelCallError, Usage
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.judge import MAX_CHARS
from rewardsmith.rewards.judges.scalar_judges import CurveSettings, Similarity, cosine

FIELD = {"field": "Response"}


@dataclass
class Embedding:
    """A model with a fixed random vector for each text."""

    refused: tuple[str, ...] = ()
    calls: list[list[str]] = field(default_factory=list)
    name: str = "near"
    usage: Usage = field(default_factory=Usage)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        if set(texts) & set(self.refused):
            raise ModelCallError("refused", "too long")
        return np.stack([vector(text) for text in texts])


def vector(text: str) -> NDArray[np.float32]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    drawn = np.random.default_rng(seed).normal(size=8) + 1.0
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


def near(a: str, b: str) -> Any:
    return pytest.approx(float(np.dot(vector(a).astype(float), vector(b).astype(float))), abs=1e-6)


def values(*texts: str, model: Any = None, answer: Any = "right", info: Any = None, **settings: Any) -> list[Any]:
    prompt = Prompt("p", [Message("user", "?")], answer=answer, info=info or {})
    reward = Similarity(model="near", **settings)
    reward.connect({"near": model or Embedding()}.__getitem__)
    scores = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in texts])))
    return [s.value if s.failure is None else s.failure.kind for s in scores]


# ---- what is compared ------------------------------------------------------------------------------------------------


def test_what_is_compared_of_a_response() -> None:
    for settings, text, compared in (
        ({}, "<think>a</think> b ", "b"),
        ({"show": "response"}, "<think>a</think>b", "< think>a< /think>b"),
        ({"show": "answer"}, r"so \boxed{b} it is", "b"),
        ({"show": "answer", "extract": ("tagged",)}, "<answer>b</answer>", "b"),
        (FIELD, '{"Response": "a"} {"Response": "b"}', "b"),
        (FIELD, r'{"Response": "b\ud800"}', "b?"),
        ({}, "[CLS] b [SEP]", "[ CLS] b [ SEP]"),
        ({}, "x" * (MAX_CHARS + 5), "x" * MAX_CHARS),
    ):
        model = Embedding()
        assert values(text, model=model, **settings) == [near(compared, "right")]
        assert model.calls == [["right", compared]]


def test_a_missing_answer_is_worth_absent() -> None:
    for settings, text in (
        ({}, "<think>never ends"),
        ({}, "  \n"),
        ({"show": "answer", "extract": ("boxed",)}, "12"),
        (FIELD, "no JSON"),
        (FIELD, '{"Response": 7}'),
        (FIELD, '{"Response": "  "}'),
        (FIELD, '{"Response": ' * 30_000 + '"b"' + "}" * 30_000),
        (FIELD, '{"n": ' + "9" * 5_000 + ', "Response": "b"}'),
    ):
        model = Embedding()
        assert values(text, model=model, **settings) == [0.0]
        assert model.calls == []
        assert values(text, "b", absent=-0.5, curve=CurveSettings(), **settings)[0] == -0.5


def test_where_references_are_found() -> None:
    for answer, info, settings, references in (
        (["a", " b "], {}, {}, ["a", "b"]),
        ("no", {"solution": "a"}, {"reference": "solution"}, ["a"]),
        ("no", {"extra_info": {"solution": ["a", "b"]}}, {"reference": "extra_info.solution"}, ["a", "b"]),
        ('{"Response": "a", "Thought": "t"}', {}, FIELD, ["a"]),
        ("plain", {}, FIELD, ["plain"]),
    ):
        model = Embedding()
        values('{"Response": "reply"}', model=model, answer=answer, info=info, **settings)
        assert model.calls[0][:-1] == references
    for answer, settings in ((None, {}), ("a", {"reference": "solution"}), ({"a": 1}, {}), (["a", " "], {})):
        with pytest.raises(CannotScore, match="the prompt 'p' has") as caught:
            values("a", answer=answer, **settings)
        assert caught.value.kind == "invalid"


def test_each_text_is_embedded_once_and_a_refused_one_fails_alone() -> None:
    model = Embedding()
    values("a", "right", "a", "b", "<think>", model=model, answer=["right", "right"])
    assert model.calls == [["right", "a", "b"]]
    model = Embedding(refused=("long",))
    assert values("a", "long", "", "b", model=model) == [near("a", "right"), "refused", 0.0, near("b", "right")]
    assert values("a", "", "b", model=Embedding(refused=("right",))) == ["refused", 0.0, "refused"]


# ---- the angle -------------------------------------------------------------------------------------------------------

vectors = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3).filter(lambda v: max(map(abs, v)) > 1e-3)


@given(vectors, vectors, st.floats(0.01, 100))
def test_cosine(a: list[float], b: list[float], factor: float) -> None:
    x, y = np.array(a, np.float32), np.array(b, np.float32)
    assert cosine(x, y) == cosine(y, x)
    assert cosine(x, -y) == pytest.approx(-cosine(x, y))
    assert cosine(x * np.float32(factor), y) == pytest.approx(cosine(x, y), abs=1e-5)
    other = torch.nn.functional.cosine_similarity(torch.tensor(a).double(), torch.tensor(b).double(), dim=0)
    assert cosine(x, y) == pytest.approx(float(other), abs=1e-6)


def test_vectors_without_an_angle_are_a_failure() -> None:
    class Odd(Embedding):
        async def embed(self, texts: Sequence[str]) -> Any:
            return [np.array(self.vectors[text == "right"], np.float32) for text in texts]

    for pair in (([0, 0], [1, 0]), ([math.nan, 1], [1, 0]), ([1, 0], [1, 0, 0]), ([[1]], [[1]])):
        model = Odd()
        model.vectors = pair
        assert values("reply", model=model) == ["invalid"]


@pytest.mark.slow
def test_the_value_is_that_of_sentence_transformers(tmp_path: Path) -> None:
    from tests.engines.test_sentences import write_sentences

    model = SentenceModel(SentenceSettings(init=str(write_sentences(tmp_path / "tiny")), device="cpu"), name="near")
    texts = ["the cat sat.", "the dogs sat.", "a b c"]

    async def run() -> tuple[list[Score], Any]:
        reward = Similarity(model="near")
        reward.connect({"near": model}.__getitem__)
        await reward.check()
        prompt = Prompt("p", [Message("user", "?")], answer="the dog sat.")
        found = await reward.score(RolloutGroup(prompt, [Rollout(text) for text in texts]))
        loaded = model._loaded()
        await model.close()
        return list(found), loaded

    found, loaded = asyncio.run(run())
    from sentence_transformers.util import cos_sim

    expected = cos_sim(loaded.encode(texts), loaded.encode(["the dog sat."]))[:, 0].tolist()
    assert [score.value for score in found] == pytest.approx(expected, abs=1e-5)


# ---- the curve -------------------------------------------------------------------------------------------------------


def test_the_curve_is_that_of_the_original_service_up_to_its_rounding() -> None:
    def original(s: float) -> float:
        return 0.1 if s <= 0.65 else 1.0 if s >= 0.85 else (10_000**s / 3981.07 - 0.1) * 1.69811 + 0.1

    curve = CurveSettings()
    low, high, floor, top, base = curve.low, curve.high, curve.floor, curve.top, curve.base
    for s, golden in ((0.65, 0.10), (0.70, 0.199), (0.75, 0.357), (0.80, 0.606), (0.85, 1.00)):
        assert original(s) == pytest.approx(golden, abs=5e-4)
        assert curve.value(s) == pytest.approx(golden, abs=1.7e-3)
    assert base**low / floor == pytest.approx(3981.07, abs=0.005)
    # At the upper end base^s / 3981.07 is 0.63096; 1.69811 is what its rounding to 0.63 gives.
    end = base**high / (base**low / floor)
    assert (top - floor) / (round(end, 2) - floor) == pytest.approx(1.69811, abs=5e-6)
    for s in np.linspace(low, high, 21)[1:-1]:
        direct = (base**s / (base**low / floor) - floor) * (top - floor) / (end - floor) + floor
        assert curve.value(s) == pytest.approx(direct, abs=1e-12)


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(1.001, 1e9), st.floats(0.01, 0.35))
def test_the_curve_is_continuous_and_rises(s: float, other: float, base: float, width: float) -> None:
    curve = CurveSettings(base=base, high=0.65 + width)
    assert (curve.value(curve.low), curve.value(curve.high)) == (0.1, 1.0)
    assert curve.value(curve.low + 1e-13) == pytest.approx(0.1, abs=1e-6)
    assert curve.value(curve.high - 1e-13) == pytest.approx(1.0, abs=1e-6)
    small, large = sorted((s, other))
    assert 0.1 <= curve.value(small) <= curve.value(large) + 1e-12 <= 1.0 + 2e-12


def test_the_curve_is_a_setting() -> None:
    curve = CurveSettings(low=-1.0, high=1.0)
    (cosine,), (shaped,) = values("reply", answer="b"), values("reply", answer="b", curve=curve)
    assert shaped == curve.value(cosine) != cosine
    with pytest.raises(ValueError, match=r"low = 0.9 must be below high = 0.85"):
        CurveSettings(low=0.9)
