"""Ray, the GPUs of a run on it, and the workers of each model."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.single_controller.ray.base import RayResourcePool
from verl.trainer.config import CheckpointConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.rollout.llm_server import LLMServerManager

from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.scale.verl_config import model_config
from rewardsmith.scale.workers import SCALAR, PolicyWorker, RowWorker

GROUPS_PER_GPU = 6  # worker groups that may share a GPU: policy, critic, reference, process reward model, ...


def environment(scale: ScaleSettings) -> dict[str, str]:
    """Return the variables that every process of the run needs."""
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))  # a user's own losses are there
    shared = {"TOKENIZERS_PARALLELISM": "false", "RAY_DEDUP_LOGS": "1", "PYTHONPATH": path}
    if scale.device == "cpu":
        shared |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rewardsmith.scale.cpu", "OMP_NUM_THREADS": "1"}
    return shared


class Cluster:
    """The machines of a run."""

    def __init__(self, scale: ScaleSettings, folder: Path) -> None:
        self.scale = scale
        self.folder = folder  # for the models that start from others; every node can read it
        variables = environment(scale)
        os.environ.update(variables)
        processes = scale.nodes * scale.gpus_per_node
        local: dict[str, Any] = {"include_dashboard": False}
        if scale.device == "cpu":
            local |= {"num_gpus": processes, "num_cpus": 4 + processes * GROUPS_PER_GPU}
        ray.init(
            **({"address": scale.address} if scale.address else local),
            runtime_env={"env_vars": variables},
            logging_level="ERROR",
            log_to_driver=False,  # what the workers print stays in Ray's own logs; their errors come here
        )
        found, wanted = int(ray.cluster_resources().get("GPU", 0)), scale.nodes * scale.gpus_per_node
        if found < wanted:
            ray.shutdown()
            raise UserError(
                f"scale asks for {scale.nodes} x {scale.gpus_per_node} GPUs, and Ray has {found}: lower scale.nodes or"
                " scale.gpus_per_node, or set scale.address to a larger cluster"
            )
        self._pool = RayResourcePool(
            [scale.gpus_per_node] * scale.nodes, use_gpu=True, max_colocate_count=GROUPS_PER_GPU
        )

    def workers(self, settings: ModelSettings, name: str, folder: Path, *, writes: bool, frozen: bool) -> ModelWorkers:
        """Start the workers of a model; one that `writes` answers may start servers too."""
        verl = model_config(settings, name, folder, self.scale)
        OmegaConf.resolve(verl.config)
        options = {"device_name": self.scale.device, "name_prefix": name}
        table = verl.config.actor_rollout_ref
        if writes:
            start = RayClassWithInitArgs(ray.remote(PolicyWorker), config=table, role="actor_rollout")
            group = RayWorkerGroup(self._pool, start, **options)
            group.init_model()
            return ModelWorkers(group, verl.config)
        engine: Any = omega_conf_to_dataclass(table.actor)
        engine.engine.forward_only = frozen
        engine.engine.use_dynamic_bsz = True
        engine.engine.max_token_len_per_gpu = engine.engine.infer_max_token_len_per_gpu = (
            table.actor.ppo_max_token_len_per_gpu
        )
        config = TrainingWorkerConfig(
            model_type=SCALAR if settings.head == "scalar" else "language_model",
            model_config=omega_conf_to_dataclass(table.model),
            engine_config=engine.engine,
            optimizer_config=engine.optim,
            checkpoint_config=CheckpointConfig(),
        )
        group = RayWorkerGroup(self._pool, RayClassWithInitArgs(ray.remote(RowWorker), config=config), **options)
        group.reset()
        return ModelWorkers(group, None)

    def close(self) -> None:
        """End the Ray that this run started, or leave the one that it joined."""
        ray.shutdown()


class ModelWorkers:
    """The worker group of one model, and its servers once they are needed."""

    def __init__(self, group: RayWorkerGroup, config: Any) -> None:
        self.group = group
        self._config = config
        self._sync: CheckpointEngineManager | None = None
        self._awake = False
        self._version = -1  # of the weights that the servers have

    def client(self, version: int) -> Any:
        """Return a client of the servers, which have the weights of this version now."""
        if self._sync is None:
            with redirect_stdout(io.StringIO()):  # verl prints the addresses
                self._servers = LLMServerManager.create(config=self._config, worker_group=self.group)
            engine = omega_conf_to_dataclass(self._config.actor_rollout_ref.rollout.checkpoint_engine)
            engine.backend = "naive"
            self._sync = CheckpointEngineManager(engine, self.group, self._servers.get_replicas())
            self._sync.sleep_replicas()
        if not self._awake or version != self._version:
            self._sync.update_weights(version)
            self._awake, self._version = True, version
        return self._servers.get_client()

    def learn(self) -> RayWorkerGroup:
        """Return the workers, with the GPU memory of the servers given back to them."""
        if self._sync is not None and self._awake:
            self._sync.sleep_replicas()
            self._awake = False
        return self.group
