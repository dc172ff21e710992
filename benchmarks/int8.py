"""Checks and times the product with 8-bit weights: the kernel, torch, and bfloat16 weights.

    python benchmarks/int8.py     # on a machine with a GPU

The layers are those of Qwen3-8B. `TB/s` counts one byte for each weight of the kernel, and two for bfloat16. The
largest error is relative to the largest value of torch's product in float32.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
from rich.console import Console
from rich.table import Table
from torch.nn.functional import linear

from rewardsmith.engines.embedded.int8_linear import quantise_rows
from rewardsmith.engines.embedded.kernels import int8_product as kernel

LAYERS = {"q": (4096, 4096), "k": (1024, 4096), "up": (12_288, 4096), "down": (4096, 12_288), "odd": (4099, 1031)}
ROWS = (1, 8, 32, 64, 128, 256, 512)


def main() -> None:
    """Print a row for each layer and number of rows."""
    table = Table("layer", "rows", "dtype", "error", "kernel µs", "TB/s", "torch µs", "bfloat16 µs", "TB/s")
    kernel.MAX_ROWS = max(ROWS)  # also where torch would be chosen
    for name, (outputs, inputs) in LAYERS.items():
        for dtype in (torch.bfloat16, torch.float32):
            weight = torch.randn(outputs, inputs, device="cuda", dtype=dtype)
            codes, scales = quantise_rows(weight)
            for rows in ROWS if dtype == torch.bfloat16 else (3, 33):
                x = torch.randn(rows, inputs, device="cuda", dtype=dtype)
                exact = kernel.int8_product_torch(x.float(), codes, scales.float())
                gap = (kernel.int8_product(x, codes, scales).float() - exact).abs().max() / exact.abs().max()
                works = (
                    partial(kernel.int8_product, x, codes, scales),
                    partial(kernel.int8_product_torch, x, codes, scales),
                    partial(linear, x, weight),
                )
                ours, reference, plain = (1e3 * triton.testing.do_bench(work) for work in works)
                first, last = (f"{size * weight.numel() / time / 1e6:.2f}" for size, time in ((1, ours), (2, plain)))
                numbers = (f"{ours:.1f}", first, f"{reference:.1f}", f"{plain:.1f}", last)
                table.add_row(name, str(rows), str(dtype)[6:], f"{float(gap):.1e}", *numbers)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
