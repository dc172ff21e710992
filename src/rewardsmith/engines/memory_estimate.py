"""How much memory a model takes, from its shape alone: weights, optimizer, KV cache, activations.

Formulas follow the tensors that `engines/embedded` keeps; `benchmarks/memory.py` compares them with a GPU. Legend: P
parameters, T trained ones, b bytes of a weight, L layers, D hidden, I intermediate, H heads, K key-value heads, d head
width, V vocabulary, N tokens of a pass, M response tokens among them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rewardsmith.engines.model_settings import LoraSettings, ModelSettings

GIB = 2**30
ROWS_STEP, LENGTH_STEP, BLOCK_TOKENS = 8, 32, 64  # as in `generate` and `row_cache` on a CPU; blocks are of a GPU
CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**29}  # as in `embedded.heads`
PREFILL_TOKENS = 16_384
MAX_ROWS = {"cpu": 512, "cuda": 1024}  # that decode at a time, where `rows` is not set
SMALL_HIDDEN = 1024  # below this width the kernels of a pass are shorter than the host's work to start them
RECOMPUTE_SHARE = 0.85  # of the free memory, that a pass may be estimated to need before layers are recomputed

OptimizerStates = Literal["float32", "8bit"]
MOMENT_BYTES: dict[OptimizerStates, float] = {"float32": 8.0, "8bit": 2.0 + 2 * 4 / 256}  # 8bit: a scale for 256


@dataclass(frozen=True)
class ModelShape:
    """What decides memory and arithmetic of a model."""

    parameters: int  # P: weights, tied ones once, without an adapter
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    max_length: int = 2**31
    tied: bool = True  # the output layer is the table of input embeddings
    adapter: int = 0  # weights of a LoRA adapter, in float32
    int8: int = 0  # weights below it that are stored in 8 bits
    int8_rows: int = 0  # of their matrices, each with a scale
    qk_norm: bool = False  # queries and keys have norms of their own, which keep their inputs
    fused: bool = True  # runs in our own layers, and not in those of transformers
    scalar: bool = False  # a head that gives one number
    guessed: bool = False  # the files are not here: taken from the size in the name

    @property
    def trained(self) -> int:
        """T: parameters that learn."""
        return self.adapter or self.parameters

    @property
    def matrices(self) -> int:
        """Parameters that take part in a matrix product for every token: all but the table of input embeddings."""
        return self.parameters - (0 if self.tied and not self.scalar else self.vocabulary * self.hidden)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def config_shape(config: Any, *, head: str = "language", lora: LoraSettings | None = None) -> ModelShape:
    """Return the shape of a Hugging Face configuration; the model is built without memory for its weights."""
    import torch  # noqa: PLC0415 it takes seconds
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification  # noqa: PLC0415

    family: Any = AutoModelForCausalLM if head == "language" else AutoModelForSequenceClassification
    if head == "scalar":
        config.num_labels = 1
    with torch.device("meta"):
        return module_shape(family.from_config(config), lora)


def module_shape(model: Any, lora: LoraSettings | None = None) -> ModelShape:
    """Return the shape of a Hugging Face model that has, or will have, an adapter."""
    from rewardsmith.engines.embedded.decoder import why_general  # noqa: PLC0415 they import torch
    from rewardsmith.engines.embedded.int8_linear import Int8Linear, is_quantisable  # noqa: PLC0415

    text = model.config.get_text_config()
    is_int8 = lora is not None and lora.base == "int8"
    frozen: list[Any] = [
        layer
        for layer in model.base_model.modules()
        if is_int8 and (is_quantisable(layer) or isinstance(layer, Int8Linear))
    ]
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_width=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocabulary=text.vocab_size,
        max_length=int(getattr(text, "max_position_embeddings", None) or 2**31),
        tied=bool(getattr(text, "tie_word_embeddings", True)),
        adapter=0 if lora is None else _adapter_parameters(model, lora),
        int8=sum(layer.weight.numel() for layer in frozen),
        int8_rows=sum(layer.out_features for layer in frozen),
        qk_norm=any(name.endswith(".q_norm") for name, _ in model.named_modules()),
        fused=why_general(model.config) is None,
        scalar=model.get_output_embeddings() is None,
    )


def _adapter_parameters(model: Any, lora: LoraSettings) -> int:
    """Count rank · (inputs + outputs) over the layers that get an adapter; a scalar head is trained as it is."""
    from torch import nn  # noqa: PLC0415
    from transformers.pytorch_utils import Conv1D  # noqa: PLC0415

    def chosen(name: str) -> bool:
        if isinstance(lora.targets, list):
            return any(name == target or name.endswith(f".{target}") for target in lora.targets)
        return lora.targets == "all-linear" or re.fullmatch(lora.targets, name) is not None

    head = model.get_output_embeddings() if hasattr(model, "lm_head") else getattr(model, "score", None)
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head and chosen(name)
    ]
    score = getattr(model, "score", None)
    return sum(lora.rank * sum(layer.weight.shape) for layer in layers) + (score.weight.numel() if score else 0)


# layers, hidden, heads, key-value heads, intermediate, vocabulary, tied; head width 128 (64 below 1B)
_FAMILIES = {
    0.135: (30, 576, 9, 3, 1536, 49_152, True),
    0.36: (32, 960, 15, 5, 2560, 49_152, True),
    0.5: (24, 896, 14, 2, 4864, 151_936, True),
    0.6: (28, 1024, 16, 8, 3072, 151_936, True),
    1.5: (28, 1536, 12, 2, 8960, 151_936, True),
    1.7: (28, 2048, 16, 8, 6144, 151_936, True),
    3.0: (36, 2048, 16, 2, 11_008, 151_936, True),
    4.0: (36, 2560, 32, 8, 9728, 151_936, True),
    7.0: (28, 3584, 28, 4, 18_944, 152_064, False),
    8.0: (36, 4096, 32, 8, 12_288, 151_936, False),
    14.0: (40, 5120, 40, 8, 17_408, 151_936, False),
    32.0: (64, 5120, 64, 8, 25_600, 151_936, False),
    70.0: (80, 8192, 64, 8, 28_672, 128_256, False),
}


def named_shape(name: str, *, head: str = "language") -> ModelShape | None:
    """Return the shape of the published model of the size that a name holds (`Qwen3-4B`, `SmolLM2-135M`)."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*([BM])(?![A-Za-z])", Path(name).name, re.IGNORECASE)
    if found is None:
        return None
    billions = float(found[1]) * (1e-3 if found[2] in "mM" else 1)
    near = min(_FAMILIES, key=lambda size: abs(size - billions))
    layers, hidden, heads, kv_heads, intermediate, vocabulary, tied = _FAMILIES[near]
    width = 64 if near in (0.135, 0.36, 0.5) else 128
    each = hidden * width * (2 * heads + 2 * kv_heads) + 3 * hidden * intermediate + 2 * hidden
    tables = 1 if tied or head == "scalar" else 2
    shape = ModelShape(
        layers * each + tables * vocabulary * hidden + hidden,
        layers, hidden, heads, kv_heads, width, intermediate, vocabulary,
        tied=tied, qk_norm="qwen3" in name.lower(), scalar=head == "scalar", guessed=True,
    )  # fmt: skip
    # A size between those of the table: as many parameters as the name says.
    far = abs(near - billions) > 0.15 * billions
    return replace(shape, parameters=int(billions * 1e9)) if far else shape


