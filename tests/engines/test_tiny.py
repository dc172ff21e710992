"""Models built on the spot."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.engines.embedded.tiny import TINY, make_tiny

NAMES = list(TINY)
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
CHARACTERS = make_tiny("tiny-llama", seed=0)[1]
BYTES = make_tiny("tiny-llama-bytes", seed=0)[1]
CHAT = [
    {"role": "system", "content": " be  brief\n"},
    {"role": "user", "content": "7+5-3?"},
    {"role": "assistant", "content": "7+5=12;12-3=9;#9"},
    {"role": "user", "content": "again"},
]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_state_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (make_tiny(name, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)
    assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in first.parameters())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_unicode_text_survives_in_bytes(text: str) -> None:
    tokens = BYTES.encode(text)
    assert BYTES.decode(tokens) == text
    if "<|" not in text:
        assert len(tokens) == len(text.encode())
