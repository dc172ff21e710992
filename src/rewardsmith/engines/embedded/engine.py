"""The embedded engine: any Hugging Face causal language model in this process, on the CPU or on one of its GPUs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils import get_total_norm

from rewardsmith.algorithms.tensors import checks_postponed
from rewardsmith.engines.embedded import architectures
from rewardsmith.engines.embedded.attention import attention_plan
from rewardsmith.engines.embedded.block_cache import BlockCache, shared_prompts_pay
from rewardsmith.engines.embedded.cards import current, free_memory, select_device
from rewardsmith.engines.embedded.decode_state import CachePlaces, DecodeState
from rewardsmith.engines.embedded.decoder import Decoder, why_general
from rewardsmith.engines.embedded.generate import (
    ROWS_STEP,
    Completion,
    GenerationRequest,
    Generator,
    StopRule,
    longest_sequence,
    round_up,
)
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.host_memory import HostOffload
from rewardsmith.engines.embedded.kernels import cache_blocks
from rewardsmith.engines.embedded.kernels.block_attention import tile_rows
from rewardsmith.engines.embedded.kv_cache import Cache
from rewardsmith.engines.embedded.learner import Learner
from rewardsmith.engines.embedded.loading import (
    LoadedModel,
    hash_tensors,
    load_model,
    read_tensors,
    restore_weights,
    save_folder,
    write_tensors,
)
from rewardsmith.engines.embedded.model_files import quiet
from rewardsmith.engines.embedded.model_text import ModelText
from rewardsmith.engines.embedded.packing import PackedBatch, micro_batches, pack
from rewardsmith.engines.embedded.recompute import recompute_layers
from rewardsmith.engines.embedded.row_cache import RowCache
from rewardsmith.engines.memory_estimate import (
    MAX_ROWS,
    RECOMPUTE_SHARE,
    default_tokens,
    module_shape,
    recomputed_layers,
)
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Loss, Meter, OptimizerStep, Outputs, Row, Sampling, Tick, no_tick
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.types import Prompt, Rollout, RolloutGroup

CACHE_SHARE = 0.85  # of the free GPU memory, for keys and values
LEARNER_FILE = "learner.safetensors"
ALL_LAYERS = 2**31


class EmbeddedEngine(ModelText):
    """One model in this process; see `rewardsmith.engines.protocol.Engine`."""

    def __init__(self, loaded: LoadedModel, settings: ModelSettings, *, name: str = "model") -> None:
        super().__init__(loaded.tokenizer, settings, name)
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.stop_ids = tuple(sorted({*loaded.stop_ids, self._end}))
        self.model: Any = loaded.model
        if self.stop_ids != loaded.stop_ids and getattr(self.model, "generation_config", None) is not None:
            self.model.generation_config.eos_token_id = list(self.stop_ids)  # servers stop where we stop
        self._why_general = why_general(self.model.config)
        self._decoder = None if self._why_general else Decoder(self.model.base_model)
        with quiet(), current(self.device):
            architectures.check_architecture(self.model, self._backbone, name)
            architectures.fuse_norms(self.model)
        if settings.head == "scalar":
            architectures.configure_scalar_head(self.model, self.tokenizer, settings.template)
        self.padding = self.model.config.get_text_config().pad_token_id
        adapts = settings.recompute == "auto" and self.device.type == "cuda"
        self._shape = module_shape(self.model, settings.lora) if adapts else None
        if (adapts or settings.recomputes_all) and not architectures.use_run_layer(self.model) and not adapts:
            kind = self.model.config.model_type
            raise UserError(f"models.{name}.recompute: transformers cannot recompute the layers of a {kind} model")
        if settings.lora is not None:
            self.model = architectures.attach_adapter(self.model, settings.lora, name)
            self._decoder = None if self._why_general else Decoder(architectures.base_of(self.model).base_model)
            if settings.lora.init is not None:
                architectures.check_trained_adapter(settings.lora, f"models.{name}.lora")
                restore_weights(self.model, Path(settings.lora.init), adapter=True)
        self._learner: Learner | None = None
        self._in_blocks = self.device.type == "cuda"  # keys and values
        self._state: DecodeState | None = None  # of the last generation in blocks
        self._digest = ""
        self._offload = HostOffload()
        self._offloaded = False  # whether host memory holds the weights as they are
        self._awake = True
        width = self.model.config.get_text_config().hidden_size
        self._token_budget = settings.tokens_per_pass or default_tokens(self.device.type, width)
        self._max_rows = settings.rows or MAX_ROWS[self.device.type]

    @classmethod
    def open(cls, settings: ModelSettings, *, seed: int = 0, name: str = "model") -> EmbeddedEngine:
        """Load a model, or create a tiny one."""
        return cls(load_model(settings, seed=seed), settings, name=name)

    def copy(self, settings: ModelSettings | None = None, *, name: str) -> EmbeddedEngine:
        """Return an engine with the same weights and no optimizer; `settings` may give it a scalar head."""
        settings = settings or self.settings.model_copy(update={"lora": None, "offload": False})
        device, dtype = select_device(
            str(self.device) if settings.device == "auto" else settings.device,
            str(self.dtype).removeprefix("torch.") if settings.dtype == "auto" else settings.dtype,
        )
        model = architectures.merge_adapter(self.model)
        if settings.head != self.settings.head:
            if settings.head == "language":
                raise UserError("a model with a scalar head has no language model to copy")
            model = architectures.with_scalar_head(model)
        model.to(device)
        architectures.cast_parameters(model, dtype)
        model.requires_grad_(True)  # an adapter had frozen the weights
        return EmbeddedEngine(LoadedModel(model, self.tokenizer, device, dtype, self.stop_ids), settings, name=name)

    @property
    def forward_pass(self) -> str:
        """Whose code runs the layers of the model, and why."""
        return f"transformers' layers: {self._why_general}" if self._why_general else "fused layers"

    @property
    def max_length(self) -> int:
        """The longest sequence that the model can read."""
        return architectures.max_length(self.model.config)

    # ---- generating ------------------------------------------------------------------------------------------------

    writes_apart = False
    samples_as_it_learns = True

    async def hold_writer(self) -> None:
        """Do nothing: the weights that learn also write, one after the other."""

    def release_writer(self) -> None:
        """Do nothing."""

    async def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        n: int,
        seeds: Sequence[int],
        version: int = 0,
        ends: bool = False,
        tick: Tick = no_tick,
    ) -> AsyncIterator[tuple[int, RolloutGroup]]:
        """Yield (index of the prompt, its n rollouts) as groups complete; other coroutines run in between.

        Rollout i of a prompt depends on the prompt, its seed and i alone, apart from rounding.
        """
        requests = [GenerationRequest(self.encode(p), n, seed) for p, seed in zip(prompts, seeds, strict=True)]
        for prompt, request in zip(prompts, requests, strict=True):
            self.require_room(prompt, len(request.prompt), sampling.max_tokens, self.max_length)
        async for index, completions in self.complete(requests, sampling, tick):
            rollouts = [
                Rollout(
                    completion.text,
                    completion.tokens,
                    completion.logprobs,
                    "stop" if completion.stopped else "length",
                    self.offsets.token_char_ends(completion.tokens, completion.text) if ends else None,
                )
                for completion in completions
            ]
            yield index, RolloutGroup(prompts[index], rollouts, version)

    async def complete(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, tick: Tick = no_tick
    ) -> AsyncIterator[tuple[int, tuple[Completion, ...]]]:
        """Yield (index of the request, its responses) as requests complete; they must fit the model's positions."""
        self._require_awake()
        if not requests:
            return
        # Special tokens are no part of the text, so a stop text that is one of them is a stop token.
        special = {self.tokenizer.convert_ids_to_tokens(i): i for i in self.tokenizer.all_special_ids}
        named = [special[text] for text in sampling.stop if text in special]
        stop = StopRule(
            # An array, since transformers looks at each element of a list.
            lambda tokens: str(self.tokenizer.decode(tokens, skip_special_tokens=True)),
            sorted({*self.stop_ids, *sampling.stop_tokens, *named}),
            sampling,
        )
        rows = min(self._max_rows, sum(request.n for request in requests))
        state, self._state = self._decode_state(requests, sampling, rows), None  # another call has its own
        cache: Cache
        if self._in_blocks:
            blocks = self._blocks(rows, longest_sequence(requests, sampling))
            lengths = [len(request.prompt) for request in requests]
            cache = BlockCache(state, blocks, shares_prompts=shared_prompts_pay(lengths, sum(r.n for r in requests)))
        else:
            prompts = min(rows, sum(math.ceil(request.n / rows) for request in requests))
            cache = RowCache(state, prompts, max(len(request.prompt) for request in requests))
        generator = Generator(self._backbone, self._head(), stop, requests, sampling, state, cache, max_rows=rows)
        try:
            async for item in generator.complete(tick):
                yield item
        finally:
            if self._in_blocks and self._awake:
                self._state = state

    def _decode_state(self, requests: Sequence[GenerationRequest], sampling: Sampling, rows: int) -> DecodeState:
        """Return room for the rows of a call: on a GPU that of the call before, with its graphs, if it is enough."""
        rows = round_up(rows, ROWS_STEP[self.device.type])
        width = max(request.max_tokens(sampling) for request in requests)
        if not self._in_blocks:
            return DecodeState(rows, width, self.device)
        blocks = math.ceil(longest_sequence(requests, sampling) / cache_blocks.BLOCK_TOKENS)
        if self._state is not None:
            if self._state.holds(rows, width, blocks):
                return self._state
            rows, width, blocks = (max(pair) for pair in zip(self._state.size, (rows, width, blocks), strict=True))
        layers, heads, key_heads, _ = self._attention_shape
        return DecodeState(
            *(rows, width, self.device),
            blocks=blocks,
            tile_rows=tile_rows(heads // key_heads),
            places=CachePlaces(layers, self.dtype, self.device),
        )

    @property
    def _attention_shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, key-value heads, and the width of a head."""
        config = architectures.base_of(self.model).config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return config.num_hidden_layers, heads, getattr(config, "num_key_value_heads", None) or heads, width

    def _blocks(self, rows: int, length: int) -> int:
        """Return how many blocks of keys and values to have: enough for all rows, or what fits the GPU memory."""
        layers, _, heads, width = self._attention_shape
        block = 2 * layers * heads * width * self.dtype.itemsize * cache_blocks.BLOCK_TOKENS
        free = free_memory(self.device)
        one = math.ceil(length / cache_blocks.BLOCK_TOKENS)
        fitting = int(CACHE_SHARE * free / block) - 1  # one belongs to no row
        if fitting < one:
            raise UserError(
                f"models.{self.name}: the keys and values of {length} tokens take {one * block / 2**30:.1f} GiB, and"
                f" {free / 2**30:.1f} GiB are free on {self.device}: lower max_tokens, or free memory"
            )
        return 1 + min(rows * one, fitting)

    # ---- learning --------------------------------------------------------------------------------------------------

    def logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None) -> Tensor:
        """Return log-probabilities of the response tokens, float32 [B, T], zero where a row has none."""
        return self._measure(rows, temperature, "logprobs_bT", max_rows)

    def reference_logprobs(
        self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None
    ) -> Tensor:
        """Return the log-probabilities with the adapter switched off."""
        with self.model.disable_adapter() if self.settings.lora else nullcontext():
            return self.logprobs(rows, temperature=temperature, max_rows=max_rows)

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Return a value before each response token, float32 [B, T]."""
        return self._measure(rows, 1.0, "values_bT")

    def learn_with(self, optimizer: OptimizerSettings) -> None:
        """Create a new optimizer."""
        self.stop_learning()
        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        with current(self.device):
            self._learner = Learner(trainable, optimizer)

    def stop_learning(self) -> None:
        """Release the optimizer and its memory."""
        if self._learner is not None:
            self._learner.close()
        self._learner = None

    def micro_batches(self, rows: Sequence[Row], *, max_rows: int | None = None) -> list[list[int]]:
        """Return the indices of the rows of each forward pass."""
        return micro_batches(rows, self._token_budget, max_rows)

    def update(
        self,
        rows: Sequence[Row],
        loss: Loss,
        *,
        lr: float,
        temperature: float = 1.0,
        max_rows: int | None = None,
        entropy: bool = True,
        meter: Meter | None = None,
        count: Callable[[int], None] = lambda rows: None,
    ) -> OptimizerStep:
        """Take one optimizer step on the loss over all rows: the gradients of the micro-batches add up."""
        if self._learner is None:
            raise RuntimeError("update was called before learn_with")
        with current(self.device):
            try:
                with checks_postponed():
                    for batch, outputs in self._forward(rows, temperature, max_rows, entropy=entropy):
                        with attention_plan(batch.plan):  # for the attention that gradient checkpointing repeats
                            loss(outputs).backward()  # type: ignore[no-untyped-call]
                        count(len(outputs.rows))
            except BaseException:
                self._learner.zero_grad()
                raise
            self._digest, self._offloaded = "", False
            return self._learner.step(lr)

    @property
    def is_finite(self) -> bool:
        """Whether every trainable weight is finite."""
        return bool(get_total_norm([p.data for p in self.model.parameters() if p.requires_grad]).isfinite())

    @property
    def adapter_is_fresh(self) -> bool:
        """Whether the adapter changes nothing yet, so that the model without it is the model as it is."""
        return architectures.adapter_is_fresh(self.model)

    @torch.no_grad()
    def _measure(self, rows: Sequence[Row], temperature: float, output: str, max_rows: int | None = None) -> Tensor:
        result_BT = torch.zeros(len(rows), _width(rows), device=self.device)
        with current(self.device):
            for _, outputs in self._forward(rows, temperature, max_rows, entropy=False):
                result_BT[outputs.rows] = getattr(outputs, output).float()
        return result_BT

    def _forward(
        self, rows: Sequence[Row], temperature: float, max_rows: int | None, *, entropy: bool
    ) -> Iterator[tuple[PackedBatch, Outputs]]:
        """Yield the outputs of each micro-batch."""
        self._require_awake()
        for chosen in self.micro_batches(rows, max_rows=max_rows):
            batch = pack(rows, chosen, _width(rows), self.device)
            layers = self._recomputed_layers(batch, [rows[i] for i in chosen])
            with attention_plan(batch.plan), recompute_layers(layers, offload=self.settings.recompute == "offload"):
                hidden_ND = self._backbone(batch.tokens_N, batch.plan.positions_N)
            yield batch, self._outputs(batch, hidden_ND[batch.predicts_M], temperature, entropy=entropy)

    def _recomputed_layers(self, batch: PackedBatch, rows: Sequence[Row]) -> int:
        """Return how many layers a pass recomputes: none, all, or as many as the free memory needs."""
        if not torch.is_grad_enabled() or self._shape is None:
            return ALL_LAYERS if self.settings.recomputes_all else 0
        missing = 0 if self._learner is None else self._learner.missing_gradients()
        tokens = len(batch.tokens_N)
        return recomputed_layers(
            self._shape,
            self.dtype.itemsize,
            RECOMPUTE_SHARE * (free_memory(self.device) - 4 * missing),
            tokens=tokens,
            responses=len(batch.targets_M),
            spread=sum(len(row.prompt) + len(row.response) for row in rows) / tokens,
        )

    def _outputs(self, batch: PackedBatch, hidden_MD: Tensor, temperature: float, *, entropy: bool) -> Outputs:
        logprobs_M = entropy_M = values_M = hidden_MD.new_zeros(len(hidden_MD), dtype=torch.float32)
        if self.settings.head == "scalar":
            # In float32, as servers do: of two bfloat16 numbers near 5, a difference below 0.03 would be lost.
            values_M = linear(hidden_MD.float(), self.model.score.weight.float())[:, 0]
        else:
            logprobs_M, entropy_M = self._head().token_logprobs(
                hidden_MD, batch.targets_M, temperature=temperature, entropy=entropy
            )
        return Outputs(batch.rows, batch.mask_bT, *(batch.padded(x) for x in (logprobs_M, entropy_M, values_M)))

    def _backbone(self, tokens_N: Tensor, positions_N: Tensor) -> Tensor:
        if self._decoder is not None:
            return self._decoder.forward(tokens_N, positions_N)
        backbone = architectures.base_of(self.model).base_model
        hidden: Tensor = backbone(
            input_ids=tokens_N[None], position_ids=positions_N[None], use_cache=False
        ).last_hidden_state
        return hidden[0]

    def _head(self) -> Head:
        return architectures.head_of(architectures.base_of(self.model))

    # ---- memory ----------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Offload weights and optimizer to host memory; weights that have not changed are not copied again."""
        if self.device.type == "cuda" and self._awake:
            self._state = None  # its graphs hold the addresses of the weights
            if self._decoder is not None:
                self._decoder.release()
            with current(self.device):
                self._offload.to_host(self._tensors(), unchanged=self._learner is None and self._offloaded)
                torch.cuda.empty_cache()
            self._offloaded = True
        self._awake = False

    def wake(self) -> None:
        """Move them back to the device, bit for bit."""
        if self.device.type == "cuda" and not self._awake:
            with current(self.device):
                self._offload.to_device(self._tensors(), self.device)
        self._awake = True

    def _tensors(self) -> list[Tensor]:
        learner = [] if self._learner is None else self._learner.tensors()
        return [*self.model.parameters(), *self.model.buffers(), *learner]

    def _require_awake(self) -> None:
        if not self._awake:
            raise RuntimeError(f"{self.name} is offloaded: call wake() first")

    # ---- files -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a checkpoint: the model as a Hugging Face folder, and the optimizer state."""
        save_folder(self.model, self.tokenizer, folder)
        if self._learner is not None:
            write_tensors(self._learner.state(), folder / LEARNER_FILE)

    def load(self, folder: Path) -> None:
        """Load the weights that `save` wrote."""
        restore_weights(self.model, folder, adapter=self.settings.lora is not None)
        self._digest, self._offloaded = "", False

    def load_learner(self, folder: Path) -> None:
        """Load the optimizer state that `save` wrote; the weights have been loaded before."""
        assert self._learner is not None
        self._learner.load(read_tensors(folder / LEARNER_FILE))

    def publish(self, folder: Path) -> None:
        """Write the model for use elsewhere: an adapter is merged into the weights, and written to `adapter/` too."""
        if self.settings.lora is None:
            save_folder(self.model, self.tokenizer, folder)
            return
        save_folder(architectures.merge_adapter(self.model), self.tokenizer, folder)
        save_folder(self.model, self.tokenizer, folder / "adapter")

    def digest(self, *, adapter: bool = True) -> str:
        """Return a hash of weights, tokenizer, chat template and precision; that of its adapter comes after a `+`."""
        if not self._digest:
            facts = json.dumps([str(self.dtype), self.settings.template, self.tokenizer.chat_template], sort_keys=True)
            vocabulary = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
            base = hashlib.blake2b(f"{facts}{vocabulary}".encode(), digest_size=16)
            lora = hashlib.blake2b(str(getattr(self.settings.lora, "alpha", None)).encode(), digest_size=16)
            for name, found in sorted(hash_tensors(architectures.base_of(self.model).state_dict()).items()):
                digest = lora if ".lora_" in name or ".modules_to_save." in name else base
                name = name.replace(".base_layer.", ".").replace(".original_module.", ".")  # noqa: PLW2901 as without
                digest.update(f"{name} {found}".encode())
            self._digest = base.hexdigest() + (f"+{lora.hexdigest()}" if self.settings.lora else "")
        return self._digest if adapter else self._digest.partition("+")[0]


def _width(rows: Sequence[Row]) -> int:
    return max((len(row.response) for row in rows), default=0)
