"""Make a Hugging Face folder of a small model with random weights, and its tokenizer.

    python recipes/headlines/small_model.py models/small
    python recipes/headlines/small_model.py models/larger --sums

0.8M parameters and 800 tokens: a word problem with two steps has 50 tokens, and its solution as many. It learns them
from nothing in some minutes on a CPU, where SmolLM2-135M would take hours. With `--sums` it is a `tiny-llama` with
three times the parameters, and the same tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TOKENS = 800
SPECIAL = {"pad_token": "<|pad|>", "bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>"}
WORDS = r"[0-9]|[^0-9\sA-Za-z]| ?[A-Za-z]+|\s"
"""What the tokenizer does not join: digits, signs, words and white space."""


def texts() -> Iterator[str]:
    """Yield problems and solutions."""
    from rewardsmith.data import SOURCES  # noqa: PLC0415 --help is quick

    source = SOURCES["word-problems"](steps=2, largest=30, padding=0.2)  # type: ignore[call-arg]
    for demonstration in islice(source.demonstrations(0), 3_000):  # type: ignore[attr-defined]
        yield demonstration.prompt.messages[0].content
        yield demonstration.response


def make(folder: Path) -> None:
    """Write model and tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 --help is quick
    from transformers import LlamaConfig, PreTrainedTokenizerFast  # noqa: PLC0415

    from rewardsmith.engines.embedded.tiny import ROLES, TINY_TEMPLATE  # noqa: PLC0415

    special = [*SPECIAL.values(), *(f"<|{role}|>" for role in ROLES)]
    backend = Tokenizer(models.BPE(unk_token=SPECIAL["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=TINY_TEMPLATE, clean_up_tokenization_spaces=False, **SPECIAL
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=344, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    write(folder, config, tokenizer)


def make_larger(folder: Path) -> None:
    """Write a model with the tokens of `tiny-llama` and three times its parameters."""
    from rewardsmith.engines.embedded.tiny import tiny_config  # noqa: PLC0415 --help is quick

    config, tokenizer = tiny_config("tiny-llama")
    config.update({"hidden_size": 192, "intermediate_size": 516, "num_hidden_layers": 3})
    write(folder, config, tokenizer)


def write(folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model with random weights, always the same, and its tokenizer."""
    import torch  # noqa: PLC0415 --help is quick
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters() / 1e6:.1f}M parameters, {len(tokenizer)} tokens")


def main() -> None:
    """Parse the arguments and make the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model goes")
    parser.add_argument("--sums", action="store_true", help="a larger tiny-llama, for the process model of prime_cpu")
    arguments = parser.parse_args()
    (make_larger if arguments.sums else make)(arguments.folder)


if __name__ == "__main__":
    main()
