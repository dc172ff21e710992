"""The embedded engine: any Hugging Face causal language model in this process, on a CPU or one GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear
from torch.nn.utils import get_total_norm

from rewardsmith.engines.embedded import adapters, attention, support
from rewardsmith.engines.embedded.chat import end_of_turn, for_chat
from rewardsmith.engines.embedded.generate import LENGTH_STEP, Answer, Generator, Request
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.learner import Learner
from rewardsmith.engines.embedded.loading import Loaded, load, place, require_chat_template, save_folder
from rewardsmith.engines.embedded.packing import Pack, micro_batches, pack
from rewardsmith.engines.embedded.pieces import Pieces
from rewardsmith.engines.embedded.quiet import quiet
from rewardsmith.engines.embedded.rendering import rendered
from rewardsmith.engines.embedded.resting import Rest
from rewardsmith.engines.embedded.weights import read_tensors, restore_weights, write_tensors
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Loss, Outputs, Row, Sampling, Step, Tick, no_tick
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.types import Prompt, Rollout, RolloutGroup

ROWS = {"cpu": 256, "cuda": 512}
TOKENS_PER_PASS = {"cpu": 8_192, "cuda": 16_384}
LEARNER_FILE = "learner.safetensors"


class EmbeddedEngine:
    """One model in this process; see `rewardsmith.engines.protocol.Engine` for what it can do.

    Args:
        loaded: the model, its tokenizer and where it runs.
        settings: of the model.
        name: of the model in messages.
    """

    def __init__(self, loaded: Loaded, settings: ModelSettings, *, name: str = "model") -> None:
        self.name = name
        self.settings = settings
        self.tokenizer = for_chat(loaded.tokenizer, settings, name)
        self._end = end_of_turn(self.tokenizer, settings.template)
        self._pieces = Pieces(self.tokenizer)
        self.device = loaded.device
        self.dtype = loaded.dtype
        self.stop_ids = tuple(sorted({*loaded.stop_ids, self._end}))
        self.model: Any = loaded.model
        if self.stop_ids != loaded.stop_ids and getattr(self.model, "generation_config", None) is not None:
            self.model.generation_config.eos_token_id = list(self.stop_ids)  # servers stop where we stop
        with quiet():
            support.check(self.model, name)
        support.fuse_norms(self.model)
        if settings.head == "scalar":
            support.settle_reading(self.model, self.tokenizer, settings.template)
        if settings.recompute:
            # Without dropout there is no random state to keep, and asking for it would break the recording of a graph.
            self.model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        if settings.lora is not None:
            self.model = adapters.attach(self.model, settings.lora, name)
        self._learner: Learner | None = None
        self._digest = ""
        self._rest = Rest()
        self._rested = False  # whether host memory has the weights as they are
        self._awake = True
        self._budget = settings.tokens_per_pass or TOKENS_PER_PASS[self.device.type]
        self._rows = settings.rows or ROWS[self.device.type]

    @classmethod
    def open(cls, settings: ModelSettings, *, seed: int = 0, name: str = "model") -> EmbeddedEngine:
        """Load a model, or build it on the spot."""
        assert settings.init is not None
        loaded = load(
            settings.init,
            head=settings.head,
            device=settings.device,
            dtype=settings.dtype,
            seed=seed,
            attention=attention.NAME,
        )
        return cls(loaded, settings, name=name)

    def copy(self, settings: ModelSettings | None = None, *, name: str) -> EmbeddedEngine:
        """Return an engine with the same weights and no optimizer; `settings` may give it another head."""
        settings = settings or self.settings.model_copy(update={"lora": None, "offload": False})
        device, dtype = place(
            self.device.type if settings.device == "auto" else settings.device,
            str(self.dtype).removeprefix("torch.") if settings.dtype == "auto" else settings.dtype,
        )
        model = adapters.merged(self.model)
        if settings.head != self.settings.head:
            model = support.with_head(model, settings.head)
        model.to(device)
        for parameter in model.parameters():  # not the buffers: rotary frequencies need all their digits
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad_(True)  # an adapter had frozen them
        return EmbeddedEngine(Loaded(model, self.tokenizer, device, dtype, self.stop_ids), settings, name=name)

    # ---- text to tokens --------------------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> NDArray[np.int32]:
        """Return the prompt as the model reads it, its chat template applied, up to where the answer begins."""
        require_chat_template(self.tokenizer, self.settings.init or self.name)
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        arguments: dict[str, Any] = dict(self.settings.template)
        try:
            text = rendered(self.tokenizer, messages, prompt=True, **arguments)
        except Exception as error:  # noqa: BLE001 a template is a program: it may refuse in any way
            raise UserError(f"the chat template of {self.name} cannot render prompt {prompt.id!r}: {error}") from None
        return self.encode_text(text)

    def encode_response(self, text: str) -> NDArray[np.int32]:
        """Return an answer as the model would write it, with the token that ends it under its chat template."""
        return np.append(self.encode_text(text), np.int32(self._end))

    def encode_text(self, text: str) -> NDArray[np.int32]:
        """Return text as it is, no chat template applied."""
        # Not verbose: who asks about a prompt that is too long tells it in other words.
        return np.array(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int32)

    def ends(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Return how many characters of `text`, which the tokens say, there are up to the end of each token, [T]."""
        return self._pieces.ends(tokens, text)

    # ---- generating ------------------------------------------------------------------------------------------------

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
        """Yield (number of the prompt, its n rollouts) as groups are complete; other coroutines run in between.

        Rollout i of a prompt depends on the prompt, its seed and i alone, but for rounding, whatever else is asked
        at the same time. With `ends`, it is also said where its tokens lie in its text (`Rollout.ends`).
        """
        requests = [Request(self.encode(p), n, seed) for p, seed in zip(prompts, seeds, strict=True)]
        for prompt, request in zip(prompts, requests, strict=True):
            self._require_room(prompt, len(request.prompt), sampling.max_tokens)
        async for number, answers in self.answer(requests, sampling, tick):
            rollouts = [
                Rollout(
                    answer.text,
                    answer.tokens,
                    answer.logprobs,
                    "stop" if answer.stopped else "length",
                    self.ends(answer.tokens, answer.text) if ends else None,
                )
                for answer in answers
            ]
            yield number, RolloutGroup(prompts[number], rollouts, version)

    async def answer(
        self, requests: Sequence[Request], sampling: Sampling, tick: Tick = no_tick
    ) -> AsyncIterator[tuple[int, tuple[Answer, ...]]]:
        """Yield (number of the request, its answers) as requests are complete; they fit the model's positions."""
        self._require_awake()
        self._require_head("language")
        generator = Generator(
            self._backbone,
            self._head(),
            lambda tokens: str(self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)),
            self._stop_ids(sampling),
            self.device,
            rows=self._room(max((len(r.prompt) + r.most(sampling) for r in requests), default=1)),
        )
        async for finished in generator.answer(requests, sampling, tick):
            yield finished

    def _stop_ids(self, sampling: Sampling) -> list[int]:
        """Return the tokens that end an answer: the model's own, and what the sampling adds.

        Special tokens are no part of the text, so a stop text that is one of them is a stop token.
        """
        special = {self.tokenizer.convert_ids_to_tokens(i): i for i in self.tokenizer.all_special_ids}
        named = [special[text] for text in sampling.stop if text in special]
        return sorted({*self.stop_ids, *sampling.stop_tokens, *named})

    def _room(self, length: int) -> int:
        """Return how many rows of this length to write at a time: what is asked for, or what fits the memory."""
        if self.device.type != "cuda" or self.settings.rows is not None:
            return self._rows
        config = adapters.inner(self.model).config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        row = 2 * config.num_hidden_layers * heads * width * self.dtype.itemsize * (length + LENGTH_STEP["cuda"])
        free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return max(1, min(self._rows, int(0.7 * free / row)))

    def _require_room(self, prompt: Prompt, length: int, max_tokens: int) -> None:
        if length == 0:
            raise UserError(f"prompt {prompt.id!r} has no tokens: there is nothing to answer")
        if length + max_tokens > self.max_length:
            raise UserError(
                f"prompt {prompt.id!r} has {length} tokens and max_tokens is {max_tokens}: together more than the"
                f" {self.max_length} positions of {self.name}. Lower max_tokens, or set max_prompt_tokens"
            )

    @property
    def max_length(self) -> int:
        """The longest sequence that the model can read."""
        return support.max_length(self.model.config)

    # ---- learning --------------------------------------------------------------------------------------------------

    def logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0, most: int | None = None) -> Tensor:
        """Return log-probabilities of the answer tokens, float32 [B, T], zero where a row has none.

        `most` limits the rows that go through the model at a time, below what the token budget allows.
        """
        self._require_head("language")
        return self._measure(rows, temperature, "logprobs_bT", most)

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Return a value before each answer token, float32 [B, T]."""
        self._require_head("scalar")
        return self._measure(rows, 1.0, "values_bT")

    def reference_logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0, most: int | None = None) -> Tensor:
        """Return the log-probabilities under the model with its adapter switched off."""
        with self.model.disable_adapter() if self.settings.lora else nullcontext():
            return self.logprobs(rows, temperature=temperature, most=most)

    def learn_with(self, optimizer: OptimizerSettings) -> None:
        """Begin to learn: make a fresh optimizer."""
        self.stop_learning()
        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._learner = Learner(trainable, optimizer)

    def stop_learning(self) -> None:
        """Let go of the optimizer and its memory."""
        if self._learner is not None:
            self._learner.close()
        self._learner = None

    def parts(self, rows: Sequence[Row], *, most: int | None = None) -> list[list[int]]:
        """Return which rows go through the model together: those of each pass, by their numbers."""
        return micro_batches(rows, self._budget, most)

    def update(
        self,
        rows: Sequence[Row],
        loss: Loss,
        *,
        lr: float,
        temperature: float = 1.0,
        most: int | None = None,
        entropy: bool = True,
    ) -> Step:
        """Take one optimizer step down the gradient of the loss over all rows.

        The rows are split under the token budget, and so that at most `most` go through the model at a time; `loss` is
        called for each part, and the gradients add up. A loss that reads no entropy need not have it computed.
        """
        if self._learner is None:
            raise RuntimeError("update was called before learn_with")
        try:
            for batch, outputs in self._passes(rows, temperature, most, entropy=entropy):
                with attention.planned(batch.plan):  # for the attention that gradient checkpointing repeats
                    loss(outputs).backward()  # type: ignore[no-untyped-call]
        except BaseException:
            self._learner.forget()
            raise
        self._digest, self._rested = "", False
        return self._learner.step(lr)

    @torch.no_grad()
    def _measure(self, rows: Sequence[Row], temperature: float, which: str, most: int | None = None) -> Tensor:
        width = max((len(row.response) for row in rows), default=0)
        result_BT = torch.zeros(len(rows), width, device=self.device)
        for _, outputs in self._passes(rows, temperature, most, entropy=False):
            result_BT[outputs.rows] = getattr(outputs, which).float()
        return result_BT

    def _passes(
        self, rows: Sequence[Row], temperature: float, most: int | None = None, *, entropy: bool = True
    ) -> Iterator[tuple[Pack, Outputs]]:
        """Yield the outputs for parts of the rows."""
        self._require_awake()
        width = max((len(row.response) for row in rows), default=0)
        for chosen in self.parts(rows, most=most):
            batch = pack(rows, chosen, width, self.device)
            with attention.planned(batch.plan):
                hidden_MD = self._backbone(batch.tokens_1N, batch.positions_1N)[0, batch.at_M]
            yield batch, self._outputs(batch, hidden_MD, temperature, entropy=entropy)

    def _outputs(self, batch: Pack, hidden_MD: Tensor, temperature: float, *, entropy: bool) -> Outputs:
        nothing = hidden_MD.new_zeros(len(hidden_MD), dtype=torch.float32)
        logprobs_M = entropy_M = values_M = nothing
        if self.settings.head == "scalar":
            # In float32, as servers do: of two bfloat16 numbers near 5, a difference below 0.03 would be lost.
            values_M = linear(hidden_MD.float(), self.model.score.weight.float())[:, 0]
        else:
            said = self._head().token_logprobs(hidden_MD, batch.targets_M, temperature=temperature, entropy=entropy)
            logprobs_M, entropy_M = said
        return Outputs(batch.rows, batch.mask_bT, *(batch.padded(x) for x in (logprobs_M, entropy_M, values_M)))

    def _backbone(self, tokens_bt: Tensor, positions_bt: Tensor) -> Tensor:
        backbone = adapters.inner(self.model).base_model
        hidden: Tensor = backbone(input_ids=tokens_bt, position_ids=positions_bt, use_cache=False).last_hidden_state
        return hidden

    def _head(self) -> Head:
        return support.head_of(adapters.inner(self.model))

    # ---- keeping ---------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Move weights and optimizer to host memory; a model that has not learned since need not be copied again."""
        if self.device.type == "cuda" and self._awake:
            self._rest.down(self._tensors(), known=self._learner is None and self._rested)
            self._rested = True
            torch.cuda.empty_cache()
        self._awake = False

    def wake(self) -> None:
        """Move them back, exactly as they were."""
        if self.device.type == "cuda" and not self._awake:
            self._rest.up(self._tensors(), self.device)
        self._awake = True

    def _tensors(self) -> list[Tensor]:
        learned = [] if self._learner is None else self._learner.tensors()
        return [*self.model.parameters(), *self.model.buffers(), *learned]

    def _require_awake(self) -> None:
        if not self._awake:
            raise RuntimeError(f"{self.name} is asleep: call wake() first")

    def _require_head(self, head: str) -> None:
        if self.settings.head != head:
            raise RuntimeError(f"{self.name} has a {self.settings.head} head: this needs a {head} head")

    def save(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, and beside it what going on learning needs."""
        save_folder(self.model, self.tokenizer, folder)
        if self._learner is not None:
            write_tensors(self._learner.state(), folder / LEARNER_FILE)

    def publish(self, folder: Path) -> None:
        """Write the model for use elsewhere: an adapter is added into the weights, and lies in `adapter/` too."""
        if self.settings.lora is None:
            save_folder(self.model, self.tokenizer, folder)
            return
        save_folder(adapters.merged(self.model), self.tokenizer, folder)
        save_folder(self.model, self.tokenizer, folder / "adapter")

    @property
    def is_finite(self) -> bool:
        """Whether every weight that learns is a number."""
        return bool(get_total_norm([p.data for p in self.model.parameters() if p.requires_grad]).isfinite())

    @property
    def adapter_is_fresh(self) -> bool:
        """Whether the adapter changes nothing yet, so that the model without it is the model as it is."""
        return adapters.is_fresh(self.model)

    def load(self, folder: Path) -> None:
        """Take over the weights that `save` wrote."""
        restore_weights(self.model, folder, adapter=self.settings.lora is not None)
        self._digest, self._rested = "", False

    def digest(self, *, adapter: bool = True) -> str:
        """Return a hash of weights, tokenizer, chat template and precision; that of its `adapter` comes after a `+`."""
        if not self._digest:
            told = json.dumps([str(self.dtype), self.settings.template, self.tokenizer.chat_template], sort_keys=True)
            vocabulary = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
            heads = (f"{told}{vocabulary}", str(getattr(self.settings.lora, "alpha", None)))
            below, above = (hashlib.blake2b(head.encode(), digest_size=16) for head in heads)
            for name, tensor in sorted(adapters.inner(self.model).state_dict().items()):
                found = above if ".lora_" in name or ".modules_to_save." in name else below
                plain = name.replace(".base_layer.", ".").replace(".original_module.", ".")  # as without an adapter
                found.update(f"{plain} {tuple(tensor.shape)}".encode())
                found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            self._digest = below.hexdigest() + (f"+{above.hexdigest()}" if self.settings.lora else "")
        return self._digest if adapter else self._digest.partition("+")[0]

    def load_learner(self, folder: Path) -> None:
        """Take over the optimizer's state that `save` wrote; the weights have been loaded before."""
        assert self._learner is not None
        self._learner.load(read_tensors(folder / LEARNER_FILE))
