"""verl's training workers with the three calls that our engine makes: measure, update, and write a model folder.

A worker holds one shard of one model. It takes rows (prompt and response tokens), and a loss of ours as a pickled
function of `Outputs`, so that estimators, losses and reductions are the same code as on one device.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForSequenceClassification
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.learning import OptimizerSettings
from rewardsmith.scale.packed_engine import SCALAR


def pack_rows(rows: Sequence[Row], numbers: Sequence[int], **options: Any) -> TensorDict:
    """Return rows in verl's layout without padding, with their numbers; `options` are of the whole batch."""
    tokens = [torch.from_numpy(np.concatenate([row.prompt, row.response])).long() for row in rows]
    data = {
        "input_ids": jagged(tokens),
        "position_ids": jagged([torch.arange(len(one)) for one in tokens]),
        "loss_mask": jagged(
            [(torch.arange(len(t)) >= len(r.prompt)).long() for t, r in zip(tokens, rows, strict=True)]
        ),
        "prompt_lengths": torch.tensor([len(row.prompt) for row in rows]),
        "response_lengths": torch.tensor([len(row.response) for row in rows]),
        "rows": torch.tensor(numbers),
    }
    return tu.get_tensordict(data, non_tensor_dict=options)


def jagged(tensors: Sequence[Tensor]) -> Tensor:
    """Return rows of different lengths as one tensor."""
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


def at_responses(values: Any, data: TensorDict) -> tuple[Tensor, Tensor]:
    """Return outputs at the response tokens and their mask, both [b, T], of outputs at all tokens (jagged).

    The output at a token is about the next one, so those of a response begin one token before it.
    """
    prompts_b, responses_b = data["prompt_lengths"], data["response_lengths"]
    places_T = torch.arange(int(responses_b.max()), device=responses_b.device)
    mask_bT = places_T < responses_b[:, None]
    flat_N = values.values()
    starts_b = values.offsets()[:-1] + prompts_b - 1
    index_bT = (starts_b[:, None] + places_T).clamp(max=len(flat_N) - 1)
    return torch.where(mask_bT, flat_N[index_bT].float(), 0.0), mask_bT


def outputs_of(model_output: Mapping[str, Tensor], data: TensorDict) -> Outputs:
    """Return the outputs of a micro-batch as our losses take them; rows that only fill up the batch are left out."""
    live_k = (data["rows"] >= 0).nonzero().squeeze(-1)
    found = {name: at_responses(values, data) for name, values in model_output.items()}
    mask_bT = next(iter(found.values()))[1]
    zeros_bT = torch.zeros_like(mask_bT, dtype=torch.float32)
    chosen = [found[name][0] if name in found else zeros_bT for name in ("log_probs", "entropy", "values")]
    return Outputs(data["rows"][live_k], mask_bT[live_k], *(one[live_k] for one in chosen))


def row_loss(loss: Any, model_output: dict[str, Tensor], data: TensorDict, dp_group: Any = None) -> Any:
    """Call a loss of ours as verl calls its own: gradients are averaged over the ranks, and ours add up."""
    total = sum(one.values().sum() for one in model_output.values()) * 0.0  # a rank may have no row of its own
    outputs = outputs_of(model_output, data)
    if len(outputs.rows):
        total = total + loss(outputs) * data["dp_size"]
    return total, {}


