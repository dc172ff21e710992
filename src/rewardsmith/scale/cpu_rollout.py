"""What takes the place of vLLM and of verl's CUDA engines where there is no GPU: for tests and for trying a recipe."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.engine import EngineRegistry
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import GenerationRequest
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Sampling
from rewardsmith.scale.packed_engine import SCALAR, LanguageEngine, ScalarHeadEngine
from rewardsmith.scale.scale_settings import CPU_ROLLOUT as ROLLOUT


class CpuServer:
    """A rollout server: our own generation, behind the calls of verl's servers."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self._engine = EmbeddedEngine.open(ModelSettings(init=folder, device="cpu", dtype="float32"), name="rollout")
        self._waiting: list[tuple[GenerationRequest, Sampling, asyncio.Future[TokenOutput]]] = []
        self._task: asyncio.Task[None] | None = None
        self._version = 0

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """Answer one prompt; requests that wait are answered together."""
        sampling = Sampling.model_validate_json(sampling_params["sampling"])
        seed, number = sampling_params["draw"]
        request = GenerationRequest(np.asarray(prompt_ids, np.int32), 1, seed, first=number)
        future: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, sampling, future))
        if self._task is None:
            self._task = asyncio.create_task(self._answer())
        return await future

    async def _answer(self) -> None:
        await asyncio.sleep(0.02)  # the requests of a step come together
        while self._waiting:
            sampling = self._waiting[0][1]
            batch = [one for one in self._waiting if one[1] == sampling]
            self._waiting = [one for one in self._waiting if one[1] != sampling]
            try:
                async for index, (completion,) in self._engine.complete([request for request, _, _ in batch], sampling):
                    batch[index][2].set_result(
                        TokenOutput(
                            token_ids=completion.tokens.tolist(),
                            log_probs=completion.logprobs.tolist(),
                            stop_reason="completed" if completion.stopped else "length",
                            extra_fields={"global_steps": self._version},
                        )
                    )
            except Exception as error:  # noqa: BLE001 whoever waits must not wait for ever
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
        self._task = None

    async def load(self, weights: dict[str, Tensor], version: int) -> None:
        """Take the weights of the trainer."""
        own = self._engine.model.state_dict()
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self._version = version

    async def wake_up(self, **_: Any) -> None:
        """Do nothing: there is no memory to give back."""

    sleep = abort_all_requests = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = wake_up


class CpuReplica(RolloutReplica):
    """Starts a server."""

    async def launch_servers(self) -> None:
        """Start the server in a process of its own."""
        name = f"{ROLLOUT}_{self.replica_rank}"
        options = {"name": name, "max_concurrency": self.max_concurrency, "num_cpus": 0}
        self._server_handle = self.start_server(options)
        self._server_address = name
        self.servers = [self._server_handle]

    def start_server(self, options: dict[str, Any]) -> Any:
        """Return the handle of a server."""
        return ray.remote(CpuServer).options(**options).remote(self.model_config.path)


class CpuRollout(BaseRollout):
    """Sends the weights of a trainer to the server of its replica."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing."""

    async def release(self) -> None:
        """Do nothing."""

    def __init__(self, *args: Any, replica_rank: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank is None else replica_rank
        self.is_leader_rank = True

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **kwargs: Any) -> None:
        """Send all weights; gathering them takes every rank."""
        named = {name: tensor.detach().cpu() async for name, tensor in ensure_async_iterator(weights)}
        server = ray.get_actor(f"{ROLLOUT}_{self.replica_rank}")
        await server.load.remote(named, kwargs.get("global_steps") or 0)


@CheckpointEngineRegistry.register(ROLLOUT)
class StoreTransfer(CheckpointEngine):
    """Sends the weights of rank 0 to servers that share no process with a trainer, through a key-value store."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._store: TCPStore | None = None
        self._is_master = is_master
        self._transfers = 0

    def prepare(self) -> Any:
        """Return where the store is, on the master."""
        if not self._is_master:
            return None
        address = ray.util.get_node_ip_address()
        self._store = self._store or TCPStore(address, 0, is_master=True, wait_for_workers=False)
        return address, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return where the store is for every worker."""
        return {"at": metadata[:1] * actor_wg_world_size}, {"at": metadata[:1] * rollout_world_size}

    def init_process_group(self, at: tuple[str, int]) -> None:
        """Connect."""
        self._transfers += 1
        if self._store is None:
            self._store = TCPStore(*at, is_master=False, wait_for_workers=False)

    def finalize(self) -> None:
        """Free the weights that all have."""
        if self._is_master and self._store is not None:
            self._store.delete_key(f"weights {self._transfers}")

    async def send_weights(self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None) -> None:
        """Gather the weights, which takes every rank, and store them."""
        buffer = io.BytesIO()
        torch.save({name: tensor.detach().cpu() for name, tensor in weights}, buffer)
        if self._is_master and self._store is not None:
            self._store.set(f"weights {self._transfers}", buffer.getvalue())  # type: ignore[arg-type]

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """Yield the weights once they are there."""
        assert self._store is not None
        stored = await asyncio.to_thread(self._store.get, f"weights {self._transfers}")
        for item in torch.load(io.BytesIO(stored)).items():
            yield item


class _WithoutPinnedMemory:
    """A frozen model would be offloaded to page-locked memory, which needs an accelerator."""

    engine_config: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        frozen, self.engine_config.forward_only = self.engine_config.forward_only, False
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config.forward_only = frozen


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuLanguageEngine(_WithoutPinnedMemory, LanguageEngine):
    """verl's FSDP engine on a CPU."""


@EngineRegistry.register(model_type=SCALAR, backend="fsdp2", device="cpu")
class CpuScalarEngine(_WithoutPinnedMemory, ScalarHeadEngine):
    """The same with a scalar head."""


RolloutReplicaRegistry.register(ROLLOUT, lambda: CpuReplica)
base._ROLLOUT_REGISTRY[ROLLOUT, "async"] = f"{__name__}.CpuRollout"
