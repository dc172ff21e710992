"""The state of the answers that are being written, one row each, on the device."""

from __future__ import annotations

import torch
from torch import Tensor


class Rows:
    """The state of S rows on the device.

    Attributes:
        token_S: the last token, not yet read by the model.
        position_S: where it stands.
        count_S: tokens written so far.
        limit_S: tokens that may be written.
        done_S: whether the row is finished.
        tokens_ST, logprobs_ST: what was written, and how likely it was.
        uniforms_ST: the row's random numbers.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.token_S = torch.zeros(rows, dtype=torch.long, device=device)
        self.position_S = torch.zeros(rows, dtype=torch.long, device=device)
        self.count_S = torch.zeros(rows, dtype=torch.long, device=device)
        self.limit_S = torch.zeros(rows, dtype=torch.long, device=device)
        self.done_S = torch.ones(rows, dtype=torch.bool, device=device)
        # One column more than an answer has: a finished row goes on writing there.
        self.tokens_ST = torch.zeros(rows, width + 1, dtype=torch.int32, device=device)
        self.logprobs_ST = torch.zeros(rows, width + 1, device=device)
        self.uniforms_ST = torch.zeros(rows, width + 1, device=device)

    def retire(self, rows_R: Tensor) -> None:
        """Let rows stand still that belong to no one.

        They stand at the start, where they see themselves however little of the cache is read: a row that saw nothing
        would leave NaN behind, and a masked NaN is still NaN for whoever gets the row next.
        """
        self.done_S[rows_R] = True
        self.position_S[rows_R] = 0

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows."""
        for tensor in vars(self).values():
            tensor[targets] = tensor[sources]
