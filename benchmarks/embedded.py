"""Times policy steps of the embedded engine and of other systems: same model, same workload, same run.

    make bench-embedded     # or: python benchmarks/embedded.py [--device cuda] [--shape qwen3-0.6b] [--new-tokens 256]
    python benchmarks/embedded.py --device cuda --peer trl vllm trl-vllm=/path/to/its/python unsloth

Builds a model with random weights, runs each side in a process of its own with its own Python, and prints the medians;
the ratio after a peer's figure is above 1 where rewardsmith is faster or needs less memory. The sides take turns,
`--rounds` times, so that all meet the same state of the machine. `workload.py` defines what is asked and what each
figure means; `our_side.py`, `trl_side.py` and `vllm_side.py` are the sides.

| peer | what it is |
|---|---|
| `trl` | TRL's GRPOTrainer, generating with transformers |
| `trl-vllm` | the same with vLLM in its process (colocate) |
| `unsloth` | the same, patched by Unsloth, all weights trained |
| `vllm` | vLLM alone: generation only, with log-probabilities and without |

A peer whose packages its Python does not have is reported as not installed, and one that fails as failed. TRL keeps its
default of gradient checkpointing; `--peer-options=--no-checkpointing` is the fairer peer where ours does not recompute.
`--our-settings='recompute=true rows=256'` sets our model as a recipe does.

Learner MFU is F / (seconds of learning x peak of the GPU), where F counts what the model must compute, forward and
backward, and nothing that a system computes again:

    F = 6 P N + 6 L A sum(t^2),    N = sum(t)

Sums are over the rows; t is the tokens of a row with its prompt, P the parameters (tied embeddings once), L the layers
and A the width of all query heads. A prompt counts for every row, also where rows share it. The first term is 2 FLOPs
per parameter and token forward and 4 backward; the second the two products of causal attention.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast, Qwen3Config
from transformers.utils.logging import disable_progress_bar
from workload import SPECIAL, Figures, Workload, figures_from_json, word

from rewardsmith.runs.step_time import GPUS

HERE = Path(__file__).parent
Result = list[Figures] | str
"""What a side measured, or in a word why there is nothing."""
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
        max_position_embeddings=16384,
    )


def qwen3(*, hidden: int, ffn: int) -> Qwen3Config:
    """Return the configuration of a small Qwen3: 28 layers, tied embeddings."""
    return Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=ffn,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    )


SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "tiny-llama": lambda: llama(hidden=128, layers=2, heads=4, kv_heads=4, ffn=512, vocabulary=100),
    "smollm2-135m": lambda: llama(hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocabulary=49152),
    "qwen3-0.6b": lambda: qwen3(hidden=1024, ffn=3072),
    "qwen3-1.7b": lambda: qwen3(hidden=2048, ffn=6144),
}


@dataclass(frozen=True)
class Peer:
    """A side that is not ours: its script, the packages it needs, and the environment that has them by default."""

    script: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: str = ".venv-peers"


PEERS = {
    "trl": Peer("trl_side.py", ("trl",)),
    "trl-vllm": Peer("trl_side.py", ("trl", "vllm"), ("--writer", "vllm")),
    "unsloth": Peer("trl_side.py", ("trl", "unsloth"), ("--writer", "unsloth")),
    "vllm": Peer("vllm_side.py", ("vllm",), environment=".venv-servers"),
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


def is_installed(python: str, packages: Sequence[str]) -> bool:
    """Whether this Python exists and has the packages."""
    program = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run([python, "-c", program, *packages], check=False).returncode == 0
    return False


def measure(python: str, script: str, folder: Path, workload: Workload, options: Sequence[str], limit: float) -> Result:
    """Run a side in its own process and read its figures; its own messages are shown only if it fails."""
    command = [python, str(HERE / script), str(folder), workload.to_json(), *options]
    print(f"{shlex.join([script, *options])}: {workload.warmup} + {workload.steps} steps …", file=sys.stderr)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        start_new_session=True,  # a side may have processes of its own, which end with it
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return f"over {limit:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        print(f"{output}\n{script} failed with {python} (status {process.returncode}), see above", file=sys.stderr)
        return "failed"
    return figures_from_json(next(line for line in reversed(output.splitlines()) if line.startswith('[{"name"')))


def join(before: Result | None, new: Result) -> Result:
    """Add the figures of a further round; what went wrong in one round is the result."""
    if before is None or isinstance(new, str):
        return new
    return before if isinstance(before, str) else [a.join(b) for a, b in zip(before, new, strict=True)]


def update_flops(config: PreTrainedConfig, rows: int, tokens: float) -> float:
    """Return the model FLOPs of one update of `rows` rows of `tokens` tokens each, prompt included; see above."""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * config.num_attention_heads * width
    return 6 * rows * tokens * (parameters + attention * tokens)


def peak_flops(device: str, dtype: str) -> float | None:
    """Return the dense bfloat16 peak of this GPU by its data sheet; those of PCIe cards are lower, and not known."""
    name = device.lower().replace(" ", "")
    if dtype != "bfloat16" or "pcie" in name:
        return None
    return next((gpu.flops for key, gpu in GPUS.items() if key.partition("-")[0] in name), None)


def rows(figures: Figures, flops: float, peak: float | None) -> list[tuple[float | None, bool]]:
    """Return each figure of the table, and whether less of it is better."""
    learning = figures.learning
    return [
        (figures.seconds, True),
        (figures.generating, True),
        (learning, True),
        (figures.tokens / figures.generating, False),
        (figures.tokens / learning if learning else None, False),
        (100 * flops / learning / peak if learning and peak else None, False),
        (figures.peak_bytes / 2**20 if figures.peak_bytes else None, True),
    ]


HEADINGS = (
    "seconds per step",
    "  generating",
    "  learning",
    "generated tokens/s",
    "trained tokens/s",
    "learner MFU, %",
    "peak memory, MiB",
)


def cell(value: float | None, ours: float | None = None, *, less: bool = True) -> str:
    """Write a figure, and after a peer's how many times better ours is."""
    if value is None:
        return ""
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return text if ours is None else f"{text} ({value / ours if less else ours / value:.2f}x)"


