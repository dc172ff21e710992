"""Times `rewardsmith run` from the start of its process to the first token, and transformers' own `generate`.

    python benchmarks/start.py [--device cuda] [--shape qwen3-0.6b] [--rounds 3]

Writes a folder of random bfloat16 weights, and runs both sides in processes of their own, in turns. Ours is the whole
command with a policy stage on one prompt; the bare side imports torch and transformers, loads the folder and generates
one token. The files are in the page cache for both. A ratio below 1 means that the bare side is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
MARKS = ("imports done", "recipe checked", "model loaded", "first token")
TEMPLATE = "{{ messages[0]['content'] }}"
RECIPE = """
[models.policy]
init = {folder}
device = "{device}"
dtype = "bfloat16"

[data.train]
type = "arithmetic"

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 1
prompts_per_step = 1
rollouts_per_prompt = 2
sampling = {{ max_tokens = 1 }}
reward = {{ type = "rule", rule = "arithmetic" }}
"""


def mark(name: str) -> None:
    """Print the seconds since the process was started, which its parent has noted, and its CPU time."""
    seconds = time.time() - float(os.environ["STARTED"])
    print(f"@{name}@{seconds:.3f}@{time.process_time():.3f}", file=sys.stderr, flush=True)


def our_side(recipe: str, runs: str) -> None:
    """Run a recipe up to its first token."""
    import rewardsmith.runs.start  # noqa: PLC0415, F401 with torch
    from rewardsmith.cli import main  # noqa: PLC0415 what is imported when is what is measured
    from rewardsmith.engines.embedded.engine import EmbeddedEngine  # noqa: PLC0415 with transformers
    from rewardsmith.engines.embedded.generate import Generator  # noqa: PLC0415
    from rewardsmith.runs import run  # noqa: PLC0415

    mark("imports done")
    check, load, decode = run.check_trained_prompts, EmbeddedEngine.__init__, Generator._schedule

    def checked(*args: object) -> object:
        result = check(*args)
        mark("recipe checked")
        return result

    def loaded(*args: object, **settings: object) -> None:
        load(*args, **settings)
        mark("model loaded")

    def decoded(self: Generator) -> None:
        decode(self)
        self._state.token_S.tolist()  # waits for the device
        mark("first token")
        os._exit(0)

    run.check_trained_prompts, EmbeddedEngine.__init__, Generator._schedule = checked, loaded, decoded
    sys.argv = ["rewardsmith", "run", recipe, "--folder", runs, "--ignore-memory"]
    main()


def bare_side(folder: str, device: str) -> None:
    """Load the same folder with transformers, and generate one token."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    mark("imports done")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map={"": device} if device == "cuda" else None
    )
    mark("model loaded")
    model.generate(**tokenizer("w5 w6 w7", return_tensors="pt").to(device), max_new_tokens=1, do_sample=True).tolist()
    mark("first token")
    os._exit(0)


def build(folder: Path, shape: str) -> None:
    """Write a model of this shape with random weights, with a tokenizer and a chat template."""
    import torch  # noqa: PLC0415
    from embedded import SHAPES, write_tokenizer  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    config = SHAPES[shape]()
    write_tokenizer(folder, config, TEMPLATE)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    model.tie_weights()
    for parameter in model.parameters():
        parameter.data.uniform_(-0.03, 0.03)
    model.save_pretrained(folder)


def measure(*arguments: str) -> dict[str, list[float]]:
    """Run a side in its own process and return its marks: seconds and CPU seconds."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "STARTED": repr(time.time())},
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\n{arguments[0]} failed (status {done.returncode}), see above")
    marks = [line.split("@")[1:] for line in done.stderr.splitlines() if line.startswith("@")]
    return {name: [*map(float, times)] for name, *times in marks}


def main() -> None:
    """Build the model, run both sides, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as name:
        folder, recipe = Path(name) / "model", Path(name) / "recipe.toml"
        print(f"writing {given.shape} …", file=sys.stderr)
        subprocess.run([sys.executable, __file__, "build", str(folder), given.shape], check=True, capture_output=True)
        recipe.write_text(RECIPE.format(folder=json.dumps(str(folder)), device=given.device), encoding="utf-8")
        for number in range(given.rounds):
            bare.append(measure("bare", str(folder), given.device))
            ours.append(measure("ours", str(recipe), str(Path(name) / f"run{number}")))
    print(f"{given.shape}, {given.device}, seconds from the start of the process (CPU), median of {given.rounds}")
    print(f"{'':16}{'transformers':>18}{'rewardsmith':>18}{'ratio':>8}")
    for heading in MARKS:
        (own, own_cpu), (peer, peer_cpu) = (
            [statistics.median(marks.get(heading, [math.nan] * 2)[i] for marks in side) for i in range(2)]
            for side in (ours, bare)
        )
        theirs, ratio = ("", "") if math.isnan(peer) else (f"{peer:.2f} ({peer_cpu:.2f})", f"{peer / own:.2f}x")
        print(f"{heading:16}{theirs:>18}{f'{own:.2f} ({own_cpu:.2f})':>18}{ratio:>8}")


if __name__ == "__main__":
    sides = {"ours": our_side, "bare": bare_side, "build": lambda folder, shape: build(Path(folder), shape)}
    if len(sys.argv) > 1 and sys.argv[1] in sides:
        sides[sys.argv[1]](*sys.argv[2:])
    else:
        main()
