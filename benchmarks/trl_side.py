"""The TRL sides of `benchmarks/embedded.py`: GRPOTrainer as its users run it.

    python benchmarks/trl_side.py FOLDER WORKLOAD [--writer vllm] [--micro-batch 64] [--weights bfloat16]

It generates with transformers, with vLLM in the same process (`--writer vllm`: TRL's colocate mode), or is patched by
Unsloth, which generates with the model that it trains (`--writer unsloth`). Everything is TRL's default unless the
comparison needs another value; `configuration` says which and why. The options are there to look for TRL's best setting
on a machine: whatever is chosen is part of the figures' `settings`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workload import Figures, Step, Workload, figures_to_json, peak_resident_bytes, prompts, reward

if "unsloth" in sys.argv:
    from unsloth import FastLanguageModel  # it patches the others, so it comes first

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from transformers.training_args import OptimizerNames
from trl import GRPOConfig, GRPOTrainer

WRITERS = {"transformers": "TRL", "vllm": "TRL + vLLM", "unsloth": "Unsloth"}


def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Score every completion, in the form that GRPOTrainer calls."""
    return [reward(tokens) for tokens in completion_ids]


class Clock(TrainerCallback):  # type: ignore[misc]
    """Collects the times of each step: what the trainer calls at its end, and what `TimedTrainer` adds in between."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.steps: list[Step] = []
        self.tokens: list[int] = []
        self.generating = 0.0
        self.ended = self.learning_from = 0.0

    def now(self) -> float:
        """Read the time once the device has done all it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the first step."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.ended = self.now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Close a step: the trainer calls this after the optimizer's step and the zeroing of the gradients."""
        now = self.now()
        self.steps.append(Step(now - self.ended, self.generating, now - self.learning_from))
        self.ended, self.generating = now, 0.0


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with a clock around its own methods; what they do is not changed."""

    clock: Clock
    workload: Workload

    def _generate(self, prompts: list[Any]) -> Any:
        started = self.clock.now()
        result = super()._generate(prompts)
        self.clock.generating += self.clock.now() - started
        lengths = [len(tokens) for tokens in result[1]]
        self.clock.tokens.append(sum(lengths))
        exact = self.workload.ends == "eos" or set(lengths) == {self.workload.new_tokens}
        if not exact or len(lengths) != self.workload.rows:
            raise RuntimeError(
                f"TRL generated {len(lengths)} rollouts of {min(lengths)} to {max(lengths)} tokens, and not"
                f" {self.workload.rows} of {self.workload.new_tokens}: the times would not be comparable"
            )
        return result

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        result = super()._generate_and_score_completions(inputs)
        if not bool((result["advantages"] != 0).any()):
            raise RuntimeError("all advantages are zero: there would be nothing to learn")
        # All that follows until the end of the step is learning: every micro-batch, clipping, the optimizer.
        self.clock.learning_from = self.clock.now()
        return result


def default_micro_batch(workload: Workload) -> int:
    """Return at most 32 rollouts on a CPU, where 512 at once take twice as long, and on a GPU 20,480 tokens.

    TRL keeps the logits of a micro-batch: with a vocabulary of 151,936 these are 6 GB for each copy of them.
    """
    most = 32 if workload.device == "cpu" else 20_480 // (workload.prompt_tokens + workload.new_tokens)
    return max(size for size in range(1, max(1, most) + 1) if workload.rows % size == 0)


def generation_options(workload: Workload, writer: str) -> dict[str, Any] | None:
    """Return what makes every response as long as the workload says, where it has to be."""
    if workload.ends == "eos":
        return None
    # transformers: an id that no model has, so that the search for the end runs as always, and never finds one.
    return {"ignore_eos": True} if writer == "vllm" else {"eos_token_id": workload.vocabulary}


def configuration(
    workload: Workload, output: str, *, writer: str, micro_batch: int, weights: str, checkpointing: bool
) -> GRPOConfig:
    """Return TRL's defaults with the workload's sizes: one generation for all rollouts, one optimizer step for it."""
    return GRPOConfig(
        output_dir=output,
        max_steps=workload.warmup + workload.steps,
        # transformers generates for all rollouts at once, whatever the micro-batch.
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=workload.rows // micro_batch,
        num_generations=workload.rollouts,
        max_completion_length=workload.new_tokens,
        generation_kwargs=generation_options(workload, writer),
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        use_vllm=writer == "vllm",
        vllm_mode="colocate",
        vllm_max_model_length=workload.prompt_tokens + workload.new_tokens,
        use_cpu=workload.device == "cpu",
        model_init_kwargs=None if writer == "unsloth" else {"dtype": weights},
        bf16=workload.dtype == "bfloat16",
        gradient_checkpointing=checkpointing,
        shuffle_dataset=False,  # both sides get the same prompts in the same steps
        seed=workload.seed,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def load(folder: Path, workload: Workload, *, writer: str, weights: str, checkpointing: bool) -> Any:
    """Return what GRPOTrainer takes as its model: the folder, or Unsloth's model with all weights trained."""
    if writer != "unsloth":
        return str(folder)
    model, _ = FastLanguageModel.from_pretrained(
        str(folder),
        max_seq_length=workload.prompt_tokens + workload.new_tokens,
        dtype=getattr(torch, weights),
        load_in_4bit=False,
        full_finetuning=True,
        use_gradient_checkpointing="unsloth" if checkpointing else False,
    )
    return model


