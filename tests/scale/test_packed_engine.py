"""The head of models whose logits are not a plain product: chunks of tokens give what the whole gives."""

from __future__ import annotations

import pytest
import torch

from rewardsmith.scale import packed_engine


@pytest.mark.parametrize("tokens", [7, 0])
def test_chunks_of_logits_give_what_the_whole_gives(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_engine, "LOGITS_PER_CHUNK", 3 * 11)  # three tokens at a time
    torch.manual_seed(0)
    logits = torch.randn(tokens, 11, requires_grad=True)
    targets, weights = torch.randint(11, (tokens,)), torch.randn(tokens, 2)
    found = packed_engine._from_logits(logits, targets, 0.7)
    (found * weights).sum().backward()

    exact = logits.detach().double().requires_grad_()
    chances = torch.distributions.Categorical(logits=exact / 0.7, validate_args=False)
    wanted = torch.stack([chances.log_prob(targets), chances.entropy()], -1)
    (wanted * weights).sum().backward()
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=1e-5, rtol=0)
