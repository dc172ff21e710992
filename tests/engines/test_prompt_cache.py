"""A policy step tokenises each prompt once: the tokens of recent prompts are cached."""

import pytest

from rewardsmith.engines.embedded import engine as embedded
from rewardsmith.engines.protocol import Sampling

from .running import answer, ask, open_engine


def test_a_prompt_is_rendered_and_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("tiny-llama")
    rendered: list[str] = []
    render = engine._render

    def counting(messages, **settings):
        rendered.append(messages[0].content)
        return render(messages, **settings)

    monkeypatch.setattr(engine, "_render", counting)
    first = engine.encode(ask("7"))
    assert engine.encode(ask("7")) is first
    assert not first.flags.writeable
    answer(engine, ["7", "8"], Sampling(max_tokens=2))
    assert rendered == ["7", "8"]


def test_the_prompt_cache_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "CACHED_PROMPTS", 2)
    engine = open_engine("tiny-llama")
    kept, dropped, _ = engine.encode(ask("7")), engine.encode(ask("8")), engine.encode(ask("7"))
    engine.encode(ask("9"))
    assert engine.encode(ask("7")) is kept
    assert engine.encode(ask("8")) is not dropped
    assert len(engine._prompts) == 2
