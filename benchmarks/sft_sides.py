"""The two sides of `benchmarks/sft.py`, each run by its own Python.

    python benchmarks/sft_sides.py SIDE FOLDER DEVICE DTYPE BATCH STEPS

The first two steps warm up. A side prints its figures as one line of JSON, the last line of its output.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from workload import peak_resident_bytes

WARMUP = 2


def now(device: str) -> float:
    """Read the time once the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def figures(device: str, seconds: list[float], tokens: list[int], computed: list[int]) -> dict[str, float]:
    """Return tokens per second, the share of padding, and the most memory."""
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak_resident_bytes()
    timed = slice(WARMUP, None)
    return {
        "tokens_per_second": sum(tokens[timed]) / sum(seconds[timed]),
        "padding": 1 - sum(tokens[timed]) / sum(computed[timed]),
        "peak_bytes": peak,
    }


def ours(folder: Path, device: str, dtype: str, batch: int, steps: int) -> dict[str, float]:
    """Run our `sft` stage, reading and encoding of rows included."""
    import asyncio  # noqa: PLC0415
    from contextlib import nullcontext  # noqa: PLC0415

    from rewardsmith.engines.embedded.engine import EmbeddedEngine  # noqa: PLC0415
    from rewardsmith.engines.model_settings import ModelSettings  # noqa: PLC0415
    from rewardsmith.trainers.sft import SftTrainer  # noqa: PLC0415
    from rewardsmith.trainers.stages import SftStage  # noqa: PLC0415
    from rewardsmith.types import Demonstration, Message, Prompt  # noqa: PLC0415

    plain = folder / "plain.jinja"
    plain.write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    settings = ModelSettings(init=str(folder), device=device, dtype=dtype, chat=str(plain))
    data = json.loads((folder / "rows.json").read_text())
    shown = [
        Demonstration(Prompt(str(i), [Message("user", row["prompt"])]), row["completion"]) for i, row in enumerate(data)
    ]

    class Source:
        def demonstrations(self, seed: int) -> Any:
            return iter(shown)

    class Context:
        seed = 0

        def __init__(self) -> None:
            self.model = EmbeddedEngine.open(settings)

        def engine(self, name: str) -> EmbeddedEngine:
            return self.model

        def source(self, name: str) -> Source:
            return Source()

        def on_device(self, *names: str) -> Any:
            return nullcontext()

        def progress(self, *_: Any, **__: Any) -> None:
            pass

        def pause(self) -> None:
            pass

    stage = SftStage(model="m", data="d", steps=steps + WARMUP, batch_size=batch)
    context: Any = Context()
    trainer = SftTrainer(stage, context)
    seconds, tokens = [], []
    lengths = [len(row["prompt"].split()) + len(row["completion"].split()) + 1 for row in data]
    for number in range(steps + WARMUP):
        begun = now(device)
        asyncio.run(trainer.step(number + 1))
        seconds.append(now(device) - begun)
        tokens.append(sum(lengths[number * batch : (number + 1) * batch]))
    return figures(device, seconds, tokens, tokens)


def trl(folder: Path, device: str, dtype: str, batch: int, steps: int, *, packing: bool) -> dict[str, float]:
    """Run SFTTrainer; the data are encoded before its clock starts. All is TRL's default but for what is said here."""
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: PLC0415
    from trl import SFTConfig, SFTTrainer  # noqa: PLC0415

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.last = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.last = now(device)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(now(device) - self.last)

    tokens: list[int] = []
    computed: list[int] = []

    class Counting(SFTTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            ids = inputs["input_ids"]
            mask = inputs.get("attention_mask")
            tokens.append(int(ids.numel() if mask is None else mask.sum()))
            computed.append(int(ids.numel()))
            return super().compute_loss(model, inputs, *rest, **named)

    half = dtype == "bfloat16"
    with tempfile.TemporaryDirectory() as place:
        config = SFTConfig(
            output_dir=place,
            per_device_train_batch_size=batch,
            max_steps=steps + WARMUP,
            max_length=4096,
            packing=packing,
            shuffle_dataset=False,
            use_cpu=device == "cpu",
            bf16=half,
            gradient_checkpointing=False,  # our side does not recompute either
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        attention = "flash_attention_2" if packing else None
        named = {"attn_implementation": attention} if attention else {}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **named)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        data = Dataset.from_list(json.loads((folder / "rows.json").read_text()))
        data = data.map(lambda row: {"prompt": row["prompt"] + " "})
        clock = Clock()
        trainer = Counting(model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
        trainer.train()
    return figures(device, clock.seconds, tokens, computed)


if __name__ == "__main__":
    side, folder, device, dtype, batch, steps = sys.argv[1:]
    sizes = (Path(folder), device, dtype, int(batch), int(steps))
    result = ours(*sizes) if side == "rewardsmith" else trl(*sizes, packing="packing" in side)
    print(json.dumps(result))
