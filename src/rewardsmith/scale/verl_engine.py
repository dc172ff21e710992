"""A model on a cluster as an engine: verl's workers measure and learn, its rollout servers write."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from rewardsmith.engines.embedded import architectures
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.loading import is_tiny, stop_ids
from rewardsmith.engines.embedded.model_files import ModelFolder, quiet
from rewardsmith.engines.embedded.model_text import ModelText
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Loss, Meter, OptimizerStep, Row, Sampling, Tick, no_tick
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.scale.cluster import Cluster, ModelWorkers
from rewardsmith.scale.workers import pack_rows
from rewardsmith.trainers.trainer import derive
from rewardsmith.types import Prompt, Rollout, RolloutGroup


class VerlEngine(ModelText):
    """One model on a cluster; see `rewardsmith.engines.protocol.Engine`."""

    def __init__(
        self,
        cluster: Cluster,
        workers: ModelWorkers,
        tokenizer: Any,
        config: Any,
        stop_ids: Sequence[int],
        settings: ModelSettings,
        path: Path,
        *,
        name: str,
    ) -> None:
        super().__init__(tokenizer, settings, name)
        self.device = torch.device("cpu")  # of the tensors that it takes and returns
        self.dtype = torch.float32 if cluster.scale.device == "cpu" else torch.bfloat16
        self.samples_as_it_learns = self.dtype == torch.float32  # a server samples, with kernels of its own
        self.stop_ids = tuple(sorted({*stop_ids, self._end}))
        self._cluster, self._workers, self._config, self._path = cluster, workers, config, path
        self._version = 0  # counts the updates
        self._held: int | None = None  # the version that writes while others are learned
        self._size = len(workers.group.workers) // cluster.scale.sequence_parallel  # ranks that have rows of their own

    @property
    def max_length(self) -> int:
        """The longest sequence that the model can read."""
        return architectures.max_length(self._config)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @property
    def writes_apart(self) -> bool:
        """Whether the rollout servers have GPUs of their own."""
        return self._cluster.scale.rollout.gpus > 0

    async def hold_writer(self) -> None:
        """Give the servers the present weights, and no others until `release_writer`."""
        if self.writes_apart:
            await asyncio.to_thread(self._workers.client, self._version)
            self._held = self._version

    def release_writer(self) -> None:
        """Give the servers the weights of the time of a call again."""
        self._held = None

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
        """Yield (index of the prompt, its n rollouts) as groups complete, in any order."""
        client = await asyncio.to_thread(self._workers.client, self._version if self._held is None else self._held)
        encoded = [self.encode(prompt) for prompt in prompts]
        for prompt, tokens in zip(prompts, encoded, strict=True):
            self.require_room(prompt, len(tokens), sampling.max_tokens, self.max_length)
        done = tokens_done = 0

        async def write(index: int, i: int) -> Rollout:
            nonlocal done, tokens_done
            rollout = await self._answer(client, encoded[index], sampling, (seeds[index], i), ends)
            done, tokens_done = done + 1, tokens_done + len(rollout.tokens)
            return rollout

        async def group(index: int) -> tuple[int, RolloutGroup]:
            rollouts = await asyncio.gather(*(write(index, i) for i in range(n)))
            return index, RolloutGroup(prompts[index], rollouts, version)

        tasks = [asyncio.create_task(group(index)) for index in range(len(prompts))]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
                tick(done, tokens_done)
        finally:
            for one in tasks:
                one.cancel()

    async def _answer(self, client: Any, prompt: Any, sampling: Sampling, draw: tuple[int, int], ends: bool) -> Rollout:
        """Return one answer; it depends on the prompt and on `draw`, apart from rounding."""
        seed = derive(*draw) % 2**31
        parameters = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "max_tokens": sampling.max_tokens,
            "min_tokens": sampling.min_tokens,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted({*self.stop_ids, *sampling.stop_tokens}),
            "seed": seed,
            "logprobs": True,
        }
        if self._cluster.scale.device == "cpu":  # our own server, which draws as the embedded engine does
            parameters = {"sampling": sampling.model_dump_json(), "draw": draw}
        output = await client.generate(f"{self.name}-{seed}", prompt_ids=prompt.tolist(), sampling_params=parameters)
        if not output.token_ids or output.log_probs is None:  # what was aborted is no answer
            raise UserError(
                f"models.{self.name}: a rollout server gave no answer ({output.stop_reason}): see Ray's logs"
            )
        tokens = np.asarray(output.token_ids, np.int32)
        text = str(self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True))
        cut = min([text.find(stop) for stop in sampling.stop if stop in text], default=len(text))
        ended = {*self.stop_ids, *sampling.stop_tokens}
        stopped = cut < len(text) or (len(tokens) > 0 and int(tokens[-1]) in ended)
        text = text[:cut]
        char_ends = self.offsets.token_char_ends(tokens, text) if ends else None
        logprobs = np.asarray(output.log_probs, np.float32)
        return Rollout(text, tokens, logprobs, "stop" if stopped else "length", char_ends)

    # ---- measuring and learning ------------------------------------------------------------------------------------

    def _pack(self, rows: Sequence[Row], **options: Any) -> Any:
        """Return the rows for the workers, filled up so that every rank gets as many."""
        filler = -len(rows) % self._size
        return pack_rows([*rows, *[rows[0]] * filler], [*range(len(rows)), *[-1] * filler], **options)

    def logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None) -> Tensor:
        """Return log-probabilities of the response tokens, float32 [B, T]."""
        return self._measure(rows, temperature=temperature)

    def reference_logprobs(
        self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None
    ) -> Tensor:
        """Return the log-probabilities with the adapter switched off."""
        return self._measure(rows, temperature=temperature, no_lora_adapter=self.settings.lora is not None)

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Return a value before each response token, float32 [B, T]."""
        return self._measure(rows, temperature=1.0)

    def _measure(self, rows: Sequence[Row], **options: Any) -> Tensor:
        group = self._workers.learn()
        output = group.measure(self._pack(rows, compute_loss=False, calculate_entropy=False, **options))
        return torch.nested.to_padded_tensor(output["measured"], 0.0)[: len(rows)]

    def learn_with(self, optimizer: OptimizerSettings) -> None:
        """Create a new optimizer."""
        self._workers.learn().learn_with(optimizer)

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
        """Take one optimizer step on the loss over all rows; gradients of ranks and micro-batches add up."""
        group, buffer, gathered = self._workers.learn(), io.BytesIO(), Meter()
        if meter is not None:  # each rank starts with an empty one
            gathered.merge(meter)
            meter.reset()
        torch.save((loss, meter), buffer, pickle_module=cloudpickle)
        group.set_loss(buffer.getvalue())
        data = self._pack(rows, temperature=temperature, calculate_entropy=entropy, lr=lr)
        norm = float(group.update(data)["grad_norm"][0])
        for one in (gathered, *group.take_meter()):
            if meter is not None and one is not None:
                meter.merge(one)
        count(len(rows))
        self._version += 1
        return OptimizerStep(norm, skipped=not norm < float("inf"))

    def micro_batches(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return each row on its own: which ones share a pass is up to the workers."""
        return [[i] for i in range(len(rows))]

    def stop_learning(self) -> None:
        """Do nothing: the next optimizer takes the place of this one."""

    @property
    def is_finite(self) -> bool:
        """Whether every trainable weight is finite."""
        return all(self._workers.learn().is_finite())

    @property
    def adapter_is_fresh(self) -> bool:
        """Whether the adapter changes nothing yet."""
        return self._version == 0 and self.settings.lora is not None and self.settings.lora.init is None

    # ---- copies, memory, files -------------------------------------------------------------------------------------

    def copy(self, settings: ModelSettings | None = None, *, name: str) -> VerlEngine:
        """Return an engine with the same weights and no optimizer; without settings of its own it is frozen."""
        frozen = settings is None
        settings = settings or self.settings.model_copy(update={"lora": None, "offload": False})
        folder = self._cluster.folder / name
        self.publish(folder)
        writes = not frozen and settings.head == "language"
        return open_engine(self._cluster, settings, folder, name=name, writes=writes, frozen=frozen)

    def sleep(self) -> None:
        """Give back the GPU memory of the servers; what learns is in host memory where `scale.offload` says so."""
        self._workers.learn()

    def wake(self) -> None:
        """Do nothing: the workers and servers load what they need."""

    def digest(self, *, adapter: bool = True) -> str:
        """Return a name of the weights: the start, and how often they were updated."""
        return f"{self._path}@{self._version}"

    def save(self, folder: Path) -> None:
        """Write a checkpoint: the shards of weights and optimizer, and the tokenizer."""
        self._workers.learn().save(str(folder.absolute()))

    def load(self, folder: Path) -> None:
        """Load the weights that `save` wrote."""
        self._workers.learn().load(str(folder.absolute()), "model")
        self._version += 1

    def load_learner(self, folder: Path) -> None:
        """Load the optimizer state that `save` wrote."""
        self._workers.learn().load(str(folder.absolute()), "optimizer")

    def publish(self, folder: Path) -> None:
        """Write the model for use elsewhere, as a Hugging Face folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._workers.learn().publish(str(folder.absolute()))
        self.tokenizer.save_pretrained(folder)


def open_engine(
    cluster: Cluster, settings: ModelSettings, folder: Path, *, name: str, writes: bool, frozen: bool = False
) -> VerlEngine:
    """Start a model on the cluster, from a Hugging Face folder that every node can read."""
    files = ModelFolder(str(folder))
    with quiet():
        config = files.config(settings.head)
        tokenizer = files.tokenizer(config)
        generation = GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else None
    stops = stop_ids(config, generation, tokenizer)
    workers = cluster.workers(settings, name, folder, writes=writes, frozen=frozen)
    return VerlEngine(cluster, workers, tokenizer, config, stops, settings, folder, name=name)


def start_folder(settings: ModelSettings, folder: Path, *, seed: int, name: str) -> Path:
    """Return the folder that a model starts from; a built-in tiny model is written to `folder` first."""
    assert settings.init is not None
    if not is_tiny(settings.init):
        return ModelFolder(settings.init).path
    EmbeddedEngine.open(settings.model_copy(update={"device": "cpu", "lora": None}), seed=seed, name=name).publish(
        folder
    )
    return folder
