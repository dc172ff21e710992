"""Which GPUs of the driver's machine belong to the trainer, and which to the servers that the run starts there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import Problem
from rewardsmith.scale.scale_settings import ScaleSettings

SERVER_SHARE = 0.9  # of the memory, which vLLM and SGLang take where a recipe does not say


@dataclass(frozen=True)
class ServerGpus:
    """GPUs of managed servers."""

    here: Sequence[int] = ()  # of the driver's machine, for themselves (`devices`)
    on_cluster: int = 0  # that Ray reserves


NO_SERVERS = ServerGpus()


def server_gpus(models: Mapping[str, Chosen], scale: ScaleSettings) -> ServerGpus:
    """Return the GPUs that managed servers have besides those of the trainer."""
    servers = [model.settings for model in models.values() if isinstance(model.settings, ManagedSettings)]
    here = {gpu for server in servers for gpu in server.devices or []} - {*range(scale.gpus_per_node)}
    return ServerGpus(sorted(here), sum(server.replicas * gpus_to_reserve(server, scale) for server in servers))


def gpus_to_reserve(server: ManagedSettings, scale: ScaleSettings) -> int:
    """Return how many GPUs Ray reserves for one server; none where `devices` names them."""
    if scale.device == "cpu" or server.devices is not None:
        return 0
    if server.gpus is not None:
        return server.gpus
    return server.tensor_parallel_size if isinstance(server.command, str) else 0


def placement_problems(models: Mapping[str, Chosen], scale: ScaleSettings) -> Iterator[Problem]:
    """Yield a problem for each managed server for which there would be no memory on one of its GPUs."""
    if scale.device == "cpu":
        return
    trainer = range(scale.gpus_per_node)  # Ray gives it the first ones
    taken = dict.fromkeys(trainer, scale.rollout.memory_share)
    for name, model in models.items():
        server = model.settings
        if not isinstance(server, ManagedSettings) or server.devices is None or not isinstance(server.command, str):
            continue
        share = server.gpu_memory_utilization or SERVER_SHARE
        gpus = server.devices[: server.tensor_parallel_size * server.replicas]
        full = [gpu for gpu in gpus if taken.get(gpu, 0.0) + share >= 1]
        for gpu in gpus:
            taken[gpu] = taken.get(gpu, 0.0) + share
        if full:
            setting = "devices" if set(full) & set(trainer) else "gpu_memory_utilization"
            yield Problem(
                f"models.{name}.{setting}",
                f"the server takes {share:g} of the memory of GPU {full[0]}, and with what else is there that is"
                f" {taken[full[0]]:g}: name GPUs that the trainer does not use (it has the first"
                f" {scale.gpus_per_node} of each machine, scale.gpus_per_node), or lower gpu_memory_utilization or"
                " scale.rollout.memory_share",
                str(server.devices),
            )
