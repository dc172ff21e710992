"""Times policy steps of the embedded engine beside TRL's GRPOTrainer: same model, same workload, same run.

    make bench-embedded     # or: python benchmarks/embedded.py [--device cuda] [--shape qwen3-0.6b] [--new-tokens 256]

Builds a model with random weights in a temporary folder, runs each side in a process of its own with its own Python,
and prints the medians and the ratios; above 1 means that rewardsmith is faster or needs less memory. The sides take
turns, `--rounds` times, so that both meet the same state of the machine.
`workload.py` defines what is asked and what each figure means; `trl_side.py` and `our_side.py` are the sides.

TRL lives in an environment of its own (`--peer-python`). Where there is none, `--only ours` measures our side alone,
and `--peer-seconds 18.9` sets it against a figure from elsewhere, which the table marks as given. TRL keeps its default
of gradient checkpointing; `--peer-options=--no-checkpointing` is the fairer peer where our side does not recompute.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast, Qwen3Config
from transformers.utils.logging import disable_progress_bar
from workload import SPECIAL, Figures, Workload, word

HERE = Path(__file__).parent
# What is not given on the command line: on a CPU both sides together are done in about two minutes.
DEFAULTS = {
    "cpu": {"shape": "tiny-llama", "new_tokens": 64, "steps": 2, "rounds": 2, "dtype": "float32"},
    "cuda": {"shape": "qwen3-0.6b", "new_tokens": 256, "steps": 3, "rounds": 1, "dtype": "bfloat16"},
}


def llama(*, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocabulary: int) -> LlamaConfig:
    """Return the configuration of a Llama with tied embeddings."""
    return LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=ffn,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )


SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "tiny-llama": lambda: llama(hidden=128, layers=2, heads=4, kv_heads=4, ffn=512, vocabulary=100),
    "smollm2-135m": lambda: llama(hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocabulary=49152),
    "qwen3-0.6b": lambda: Qwen3Config(
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    ),
}


def write_tokenizer(folder: Path, config: PreTrainedConfig, template: str | None = None) -> None:
    """Write a tokenizer with one word for each token, and tell the configuration its special tokens."""
    pad, eos, unknown = SPECIAL
    words = {word(token): token for token in range(config.vocab_size)}
    backend = Tokenizer(models.WordLevel(words, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, eos_token=eos, unk_token=unknown)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config.bos_token_id = None
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id


def build(folder: Path, config: PreTrainedConfig, seed: int) -> None:
    """Write a model of this shape with random float32 weights, and its tokenizer."""
    write_tokenizer(folder, config)
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


def measure(python: str, side: str, folder: Path, workload: Workload, options: Sequence[str] = ()) -> Figures:
    """Run a side in its own process and read its figures; its own messages are shown only if it fails."""
    print(f"{side}: {workload.warmup} + {workload.steps} steps …", file=sys.stderr)
    done = subprocess.run(
        [python, str(HERE / side), str(folder), workload.to_json(), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{side} failed with {python} (status {done.returncode}), see above")
    return Figures.from_json(done.stdout.splitlines()[-1])


def rows(figures: Figures) -> list[tuple[float, bool]]:
    """Return each figure of the table, and whether less of it is better."""
    return [
        (figures.seconds, True),
        (figures.generating, True),
        (figures.learning, True),
        (figures.tokens / figures.generating, False),
        (figures.tokens / figures.learning, False),
        (figures.peak_bytes / 2**20, True),
    ]


HEADINGS = (
    "seconds per step",
    "  generating",
    "  learning",
    "generated tokens/s",
    "trained tokens/s",
    "peak memory, MiB",
)


def report(shape: str, workload: Workload, trl: Figures | None, ours: Figures | None, given: Sequence[float]) -> None:
    """Print the table, and under it how each side was set and how far its steps lay apart."""
    cuda = workload.device == "cuda"
    where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} CPU threads"
    table = Table()
    table.add_column(f"median of {len((trl or ours).steps)} steps")
    for heading in ("TRL, given" if given else "TRL", "rewardsmith", "ratio"):
        table.add_column(heading, justify="right")

    def text(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

    theirs = [value for value, _ in rows(trl)] if trl else [*given, *[None] * (len(HEADINGS) - len(given))]
    mine = rows(ours) if ours else [(None, True)] * len(HEADINGS)
    for heading, peer, (own, less) in zip(HEADINGS, theirs, mine, strict=True):
        ratio = "" if peer is None or own is None else f"{peer / own if less else own / peer:.2f}x"
        table.add_row(heading, text(peer), text(own), ratio)
    console = Console(width=120, highlight=False)
    new = f"{'up to ' if workload.ends == 'eos' else ''}{workload.new_tokens} new tokens"
    console.print(
        f"{shape}, {workload.prompts} prompts x {workload.rollouts} rollouts x {new},"
        f" prompts of {workload.prompt_tokens}, {workload.dtype}, {where}"
    )
    console.print(table)
    for figures in filter(None, (trl, ours)):
        whole = [step.whole for step in figures.steps]
        console.print(f"{figures.name}: {figures.settings}; steps took {min(whole):.3g} to {max(whole):.3g} s")
    if given:
        console.print("TRL: given, not measured in this run; the ratio holds only for the same workload and machine")
    console.print(f"memory: {'most that torch had allocated' if cuda else 'largest resident size, libraries included'}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=list(DEFAULTS), default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), help="default: tiny-llama, on cuda qwen3-0.6b")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts of one prompt")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, help="default: 64, on cuda 256")
    parser.add_argument("--steps", type=int, help="timed steps of a round, after one to warm up; default: 2, on cuda 3")
    parser.add_argument("--rounds", type=int, help="default: 2, on cuda 1")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on cuda bfloat16")
    parser.add_argument("--ends", choices=["length", "eos"], default="length", help="do responses end by themselves")
    parser.add_argument("--only", choices=["ours", "trl"])
    peers = HERE.parent / ".venv-peers" / "bin" / "python"
    parser.add_argument("--peer-python", default=str(peers), metavar="PATH", help="a Python that has TRL")
    parser.add_argument("--peer-options", default="", metavar="OPTIONS", help="of trl_side.py: --peer-options='--a b'")
    parser.add_argument(
        "--peer-seconds",
        type=float,
        nargs="+",
        default=[],
        metavar="S",
        help="TRL's seconds per step from elsewhere, or those of step, generating and learning; TRL is not run then",
    )
    given = parser.parse_args()
    for name, value in DEFAULTS[given.device].items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.peer_seconds and (given.only == "trl" or len(given.peer_seconds) not in (1, 3)):
        parser.error("--peer-seconds takes one number or three, and stands for TRL: it does not go with --only trl")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    return given


def main() -> None:
    """Build the model, run the sides, print the table."""
    given = arguments()
    config = SHAPES[given.shape]()
    sizes = ("device", "dtype", "prompts", "rollouts", "prompt_tokens", "new_tokens", "steps", "ends")
    try:
        workload = Workload(**{name: getattr(given, name) for name in sizes}, vocabulary=config.vocab_size)
    except ValueError as error:
        sys.exit(f"error: {error}")
    with_trl = given.only != "ours" and not given.peer_seconds
    if with_trl and not Path(given.peer_python).exists():
        sys.exit(f"error: --peer-python {given.peer_python}: not there. `make parity` makes it; or use --only ours")
    trl: Figures | None = None
    ours: Figures | None = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, config, workload.seed)
        for _ in range(given.rounds):
            if with_trl:
                new = measure(given.peer_python, "trl_side.py", folder, workload, shlex.split(given.peer_options))
                trl = trl.join(new) if trl else new
            if given.only != "trl":
                new = measure(sys.executable, "our_side.py", folder, workload)
                ours = ours.join(new) if ours else new
    report(given.shape, workload, trl, ours, given.peer_seconds)


if __name__ == "__main__":
    disable_progress_bar()
    main()
