"""The `[scale]` table of a recipe: how a stage is spread over a cluster."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from rewardsmith.config import Settings

GROUPS_PER_GPU = 8  # worker groups that may share a GPU: policy, critic, reference, process reward model, ...
TOKENS_PER_PASS = 16_384  # of a GPU, where the model does not set it
CPU_ROLLOUT = "rewardsmith_cpu"  # in verl's configuration, the servers that write where there is no GPU


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

    rare: ClassVar[frozenset[str]] = frozenset({"wait"})

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
    wait: float = Field(default=600.0, ge=0, description="seconds to wait for GPUs that another run has")
    verl: dict[str, Any] = Field(
        default={}, description='further settings of verl by their path, such as "actor_rollout_ref.rollout.seed" = 1'
    )

    @property
    def processes(self) -> int:
        """The ranks of each model."""
        return self.nodes * self.gpus_per_node

    @field_validator("strategy", mode="before")
    @classmethod
    def _is_supported(cls, strategy: Any) -> Any:
        if strategy == "megatron":
            raise ValueError(
                "Megatron's workers split a model in ways that our losses and checkpoints do not know: use fsdp2, with"
                " scale.sequence_parallel for long answers"
            )
        return strategy

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is not None and address != "auto" and not re.fullmatch(r"[^\s/:]+:\d{1,5}", address):
            raise ValueError('must be "auto", or HOST:PORT of the head node, such as "10.0.0.1:6379"')
        return address

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.device == "cpu" and self.strategy == "fsdp":
            raise ValueError('strategy = "fsdp" needs GPUs: use fsdp2 with device = "cpu"')
        for setting, size in (
            ("sequence_parallel", self.sequence_parallel),
            ("rollout.tensor_parallel", self.rollout.tensor_parallel),
        ):
            if self.processes % size:
                raise ValueError(
                    f"{setting} = {size} does not divide nodes x gpus_per_node = {self.processes}: every group of"
                    " GPUs must be whole"
                )
            if self.device == "cpu" and size > 1:
                raise ValueError(f'{setting} = {size} needs GPUs: leave it out with device = "cpu"')
        return self
