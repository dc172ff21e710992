"""Recompute `rewardbench.json`: what the package rewardbench makes of accuracies by subset.

    python -m venv peer && peer/bin/pip install numpy pandas && peer/bin/pip install --no-deps rewardbench==0.1.4
    peer/bin/python -m tests.parity.rewardbench_references

Importing the package needs all that it trains and serves models with, so the two functions are taken out of its files
as they stand and called with its own tables. Nothing of rewardsmith is imported.
"""

from __future__ import annotations

import ast
import json
import random
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PRIOR_SETS = ("anthropic_helpful", "anthropic_hhh", "shp", "summarize")


def function(module: str, name: str, known: dict[str, Any]) -> Any:
    """Return one function of a module that is not imported."""
    package = find_spec(module.partition(".")[0])
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / f"{module.partition('.')[2]}.py"
    (found,) = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == name]
    scope = dict(known)
    exec(compile(ast.Module([found], []), str(path), "exec"), scope)
    return scope[name]


def main() -> None:
    """Write the file."""
    constants: dict[str, Any] = {}
    path = Path(str(find_spec("rewardbench").origin)).parent / "constants.py"  # type: ignore[union-attr]
    exec(compile(path.read_text(), str(path), "exec"), constants)
    counts, mapping = constants["EXAMPLE_COUNTS"], constants["SUBSET_MAPPING"]
    sections_of = function("rewardbench.utils", "calculate_scores_per_section", {})
    known = {"pd": pd, "np": np, "EXAMPLE_COUNTS": counts, "SUBSET_MAPPING": mapping}
    overall_of = function("analysis.get_benchmark_results", "get_average_over_rewardbench", known)

    rng, cases = random.Random(0), []
    for prior in (True, True, False, False):
        subsets = {name: round(rng.random(), 3) for name in counts}
        sets = {name: round(rng.random(), 3) for name in PRIOR_SETS} if prior else {}
        frame = pd.DataFrame([{"model": "m", "model_type": "x", **subsets}])
        priors = pd.DataFrame(
            [{"model": "m" if prior else "other", **{name: sets.get(name, 0.0) for name in PRIOR_SETS}}]
        )
        row = overall_of(frame, priors).iloc[0]
        cases.append(
            {
                "accuracies": subsets | sets,
                "sections": sections_of(counts, mapping, subsets)
                | ({"Prior Sets": float(row["Prior Sets (0.5 weight)"])} if prior else {}),
                "score": float(row["average"]),
            }
        )
    some = {
        name: round(rng.random(), 3)
        for name in ("alpacaeval-hard", "mt-bench-med", "donotanswer", "math-prm", "hep-go")
    }
    cases.append({"accuracies": some, "sections": sections_of(counts, mapping, some)})
    document = {"peer": "rewardbench", "version": version("rewardbench"), "weights": counts, "cases": cases}
    text = json.dumps(document, indent=1) + "\n"
    Path(__file__).with_name("rewardbench.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
