"""The vLLM side of `benchmarks/embedded.py`: generation alone, with the log-probability of each token and without.

    python benchmarks/vllm_side.py FOLDER WORKLOAD [--memory 0.9] [--rows 512]

Everything is vLLM's default unless the comparison needs another value: all rollouts may be written at a time, and the
prefix cache is emptied before each call, since every step has prompts of its own. There is no seed for each request,
which would cost vLLM time. It is written for vLLM 0.24, which fits torch 2.11, and runs with later ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from workload import Figures, Step, Workload, figures_to_json, prompts

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it logs to the output that has the figures

import torch
import vllm
from vllm import LLM, RequestOutput, SamplingParams


def start(folder: Path, workload: Workload, *, memory: float, rows: int) -> LLM:
    """Start the engine: paged cache with shared prefixes, and on a GPU a compiled model and CUDA graphs."""
    return LLM(
        model=str(folder),
        dtype=workload.dtype,
        max_model_len=workload.prompt_tokens + workload.new_tokens,
        max_num_seqs=rows,
        enable_prefix_caching=True,
        enforce_eager=workload.device == "cpu",  # there it compiles for minutes
        gpu_memory_utilization=memory,
        seed=workload.seed,
    )


def check(outputs: list[RequestOutput], workload: Workload, *, logprobs: bool) -> int:
    """Return the tokens of all responses, which must be the ones that were asked for."""
    responses = [response for output in outputs for response in output.outputs]
    lengths = [len(response.token_ids) for response in responses]
    if len(responses) != workload.rows or (workload.ends == "length" and set(lengths) != {workload.new_tokens}):
        raise SystemExit(f"vLLM wrote {len(lengths)} responses of {min(lengths)} to {max(lengths)} tokens")
    if any(
        (len(response.logprobs) if response.logprobs else 0) != logprobs * len(response.token_ids)
        for response in responses
    ):
        raise SystemExit("vLLM did not return the log-probabilities that were asked for")
    return sum(lengths)


def measure(engine: LLM, workload: Workload, settings: str, *, logprobs: bool) -> Figures:
    """Write the responses of the warm-up and of the timed steps, and return the figures of the latter."""
    sampling = SamplingParams(
        n=workload.rollouts,
        temperature=1.0,
        max_tokens=workload.new_tokens,
        ignore_eos=workload.ends == "length",
        logprobs=0 if logprobs else None,  # 0: of the sampled token alone
    )
    steps, tokens = [], []
    for step in range(workload.warmup + workload.steps):
        engine.reset_prefix_cache()
        begun = time.perf_counter()
        outputs = engine.generate(prompts(workload, step), sampling, use_tqdm=False)
        steps.append(Step(None, time.perf_counter() - begun, None))
        tokens.append(check(outputs, workload, logprobs=logprobs))
    return Figures(
        "vLLM" if logprobs else "vLLM, no log-probs",
        settings,
        statistics.mean(tokens[workload.warmup :]),
        tuple(steps[workload.warmup :]),
        None,
    )


def main() -> None:
    """Measure, and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--memory", type=float, help="share of the device's memory that vLLM takes; 0.9, on a CPU 0.1")
    parser.add_argument("--rows", type=int, help="responses written at a time; default: all of a step")
    given = parser.parse_args()
    rows = given.rows or given.workload.rows
    memory = given.memory or (0.9 if given.workload.device == "cuda" else 0.1)
    engine = start(given.folder, given.workload, memory=memory, rows=rows)
    settings = (
        f"vLLM {vllm.__version__}, torch {torch.__version__}, {given.workload.dtype}, generation only,"
        f" up to {rows} rows at a time, prefix caching, {memory:.0%} of the memory,"
        f" CUDA graphs {'on' if given.workload.device == 'cuda' else 'off'}"
    )
    print(figures_to_json(*(measure(engine, given.workload, settings, logprobs=with_) for with_ in (True, False))))


if __name__ == "__main__":
    main()
