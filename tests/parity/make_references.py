"""Recompute the reference values: `python -m tests.parity.make_references`, where verl and TRL are installed.

Only the peers' own functions are called, and nothing of rewardsmith is imported. The files hold each scenario's inputs
once and, for every case, the function, its settings and its outputs to ten significant digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tests.parity import trl_references, verl_references
from tests.parity.reference import Reference
from tests.parity.scenarios import SCENARIOS

_FOLDER = Path(__file__).parent


def _number(value: float) -> float | None:
    """Round to ten significant digits; rounding noise around zero becomes zero, so that the bytes are stable."""
    if math.isnan(value):
        return None
    return 0.0 if abs(value) < 1e-14 else float(f"{value:.10g}")


def _plain(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return _plain(values.detach().double().tolist())
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return _number(float(values))


def _lines(entries: dict[str, Any]) -> str:
    """Return a JSON object with one line per entry, which keeps diffs readable and files small."""
    body = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(entries[name], sort_keys=True, allow_nan=False)}"
        for name in sorted(entries)
    )
    return "{\n" + body + "\n }"


def write(peer: str, version: str, references: Iterable[Reference]) -> None:
    """Write one peer's file; two runs leave the same bytes."""
    cases: dict[str, Any] = {}
    for reference in references:
        assert reference.name not in cases, f"two cases are called {reference.name}"
        cases[reference.name] = {
            "function": reference.function,
            "scenario": reference.scenario,
            "settings": reference.settings,
            "outputs": {name: _plain(values) for name, values in reference.outputs.items()},
        }
    scenarios = {case["scenario"] for case in cases.values()} - {None}
    text = (
        f'{{\n "cases": {_lines(cases)},\n "peer": "{peer}",\n'
        f' "scenarios": {_lines({name: SCENARIOS[name]() for name in scenarios})},\n "version": "{version}"\n}}\n'
    )
    json.loads(text)
    (_FOLDER / f"{peer}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Write both files."""
    # TRL builds tensors from lists of floats; in float64 its arithmetic can be compared to the last digits.
    torch.set_default_dtype(torch.float64)
    write("verl", verl_references.VERSION, verl_references.references())
    write("trl", trl_references.VERSION, trl_references.references())


if __name__ == "__main__":
    main()