@cache
def _folder_shape(init: str, head: str, lora: str) -> ModelShape | None:
    from rewardsmith.engines.embedded.loading import is_tiny  # noqa: PLC0415 it imports torch
    from rewardsmith.engines.embedded.model_files import ModelFolder, quiet  # noqa: PLC0415
    from rewardsmith.engines.embedded.tiny import tiny_config  # noqa: PLC0415

    adapter = LoraSettings.model_validate_json(lora) if lora else None
    try:
        with quiet():
            if is_tiny(init):
                return config_shape(tiny_config(init)[0], head=head, lora=adapter)
            folder = _local_folder(init)
            config = None if folder is None else ModelFolder(str(folder)).config(head)
            return None if config is None else config_shape(config, head=head, lora=adapter)
    except Exception:  # noqa: BLE001 the check of the model's files says what is wrong
        return None


def _local_folder(init: str) -> Path | None:
    """Return the folder of a model that is on this machine; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    path = Path(init).expanduser()
    if (path / "config.json").is_file():
        return path
    try:
        cached = try_to_load_from_cache(init, "config.json")
    except ValueError:  # no id of a model
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def model_shape(settings: ModelSettings, init: str | None = None) -> ModelShape | None:
    """Return the shape of a model of a recipe: of its files, or by its name where they are not here; None if unknown.

    `init` is that of the model that it is a copy of.
    """
    name = init or settings.init or ""
    lora = "" if settings.lora is None else json.dumps(settings.lora.model_dump())
    shape = _folder_shape(name, settings.head, lora)
    if shape is None and (shape := named_shape(name, head=settings.head)) is not None and settings.lora is not None:
        shape = with_adapter(shape, settings.lora)
    return shape


def with_adapter(shape: ModelShape, lora: LoraSettings) -> ModelShape:
    """Return the shape of a Llama-like model with an adapter on all linear layers."""
    inner = shape.head_width * (shape.heads + shape.kv_heads)
    ends = 4 * shape.hidden + 2 * inner + 3 * (shape.hidden + shape.intermediate)  # inputs and outputs of the layers
    shape = replace(shape, adapter=shape.layers * lora.rank * ends)
    if lora.base != "int8":
        return shape
    matrices = shape.hidden * (2 * inner + 3 * shape.intermediate)
    rows = inner + shape.kv_heads * shape.head_width + 2 * shape.hidden + 2 * shape.intermediate
    return replace(shape, int8=shape.layers * matrices, int8_rows=shape.layers * rows)


def default_tokens(kind: str, hidden: int) -> int:
    """Return the tokens of a pass where `tokens_per_pass` is not set: more for a small model on a GPU."""
    if kind == "cpu":
        return 8_192
    return 14_336 if hidden >= SMALL_HIDDEN else 24_576


# ---- bytes -----------------------------------------------------------------------------------------------------------


def weight_bytes(shape: ModelShape, itemsize: int) -> int:
    """Return P · b, one byte for what is stored in 8 bits and b for its scales; four for each weight of an adapter."""
    return (shape.parameters - shape.int8 + shape.int8_rows) * itemsize + shape.int8 + shape.adapter * 4


def optimizer_bytes(shape: ModelShape, itemsize: int, *, states: OptimizerStates = "float32") -> float:
    """Return AdamW's two moments, and float32 masters of weights in bfloat16: 12 T in all, or 8 T in float32."""
    masters = 4 if itemsize < 4 and not shape.adapter else 0
    return shape.trained * (masters + MOMENT_BYTES[states])