def full_weights(module: Any, device: Any, scaling: float) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights in full under their Hugging Face names; an adapter is merged: W + (α/r) B A."""
    shards = module.state_dict()
    for name, shard in shards.items():
        if ".lora_" in name:
            continue
        weight = gather(shard, device)
        layer = name.removesuffix(".base_layer.weight")
        if layer != name and f"{layer}.lora_A.default.weight" in shards:
            a, b = (gather(shards[f"{layer}.lora_{one}.default.weight"], device) for one in "AB")
            weight = (weight.float() + scaling * b.float() @ a.float()).to(weight.dtype)
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), weight


def gather(shard: Tensor, device: Any) -> Tensor:
    """Return a tensor of which each rank has a part."""
    shard = shard.detach().to(device)
    return shard.full_tensor() if isinstance(shard, DTensor) else shard


def require_plugins() -> None:
    """Raise unless this process has what verl should have loaded: it keeps quiet about a plug-in that fails."""
    if os.environ.get("VERL_PLATFORM") == "cpu" != get_device_name():
        raise RuntimeError(f"verl runs on {get_device_name()!r} in this worker: it did not load rewardsmith.scale.cpu")
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    for plugin in entry_points(group="verl.plugins"):
        if policy == "auto" or plugin.name in [name.strip() for name in policy.split(",")]:
            try:
                plugin.load()
            except Exception as error:
                remedy = "repair it on every node, or leave it out with VERL_USE_EXTERNAL_PLUGINS"
                raise RuntimeError(f"verl's plug-in {plugin.name!r} cannot be loaded: {error!r}. {remedy}") from error


class RowWorker(TrainingWorker):
    """A rank of a model."""

    def __init__(self, config: Any) -> None:
        require_plugins()
        if get_device_name() == "cpu":
            import rewardsmith.scale.cpu_rollout  # noqa: F401, PLC0415 it registers the engines of the CPU

            initialize_global_process_group_ray(backend="gloo")  # verl would name gloo twice, which torch refuses
        super().__init__(config)
        self._learns = False
        if self.model_config.lora_rank:  # what rollout servers get: verl's own way rounds merged weights to bfloat16
            self.engine.get_per_tensor_param = lambda **_: (self._weights(), None)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        rank, alpha = self.model_config.lora_rank, self.model_config.lora_alpha
        return full_weights(self.engine.module, get_device_id(), alpha / rank if rank else 0.0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def learn_with(self, settings: OptimizerSettings) -> None:
        """Create a new optimizer, as the embedded engine does."""
        parameters = [p for p in self.engine.module.parameters() if p.requires_grad]
        self.engine.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
                {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
        )
        self._learns = True
        self.engine.optimizer_config.clip_grad = settings.clip_norm
        self.engine.checkpoint_manager.optimizer = self.engine.optimizer

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss(self, pickled: bytes) -> None:
        """Take the loss of the next update, and the meter that it fills."""
        # torch.load moves the tensors that the loss has captured to the device.
        loss, self._meter = torch.load(io.BytesIO(pickled), map_location=get_device_name(), weights_only=False)
        self.loss_fn: Any = partial(row_loss, loss)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def measure(self, data: TensorDict) -> TensorDict:
        """Return log-probabilities, or values, at the response tokens, [b, T]."""
        output = self.infer_batch(data)
        if output is None:
            return None
        measured = output["log_probs"] if "log_probs" in output else output["values"]
        values_bT, mask_bT = at_responses(measured, data.to(measured.device))
        lengths = mask_bT.sum(-1).tolist()
        rows = [row[:length].float().cpu() for row, length in zip(values_bT, lengths, strict=True)]
        return tu.get_tensordict({"measured": jagged(rows)})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def update(self, data: TensorDict) -> TensorDict:
        """Take one optimizer step on the loss that was set."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = tu.get(data, "lr")
        output = self.train_batch(data)
        if output is None:
            return None
        norm = tu.get(output, "metrics")["grad_norm"]
        return tu.get_tensordict({"grad_norm": torch.tensor([norm])})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, folder: str) -> None:
        """Write the shards of weights and optimizer."""
        manager = self.engine.checkpoint_manager
        manager.checkpoint_save_contents = ["model", "optimizer"] if self._learns else ["model"]
        self.save_checkpoint(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load(self, folder: str, what: str) -> None:
        """Load the shards of the weights ("model"), or of the optimizer ("optimizer")."""
        self.engine.checkpoint_manager.checkpoint_load_contents = [what]
        self.load_checkpoint(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def is_finite(self) -> bool:
        """Whether the trainable weights of this rank are finite."""
        shards = (getattr(p, "_local_tensor", p) for p in self.engine.module.parameters() if p.requires_grad)
        return all(bool(shard.isfinite().all()) for shard in shards)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def publish(self, folder: str) -> None:
        """Write a Hugging Face folder; gathering the weights takes every rank."""
        weights = {name: tensor.float().cpu() for name, tensor in self._weights() if name != "score.bias"}
        module, config = self.engine.module, self.model_config.hf_config
        if self.model_config.lora_rank:
            adapter = {name: gather(t, "cpu") for name, t in module.state_dict().items() if ".lora_" in name}
            if self.rank == 0:
                module.save_pretrained(f"{folder}/adapter", state_dict=adapter)
            module = module.base_model.model
        if self.rank == 0:
            if self.config.model_type == SCALAR:
                with torch.device("meta"):
                    module = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
            module.save_pretrained(folder, state_dict=weights)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_meter(self) -> Any:
        """Return what the loss has measured on this rank; None where another rank has the same rows."""
        meter, self._meter, self.loss_fn = self._meter, None, None
        return meter if self.engine.is_mp_src_rank_with_outputs() else None


class PolicyWorker(ActorRolloutRefWorker):
    """A rank of a model that also writes answers, through one of verl's rollout servers."""

    actor_worker_cls = RowWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def learn_with(self, settings: OptimizerSettings) -> None:
        """See `RowWorker`, as for what follows."""
        self.actor.learn_with(settings)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss(self, pickled: bytes) -> None:  # noqa: D102
        self.actor.set_loss(pickled)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def measure(self, data: TensorDict) -> TensorDict:  # noqa: D102
        return self.actor.measure(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update(self, data: TensorDict) -> TensorDict:  # noqa: D102
        return self.actor.update(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_meter(self) -> Any:  # noqa: D102
        return self.actor.take_meter()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, folder: str) -> None:  # noqa: D102
        self.actor.save(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load(self, folder: str, what: str) -> None:  # noqa: D102
        self.actor.load(folder, what)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def is_finite(self) -> bool:  # noqa: D102
        return self.actor.is_finite()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def publish(self, folder: str) -> None:  # noqa: D102
        self.actor.publish(folder)
