"""Times supervised steps of the embedded learner beside TRL's SFTTrainer: same model, same rows, same run.

    make bench-sft          # or: python benchmarks/sft.py [--device cuda --shape qwen3-0.6b --dtype bfloat16]

The rows are like those of a judge: prompts of a few hundred tokens and answers of a hundred, both of very different
lengths, and the loss is on the answers. Each side runs in a process of its own with its own Python, in turns. TRL is
measured as it comes, with rows padded to the longest of a batch, and, on a GPU, with its packing too; on a CPU TRL's
packing would let rows attend to each other, so it is left out there. What is counted are tokens of rows, never padding.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from embedded import SHAPES, build
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar
from workload import SPECIAL, word

HERE = Path(__file__).parent
SHAPES_HERE = {"judge-4m": None, **SHAPES}


def rows(count: int, vocabulary: int, seed: int) -> list[dict[str, str]]:
    """Return prompts and answers of words that are tokens; lengths are log-normal, medians 300 and 100 tokens."""
    rng = random.Random(seed)

    def text(median: float, most: int) -> str:
        length = min(most, max(2, round(median * math.exp(rng.gauss(0, 0.6)))))
        return " ".join(word(rng.randrange(len(SPECIAL), vocabulary)) for _ in range(length))

    return [{"prompt": text(300, 1_500), "completion": text(100, 500)} for _ in range(count)]


def run(python: str, side: str, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    """Run a side in its own process and return its figures; its messages are shown only if it fails."""
    print(f"{side} …", file=sys.stderr)
    options = [side, str(folder), given.device, given.dtype, str(given.batch), str(given.steps)]
    done = subprocess.run(
        [python, str(HERE / "sft_sides.py"), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{side} failed with {python} (status {done.returncode}), see above")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Build the model and the rows, run the sides in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--shape", choices=list(SHAPES_HERE), default="judge-4m")
    parser.add_argument("--batch", type=int, default=16, help="rows in an optimizer step")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a round, after two to warm up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["ours"], help="where there is no TRL")
    peers = HERE.parent / ".venv-peers" / "bin" / "python"
    parser.add_argument("--peer-python", default=str(peers), metavar="PATH", help="a Python that has TRL")
    given = parser.parse_args()
    disable_progress_bar()
    config = SHAPES[given.shape]() if given.shape in SHAPES else _judge()
    sides = ["rewardsmith", "TRL", *(["TRL, packing"] if given.device == "cuda" else [])]
    sides = sides[:1] if given.only else sides
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(folder, config, seed=0)
        data = rows(given.batch * (given.steps + 2), config.vocab_size, seed=0)
        (folder / "rows.json").write_text(json.dumps(data))
        for _ in range(given.rounds):
            for side in sides:
                found[side].append(
                    run(sys.executable if side == "rewardsmith" else given.peer_python, side, folder, given)
                )
    best = {side: max(figures, key=lambda one: one["tokens_per_second"]) for side, figures in found.items()}
    report(given, best)


def _judge() -> object:
    from embedded import llama  # noqa: PLC0415 only this shape needs it

    return llama(hidden=256, layers=4, heads=8, kv_heads=4, ffn=688, vocabulary=2_000)


def report(given: argparse.Namespace, best: dict[str, dict[str, float]]) -> None:
    """Print the better round of each side, and the ratios to ours."""
    where = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    table = Table(title=f"{given.shape}, {given.dtype}, {given.batch} rows a step, {where}", title_justify="left")
    for heading in ("", "tokens/s", "rewardsmith is faster by", "padding", "peak memory, MiB"):
        table.add_column(heading, justify="left" if not heading else "right")
    ours = best["rewardsmith"]["tokens_per_second"]
    for side, figures in best.items():
        ratio = "" if side == "rewardsmith" else f"{ours / figures['tokens_per_second']:.2f}x"
        memory = f"{figures['peak_bytes'] / 2**20:,.0f}"
        table.add_row(side, f"{figures['tokens_per_second']:,.0f}", ratio, f"{figures['padding']:.0%}", memory)
    Console(width=120, highlight=False).print(table)
    print(
        "tokens of rows per second of whole steps, the better of the rounds; padding is what the model computes beside"
    )


if __name__ == "__main__":
    main()