def gradient_bytes(shape: ModelShape) -> int:
    """Return 4 T: gradients add up in float32."""
    return 4 * shape.trained


def kv_token_bytes(shape: ModelShape, itemsize: int) -> int:
    """Return 2 L K d b: keys and values of one token."""
    return 2 * shape.layers * shape.kv_heads * shape.head_width * itemsize


def kv_cache_bytes(
    shape: ModelShape, itemsize: int, *, rows: int, prompt: int, answer: int, prompts: int, kind: str = "cuda"
) -> int:
    """Return the cache of `rows` answers to so many prompts, all of the given lengths, as the generator allocates it.

    On a GPU that is the blocks of the rows, and one that belongs to none. On a CPU prompts are there once.
    """
    if kind == "cuda":
        tokens = (1 + rows * -(-(prompt + answer) // BLOCK_TOKENS)) * BLOCK_TOKENS
    else:
        prompt, answer = (-(-length // LENGTH_STEP) * LENGTH_STEP for length in (prompt, answer))
        tokens = prompts * prompt + -(-rows // ROWS_STEP) * ROWS_STEP * answer
    return tokens * kv_token_bytes(shape, itemsize)


def writing_bytes(
    shape: ModelShape,
    itemsize: int,
    *,
    rows: int,
    prompt_tokens: int,
    answer_tokens: int,
    prompts: int,
    kind: str = "cuda",
) -> int:
    """Return what writing needs besides the cache: logits, the prefill, tokens of each row.

    A kernel reads logits of b bytes; on a CPU they become float32, then probabilities and their sums: 16 V bytes.
    """
    prefill = min(PREFILL_TOKENS, max(prompt_tokens, prompts * prompt_tokens))
    inner = shape.head_width * (shape.heads + shape.kv_heads)
    passing = prefill * itemsize * (4 * shape.hidden + 3 * shape.intermediate + 3 * inner)
    logits = rows * shape.vocabulary * (itemsize if kind == "cuda" else 16)
    return max(logits, passing) + rows * answer_tokens * 12


def activation_bytes(
    shape: ModelShape,
    itemsize: int,
    *,
    tokens: int,
    responses: int | None = None,
    recomputed: int = 0,
    offload: bool = False,
    spread: float = 1.0,
    kind: str = "cuda",
) -> int:
    """Return what a backward pass over N tokens, of which `responses` are predicted, needs at its peak.

    All layers keep theirs (`layer_bytes`); the first k that are recomputed keep their input of D numbers, or with
    `offload` two of these inputs are on their way. The peak is where the head has the logits of a chunk of tokens, or a
    layer three gradients of I numbers and the product of the gated unit, when all is kept; or later, when a layer is
    recomputed:

        (L - k) layer + k D + max(head, 4 I)   or   k D + layer + 4 I.
    """
    layer = tokens * layer_bytes(shape, itemsize, spread=spread)
    passing = (3 if shape.adapter or not shape.fused else 4) * itemsize * shape.intermediate * tokens
    if shape.adapter and itemsize < 4:
        passing += 2 * shape.intermediate * tokens  # one of the three is of an adapter, in float32
    if shape.int8:
        passing += itemsize * shape.hidden * shape.intermediate  # the largest matrix, dequantised
    head = _head_bytes(shape, itemsize, tokens if responses is None else responses, kind)
    vectors = tokens * shape.hidden * itemsize
    inputs = (min(2, recomputed) if offload else recomputed) * vectors
    kept = inputs + (shape.layers - recomputed) * layer
    return int(2 * vectors + max(kept + max(head, passing), inputs + layer + passing))


def recomputed_layers(shape: ModelShape, itemsize: int, free: float, **a_pass: Any) -> int:
    """Return the fewest layers to recompute for a pass to fit the free bytes; where none do, those that need least.

    `a_pass` has the arguments of `activation_bytes`.
    """
    needs = [activation_bytes(shape, itemsize, recomputed=k, **a_pass) for k in range(shape.layers + 1)]
    return next((k for k, need in enumerate(needs) if need <= free), needs.index(min(needs)))


def layer_bytes(shape: ModelShape, itemsize: int, *, spread: float = 1.0) -> float:
    """Return what one layer keeps of a token for the backward pass.

    The inputs of its two norms and of its linear layers but the last, the two factors of the gated unit, and queries,
    keys, values and output of attention:

        b (4 D + 2 I + 2 H d + s 2 K d),

    where keys and values have s times the tokens (`spread`), since a shared prompt is repeated. Norms of queries and
    keys keep the product that their inputs are parts of, (H + 2 K) d. Layers of transformers keep the product of the
    gated unit and silu(gate) too, 2 I more. In float32 there is no kernel for rows of any length, and all of attention
    has s times the tokens. Under an adapter the layers are frozen and keep nothing, but each adapter keeps its input in
    float32; products stay apart.
    """
    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    numbers = 2 * queries + spread * 2 * keys if itemsize < 4 else queries + spread * 2 * (queries + keys)
    if shape.qk_norm:
        numbers += queries + (1 if shape.adapter or not shape.fused else 2) * keys
    numbers += 0 if shape.fused else shape.intermediate
    if shape.adapter and itemsize < 4:
        numbers += 2 * shape.hidden + 2 * shape.intermediate
        return itemsize * numbers + 4 * (5 * shape.hidden + queries + shape.intermediate)
    kept = 2 if shape.fused and itemsize < 4 else 3
    return itemsize * (numbers + 4 * shape.hidden + kept * shape.intermediate)


def _head_bytes(shape: ModelShape, itemsize: int, responses: int, kind: str) -> int:
    """Return b c V for the logits of c tokens, whose gradient takes their place, and 4 V D for that of the head."""
    if shape.scalar:
        return responses * shape.hidden * 4
    chunk = min(responses, max(1, CHUNK_LOGITS[kind] // shape.vocabulary))
    logits = chunk * shape.vocabulary * (itemsize if kind == "cuda" else itemsize + 8)
    weights = 0 if shape.adapter else shape.vocabulary * shape.hidden * 4
    return logits + weights + 2 * responses * shape.hidden * itemsize
