"""Ray, the GPUs of a run on it, and the workers of each model."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf
from ray.util import list_named_actors, remove_placement_group
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.trainer.config import CheckpointConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.rollout.llm_server import LLMServerManager

import rewardsmith.scale.cpu_rollout  # noqa: F401 it registers the servers of the CPU
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.scale.packed_engine import SCALAR
from rewardsmith.scale.placement import NO_SERVERS, ServerGpus
from rewardsmith.scale.ray_start import start_ray
from rewardsmith.scale.scale_settings import CPU_ROLLOUT, GROUPS_PER_GPU, ScaleSettings
from rewardsmith.scale.verl_config import model_config
from rewardsmith.scale.workers import PolicyWorker, RowWorker

STANDALONE = "rollout_standalone"  # how the names of verl's workers on the servers' own GPUs begin
STOP_TIMEOUT = 60.0  # seconds in which Ray must have ended a rollout server


class Cluster:
    """The machines of a run."""

    def __init__(self, scale: ScaleSettings, folder: Path, servers: ServerGpus = NO_SERVERS) -> None:
        self.scale = scale
        self.folder = folder  # for the models that start from others; every node can read it
        self.writer: ModelWorkers | None = None  # whose rollout servers run: verl names them alike for every model
        self._groups = 0
        self._pool = start_ray(scale, folder, servers)

    def workers(self, settings: ModelSettings, name: str, folder: Path, *, writes: bool, frozen: bool) -> ModelWorkers:
        """Start the workers of a model; one that `writes` answers may start servers too."""
        self._groups += 1
        if self._groups > GROUPS_PER_GPU:
            raise UserError(
                f"models.{name}: on a cluster a run has at most {GROUPS_PER_GPU} models, copies and references:"
                " split the recipe"
            )
        verl = model_config(settings, name, folder, self.scale)
        OmegaConf.resolve(verl.config)
        options = {"device_name": self.scale.device, "name_prefix": name}
        table = verl.config.actor_rollout_ref
        if writes:
            start = RayClassWithInitArgs(
                ray.remote(PolicyWorker), config=table, role="actor" if self.scale.rollout.gpus else "actor_rollout"
            )
            group = RayWorkerGroup(self._pool, start, **options)
            group.init_model()
            return ModelWorkers(group, verl.config, self)
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
        return ModelWorkers(group, None, self)

    def close(self) -> None:
        """End the Ray that this run started, or leave the one that it joined."""
        ray.shutdown()


class ModelWorkers:
    """The worker group of one model, and its servers once they are needed."""

    def __init__(self, group: RayWorkerGroup, config: Any, cluster: Cluster) -> None:
        self.group = group
        self._config, self._cluster = config, cluster
        self._sync: CheckpointEngineManager | None = None
        self._awake = False
        self._version = -1  # of the weights that the servers have

    def client(self, version: int) -> Any:
        """Return a client of the servers, which have the weights of this version now."""
        if self._sync is None:
            if self._cluster.writer is not None:
                self._cluster.writer.stop_servers()
            self._cluster.writer = self
            apart = self._cluster.scale.rollout.gpus > 0
            with redirect_stdout(io.StringIO()):  # verl prints the addresses
                self._servers = LLMServerManager.create(config=self._config, worker_group=None if apart else self.group)
            engine = omega_conf_to_dataclass(self._config.actor_rollout_ref.rollout.checkpoint_engine)
            self._sync = CheckpointEngineManager(engine, self.group, self._servers.get_replicas())
            if not apart:
                self._sync.sleep_replicas()
        if not self._awake or version != self._version:
            self._sync.update_weights(version)
            self._awake, self._version = True, version
        return self._servers.get_client()

    def stop_servers(self) -> None:
        """End the rollout servers, so that another model can have some."""
        replicas = self._servers.get_replicas()
        handles = [server for replica in replicas for server in replica.servers]
        if self._cluster.scale.rollout.gpus:
            handles += [worker for replica in replicas for worker in replica.workers]
        names = {name for name in list_named_actors() if "server" in name or name.startswith((CPU_ROLLOUT, STANDALONE))}
        for handle in handles:
            ray.kill(handle)
        for group in (group for replica in replicas if replica.resource_pool for group in replica.resource_pool.pgs):
            remove_placement_group(group)
        deadline, gpus = time.monotonic() + STOP_TIMEOUT, self._cluster.scale.rollout.gpus
        while names.intersection(list_named_actors()) or ray.available_resources().get("GPU", 0) < gpus:
            if time.monotonic() > deadline:
                raise UserError(f"Ray did not end the rollout servers within {STOP_TIMEOUT:g} s: start the run again")
            time.sleep(0.1)
        self._sync, self._awake, self._version = None, False, -1

    def learn(self) -> RayWorkerGroup:
        """Return the workers, with the GPU memory of the servers given back to them."""
        if self._sync is not None and self._awake and not self._cluster.scale.rollout.gpus:
            self._sync.sleep_replicas()
            self._awake = False
        return self.group
