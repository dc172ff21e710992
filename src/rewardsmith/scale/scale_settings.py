"""The `[scale]` table of a recipe: how a stage is spread over a cluster."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rewardsmith.config import Settings


class RolloutSettings(Settings):
    """The servers that write the answers."""

    gpus: int = Field(
        default=0, ge=0, description="GPUs of their own for the servers; 0: they share those of the trainer"
    )

    engine: Literal["vllm", "sglang"] = Field(default="vllm", description="which server writes the answers")
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs of one server")
    memory_share: float = Field(default=0.5, gt=0, lt=1, description="share of the GPU memory for weights and KV cache")
    max_sequences: int = Field(default=1024, ge=1, description="answers that one server writes at a time")

    @model_validator(mode="after")
    def _whole_servers(self) -> Self:
        if self.gpus % self.tensor_parallel:
            raise ValueError(f"gpus = {self.gpus} are no whole servers of tensor_parallel = {self.tensor_parallel}")
        return self


class ScaleSettings(Settings):
    """Train on several GPUs or nodes: `rewardsmith run RECIPE --on verl`."""

    nodes: int = Field(default=1, ge=1, description="machines")
    gpus_per_node: int = Field(default=1, ge=1, description="GPUs of each; on a CPU: worker processes")
    device: Literal["cuda", "cpu"] = Field(default="cuda", description="cpu tries a recipe without a GPU")
    strategy: Literal["fsdp2", "fsdp"] = Field(default="fsdp2", description="how a model is sharded")
    sequence_parallel: int = Field(default=1, ge=1, description="GPUs that share one sequence (Ulysses)")
    offload: bool = Field(default=False, description="weights and optimizer in host memory while answers are written")
    rollout: RolloutSettings = RolloutSettings()
    address: str | None = Field(
        default=None, description='address of a running Ray, or "auto"; not set: a Ray of this run alone'
    )
    verl: dict[str, Any] = Field(
        default={}, description='further settings of verl by their path, such as "actor_rollout_ref.rollout.seed" = 1'
    )
