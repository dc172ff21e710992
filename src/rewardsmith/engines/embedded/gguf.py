"""What to do with a GGUF file, which cannot be trained as it is: commands that make a Hugging Face folder of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import transformers

SUFFIX, MAGIC = ".gguf", b"GGUF"


def gguf_advice(path: Path) -> str:
    """Return how to get a folder that can be trained out of a GGUF file, or out of the first one of a folder.

    It is empty where there is none.
    """
    if path.is_dir():
        path = next((file for file in sorted(path.iterdir()) if file.suffix.lower() == SUFFIX), path)
    if path.is_dir() or not _is_gguf(path):
        return ""
    target = path.with_suffix("") if path.suffix.lower() == SUFFIX else path.with_name(f"{path.name}-hf")
    parent, name, out = (json.dumps(str(text), ensure_ascii=False) for text in (path.parent, path.name, target))
    source = f"{parent}, gguf_file={name}"
    # Newer versions keep the weights quantised unless the call says otherwise, and then cannot save them.
    newer = hasattr(transformers, "GgufConfig")
    dense = ", quantization_config=C(dequantize=True)" if newer else ""
    code = (
        f"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T{', GgufConfig as C' if newer else ''};"
        f" M.from_pretrained({source}{dense}).save_pretrained({out});"
        f" T.from_pretrained({source}).save_pretrained({out})"
    )
    return (
        "a GGUF file is for llama.cpp and cannot be trained. Name the Hugging Face model that it was made from. Or"
        " convert it, which does not bring back what its quantisation has lost:\n"
        f"  pip install gguf\n  python -c {shlex.quote(code)}\n"
        f"and set init = {out}"
    )


def _is_gguf(path: Path) -> bool:
    """Whether a file is in the format of llama.cpp, by its name or by its first bytes."""
    if path.suffix.lower() == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


__all__ = ["gguf_advice"]
