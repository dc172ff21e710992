"""Our side of `benchmarks/embedded.py`: the embedded engine generates and learns.

python benchmarks/our_side.py FOLDER WORKLOAD
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workload import Figures, Workload


def run(folder: Path, workload: Workload) -> Figures:
    """Train for the warm-up and the timed steps, and return the figures of the latter.

    A step takes the texts of `prompts(workload, step)`, generates at temperature 1 with no end token, so that every
    response has exactly `new_tokens` tokens, scores each with `reward`, and makes one AdamW step over all of them with
    the GRPO advantage and the clipped loss.
    """
    # TODO: fill in against the engine. Read the clock as `Step` defines it. On cuda, torch.cuda.synchronize() comes before
    # each reading and torch.cuda.reset_peak_memory_stats() before the first step. Refuse to report if a response has
    # another length or if all advantages are zero, as the TRL side does.
    raise NotImplementedError("the embedded engine has no side here yet: use --only trl")


def main() -> None:
    """Measure, and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", type=Workload.from_json)
    given = parser.parse_args()
    print(run(given.folder, given.workload).to_json())


if __name__ == "__main__":
    main()