def run(
    folder: Path, workload: Workload, *, writer: str, micro_batch: int, weights: str, checkpointing: bool
) -> Figures:
    """Train for the warm-up and the timed steps, and return the figures of the latter."""
    if workload.rows % micro_batch:
        raise ValueError(f"--micro-batch {micro_batch}: must divide the {workload.rows} rollouts of a step")
    clock = Clock(workload.device)
    every_step = range(workload.warmup + workload.steps)
    with tempfile.TemporaryDirectory() as output:
        choices = {"writer": writer, "weights": weights, "checkpointing": checkpointing}
        config = configuration(workload, output, micro_batch=micro_batch, **choices)
        trainer = TimedTrainer(
            model=load(folder, workload, **choices),
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [text for s in every_step for text in prompts(workload, s)]}),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[clock],
        )
        trainer.clock, trainer.workload = clock, workload
        if workload.ends == "length":
            trainer.eos_token_ids = [workload.vocabulary]  # TRL also cuts completions by itself, see `configuration`
        trainer.train()
    settings = (
        f"TRL {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__},"
        f" {writer} generates, {trainer.model.config._attn_implementation} attention, {weights} weights"
        f"{', bfloat16 autocast' if config.bf16 else ''},"
        f" micro-batches of {micro_batch}, gradient checkpointing {'on' if checkpointing else 'off'},"
        f" {config.loss_type} loss, {OptimizerNames(config.optim).value}"
    )
    return Figures(
        WRITERS[writer],
        settings,
        statistics.mean(clock.tokens[workload.warmup :]),
        tuple(clock.steps[workload.warmup :]),
        torch.cuda.max_memory_allocated() if workload.device == "cuda" else peak_resident_bytes(),
    )


def main() -> None:
    """Measure, and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--writer", choices=list(WRITERS), default="transformers", help="what generates")
    parser.add_argument(
        "--micro-batch", type=int, help="rollouts of one backward pass; default: 20,480 tokens, on a CPU 32 rollouts"
    )
    parser.add_argument("--weights", choices=["float32", "bfloat16"], default="float32", help="default: TRL's, float32")
    parser.add_argument("--no-checkpointing", action="store_true", help="TRL's default is gradient checkpointing")
    given = parser.parse_args()
    micro_batch = given.micro_batch or default_micro_batch(given.workload)
    try:
        figures = run(
            given.folder,
            given.workload,
            writer=given.writer,
            micro_batch=micro_batch,
            weights=given.weights,
            checkpointing=not given.no_checkpointing,
        )
    except torch.OutOfMemoryError as error:
        sys.exit(f"{error}\nTRL ran out of memory with --micro-batch {micro_batch}: give it a smaller one")
    print(figures_to_json(figures))


if __name__ == "__main__":
    main()
