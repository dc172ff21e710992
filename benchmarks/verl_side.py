"""verl's own trainer (`verl.trainer.main_ppo`, V1) on a CPU, for `benchmarks/scale.py`: `python verl_side.py WORK`.

verl imports this module in its workers too (`external_lib`): what takes the place of vLLM on a CPU is ours, and is the
same for both sides. WORK is a JSON file with the size of the work; verl writes its metrics to its file logger.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
from scale_rule import digits
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout.replica import RolloutReplicaRegistry, TokenOutput

from rewardsmith.engines.protocol import Sampling
from rewardsmith.scale.cpu_rollout import ROLLOUT, CpuReplica, CpuServer


class AgentLoopServer(CpuServer):
    """Answers requests of verl's agent loop, whose sampling parameters are those of vLLM."""

    def __init__(self, folder: str, max_tokens: int, ignore_eos: bool) -> None:
        super().__init__(folder)
        min_tokens = max_tokens if ignore_eos else 0
        self._sampling = Sampling(max_tokens=max_tokens, min_tokens=min_tokens).model_dump_json()
        self._requests = 0

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        """Answer one prompt at temperature 1."""
        self._requests += 1
        ours = {"sampling": self._sampling, "draw": (self._requests, 0)}
        return await super().generate(prompt_ids, ours, request_id)


class AgentLoopReplica(CpuReplica):
    """Starts such a server."""

    def start_server(self, options: Any) -> Any:
        """Start the server in a process of its own."""
        remote = ray.remote(AgentLoopServer).options(**options).remote
        return remote(self.model_config.path, self.config.response_length, self.config.ignore_eos)


# In the place of our own engine, which expects our rows.
EngineRegistry._engines["language_model"]["fsdp2"]["cpu"] = FSDPEngineWithLMHead
RolloutReplicaRegistry.register(ROLLOUT, lambda: AgentLoopReplica)
if "DIST_INIT_METHOD" in os.environ or "MASTER_ADDR" in os.environ:  # a worker: verl would name gloo twice
    initialize_global_process_group_ray(backend="gloo")


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """Score an answer, as verl's naive reward manager calls it."""
    return digits(solution_str)


def main(work: dict[str, Any]) -> None:
    """Train for some steps."""
    from omegaconf import OmegaConf  # noqa: PLC0415
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo  # noqa: PLC0415

    from rewardsmith.engines.model_settings import ModelSettings  # noqa: PLC0415
    from rewardsmith.scale.ray_start import environment  # noqa: PLC0415
    from rewardsmith.scale.scale_settings import GROUPS_PER_GPU, ScaleSettings  # noqa: PLC0415
    from rewardsmith.scale.verl_config import ACTOR, MODEL, model_config  # noqa: PLC0415
    from rewardsmith.scale.verl_config import ROLLOUT as WRITER  # noqa: PLC0415

    scale = ScaleSettings(device="cpu", gpus_per_node=work["ranks"])
    verl = model_config(ModelSettings(init=work["model"]), "policy", Path(work["model"]), scale)
    settings = {
        "data.train_files": work["data"],
        "data.val_files": work["data"],
        "data.train_batch_size": work["prompts"],
        "data.max_prompt_length": 64,
        "data.max_response_length": work["tokens"],
        "data.filter_overlong_prompts": False,
        "data.dataloader_num_workers": 0,
        "algorithm.adv_estimator": "grpo",
        f"{MODEL}.external_lib": "verl_side",
        f"{MODEL}.override_config": {"attn_implementation": "sdpa"},  # verl's engine does not know our attention
        f"{MODEL}.use_remove_padding": False,
        f"{ACTOR}.ppo_mini_batch_size": work["prompts"] // work["mini_batches"],
        f"{ACTOR}.optim.lr": work["lr"],
        f"{ACTOR}.optim.weight_decay": 0.0,
        f"{WRITER}.n": work["rollouts"],
        f"{WRITER}.agent.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": __file__,
        "trainer.use_v1": True,
        "trainer.logger": ["file"],
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.total_epochs": 1000,
        "trainer.total_training_steps": work["steps"],
        "trainer.default_local_dir": work["folder"],
        "trainer.resume_mode": "disable",
        "ray_kwargs.ray_init.num_cpus": 8 + work["ranks"] * GROUPS_PER_GPU,
        "ray_kwargs.ray_init.num_gpus": work["ranks"],
        "ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.runtime_env.env_vars": environment(scale) | {"VERL_FILE_LOGGER_PATH": work["metrics"]},
    }
    for key, value in (settings | work.get("settings", {})).items():
        verl.put(key, value)
    OmegaConf.set_struct(verl.config, False)
    run_ppo(verl.config, task_runner_class=TaskRunnerV1)
    ray.shutdown()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
