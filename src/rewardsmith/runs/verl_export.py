"""`rewardsmith export verl`: a folder with all that `ray job submit` needs to run a recipe on a cluster."""

from __future__ import annotations

import importlib.util
import re
import shutil
from glob import glob
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.recipe import explain, parse_recipe
from rewardsmith.runs.folder import RECIPE
from rewardsmith.runs.preflight import check_for_cluster
from rewardsmith.runs.verl_command import explain_verl
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.storage import leaves, new_folder, writing

VERL, RUNTIME, SUBMIT, README = "verl.yaml", "runtime_env.yaml", "submit.sh", "README.md"
MAX_PATH = 1_000  # longer texts of a recipe are no paths
_OBJECT = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")  # module:Name

_RUNTIME_TEXT = """\
# What Ray gives to every process of the job; rewardsmith adds what it needs itself.
env_vars:
  NCCL_DEBUG: WARN
  # NCCL_SOCKET_IFNAME: eth0    # the network between the nodes, where NCCL chooses another
  # HF_HOME: /shared/huggingface
config:
  setup_timeout_seconds: 600
"""
_SUBMIT_TEXT = """\
#!/usr/bin/env bash
# Submit {title} to a running Ray cluster. The same command resumes a run that was stopped.
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
run_folder="${{RUN_FOLDER:-{run_folder}}}"   # on a file system that all nodes see
exec ray job submit --address "${{RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}}" \\
  --working-dir "$here" --runtime-env "$here/{runtime}" "$@" -- \\
  "${{PYTHON:-python}}" -m rewardsmith run {recipe} --on verl --folder "$run_folder" scale.address=auto
"""
_README_TEXT = """\
# {title}

`./submit.sh` submits this recipe to a running Ray cluster with {nodes} x {gpus} {devices}.
`./submit.sh --no-wait` does not wait for its end.

| file | holds |
|---|---|
| `{recipe}` | the recipe with all its settings |
| `{verl}` | verl's configuration of each model and stage, with the recipe key of each value; for reading |
| `{runtime}` | environment variables of all processes |
| `{submit}` | the command: `RUN_FOLDER`, `RAY_API_SERVER_ADDRESS` and `PYTHON` change where it runs |
{modules}
Every node needs the same environment (`pip install "rewardsmith[verl]"` and the rollout engine), and must see the run
folder{paths}.
"""


def export_verl(table: dict[str, Any], folder: Path, *, source: Path) -> None:
    """Write a recipe as a job for Ray; `source` is its file, next to which the user's own modules are."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{str(folder)!r} is not empty: choose another folder")
    files: list[str] = []
    table = _with_absolute_paths(table, files)
    table["scale"] = {**table.get("scale", {}), "address": "auto"}
    recipe = parse_recipe(table, source=str(source))
    check_for_cluster(recipe, str(source))
    configuration = explain_verl(recipe, everything=True)
    scale, modules = recipe.scale or ScaleSettings(), _own_modules(table, source)
    names = {
        "title": (recipe.title or source.stem).replace("\n", " "),
        "run_folder": (Path("runs") / source.stem).absolute(),
        "nodes": scale.nodes,
        "gpus": scale.gpus_per_node,
        "devices": "GPUs" if scale.device == "cuda" else "logical GPUs (worker processes on the CPU)",
        "modules": "".join(f"| `{name}` | your own rewards, rules or data |\n" for name in modules),
        "paths": f", and these files under the same path: {', '.join(f'`{file}`' for file in files)}" if files else "",
        **{"recipe": RECIPE, "verl": VERL, "runtime": RUNTIME, "submit": SUBMIT},
    }
    with writing(folder), new_folder(folder) as made:
        (made / RECIPE).write_text(explain(recipe), encoding="utf-8")
        (made / VERL).write_text(configuration, encoding="utf-8")
        (made / RUNTIME).write_text(_RUNTIME_TEXT, encoding="utf-8")
        (made / README).write_text(_README_TEXT.format_map(names), encoding="utf-8")
        quoted = names | {"run_folder": re.sub(r'(["$`\\])', r"\\\1", str(names["run_folder"]))}
        (made / SUBMIT).write_text(_SUBMIT_TEXT.format_map(quoted), encoding="utf-8")
        (made / SUBMIT).chmod(0o755)
        for name, path in modules.items():
            if path.is_dir():
                shutil.copytree(path, made / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, made / name)


def _with_absolute_paths(value: Any, found: list[str]) -> Any:
    """Return a table of a recipe in which files and folders have absolute paths, and add these to `found`."""
    if isinstance(value, dict):
        return {key: _with_absolute_paths(inner, found) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_absolute_paths(inner, found) for inner in value]
    if not isinstance(value, str) or not value or "\n" in value or len(value) > MAX_PATH:
        return value
    path = Path(value).expanduser()
    if path.is_absolute() or not ("/" in value or path.suffix) or not (path.exists() or glob(value, recursive=True)):
        return value
    found.append(str(path.absolute()))
    return found[-1]


def _own_modules(table: Any, source: Path) -> dict[str, Path]:
    """Return the user's modules that a recipe names as `module:Name`, by their place below the exported folder."""
    found = {}
    own = {source.resolve().parent, Path.cwd()}
    for _, value in leaves(table):
        if isinstance(value, str) and (match := _OBJECT.fullmatch(value)):
            top = match[1].partition(".")[0]
            spec = importlib.util.find_spec(top)
            file = Path(spec.origin) if spec is not None and spec.origin else None
            if file is None:
                continue
            place = file.parent if file.name == "__init__.py" else file
            if place.parent.resolve() in own:
                found[place.name] = place
    return found