def report(shape: str, workload: Workload, ours: Result | None, peers: dict[str, Result]) -> None:
    """Print the table, and under it how each side was set and how far its steps lay apart."""
    cuda = workload.device == "cuda"
    where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} CPU threads"
    peak = peak_flops(where, workload.dtype) if cuda else None
    config = SHAPES[shape]()

    def column(figures: Figures) -> list[tuple[float | None, bool]]:
        tokens = workload.prompt_tokens + figures.tokens / workload.rows
        return rows(figures, update_flops(config, workload.rows, tokens), peak)

    measured = [figures for result in (ours, *peers.values()) if isinstance(result, list) for figures in result]
    own = column(ours[0]) if isinstance(ours, list) else [(None, True)] * len(HEADINGS)
    columns = {} if ours is None else {"rewardsmith": [ours] if isinstance(ours, str) else [cell(v) for v, _ in own]}
    for name, result in peers.items():
        if isinstance(result, str):
            columns[name] = [result]
            continue
        for figures in result:
            pairs = zip(column(figures), own, strict=True)
            columns[figures.name] = [cell(value, mine, less=less) for (value, less), (mine, _) in pairs]
    table = Table()
    table.add_column(f"median of {len(measured[0].steps)}" if measured else "")
    for name in columns:
        table.add_column(name, justify="right")
    for i, heading in enumerate(HEADINGS):
        table.add_row(heading, *("".join(cells[i : i + 1]) for cells in columns.values()))
    console = Console(width=140, highlight=False)
    new = f"{'up to ' if workload.ends == 'eos' else ''}{workload.new_tokens} new tokens"
    console.print(
        f"{shape}, {workload.prompts} prompts x {workload.rollouts} rollouts x {new},"
        f" prompts of {workload.prompt_tokens}, {workload.dtype}, {where}"
    )
    console.print(table)
    for figures in measured:
        times = [step.whole or step.generating for step in figures.steps]
        console.print(f"{figures.name}: {figures.settings}; steps took {min(times):.3g} to {max(times):.3g} s")
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
    parser.add_argument("--steps", type=int, help="timed steps of a round; default: 2, on cuda 3")
    parser.add_argument("--warmup", type=int, default=1, help="steps before them, not timed")
    parser.add_argument("--rounds", type=int, help="default: 2, on cuda 1")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on cuda bfloat16")
    parser.add_argument("--ends", choices=["length", "eos"], default="length", help="do responses end by themselves")
    parser.add_argument("--only", choices=["ours", "peers"])
    parser.add_argument(
        "--peer",
        nargs="+",
        default=["trl"],
        metavar="NAME[=PYTHON]",
        help=f"of {', '.join(PEERS)}, with the Python that has it; default: trl in .venv-peers",
    )
    parser.add_argument("--peer-options", default="", metavar="OPTIONS", help="of trl_side.py: --peer-options='--a b'")
    parser.add_argument("--vllm-options", default="", metavar="OPTIONS", help="of vllm_side.py")
    parser.add_argument(
        "--our-settings", default="", metavar="SETTINGS", help="of our model: 'rows=256 recompute=true'"
    )
    parser.add_argument("--limit", type=float, default=3600, metavar="S", help="seconds for one round of one side")
    parser.add_argument("--folder", type=Path, help="keep the model here, and use it where it is already there")
    given = parser.parse_args()
    for name, value in DEFAULTS[given.device].items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    given.peer = (
        {} if given.only == "ours" else {name: python for name, _, python in (p.partition("=") for p in given.peer)}
    )
    if unknown := given.peer.keys() - PEERS.keys():
        parser.error(f"--peer {' '.join(unknown)}: known are {', '.join(PEERS)}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    return given


def main() -> None:
    """Build the model, run the sides, print the table."""
    given = arguments()
    config = SHAPES[given.shape]()
    sizes = ("device", "dtype", "prompts", "rollouts", "prompt_tokens", "new_tokens", "steps", "warmup", "ends")
    try:
        workload = Workload(**{name: getattr(given, name) for name in sizes}, vocabulary=config.vocab_size)
    except ValueError as error:
        sys.exit(f"error: {error}")
    options = {"our_side.py": given.our_settings, "trl_side.py": given.peer_options, "vllm_side.py": given.vllm_options}
    options = {script: shlex.split(text) for script, text in options.items()}
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)) / given.shape
        if not list(folder.glob("*.safetensors")):
            build(folder, config, workload.seed)
        for _ in range(given.rounds):
            for name, python in given.peer.items():
                peer = PEERS[name]
                program = python or str(HERE.parent / peer.environment / "bin" / "python")
                new: Result = "not installed"
                if is_installed(program, peer.packages):
                    more = [*peer.options, *options[peer.script]]
                    new = measure(program, peer.script, folder, workload, more, given.limit)
                results[name] = join(results.get(name), new)
            if given.only != "peers":
                new = measure(sys.executable, "our_side.py", folder, workload, options["our_side.py"], given.limit)
                results["ours"] = join(results.get("ours"), new)
    ours = results.pop("ours", None)
    report(given.shape, workload, ours, results)
    if any(isinstance(result, str) and result != "not installed" for result in (ours, *results.values())):
        sys.exit(1)


if __name__ == "__main__":
    disable_progress_bar()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that a side ends with this process
    main()
