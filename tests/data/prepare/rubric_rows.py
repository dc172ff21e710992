"""Problems and solutions for the jobs that call a model, a file that names the server, and the commands."""

import json
from pathlib import Path
from typing import Any

from tests.command_line import Outcome, call
from tests.data.prepare.serving import Serving, rubric

CRITERIA = [{key: item[key] for key in ("name", "points", "text")} for item in rubric()["criteria"]]


def problems(count: int) -> list[dict[str, Any]]:
    """Return rows with problems."""
    return [
        {"id": f"p{i}", "prompt": f"How much is {i} + {i}?", "reward_model": {"ground_truth": str(2 * i)}}
        for i in range(count)
    ]


def solved(count: int, each: int = 4) -> list[dict[str, Any]]:
    """Return rows with problems, criteria and solutions."""
    return [
        {**row, "extra_info": {"criteria": CRITERIA}, "responses": [f"{i} + {i} is {2 * i + j}" for j in range(each)]}
        for i, row in enumerate(problems(count))
    ]


def models_file(folder: Path, serving: Serving, cache: str = "", **settings: Any) -> Path:
    """Write a file with the models of a server."""
    table = {"type": "server", "urls": [serving.server.url], "retries": 6, "backoff": 0.01} | settings
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    file = folder / "models.toml"
    file.write_text("\n".join([f'cache = "{cache}"', "[models.strong]", *lines]), encoding="utf-8")
    return file


def rubric_command(
    *arguments: str,
    out: str = "out.jsonl",
    source: str = "problems.jsonl",
    models: str = "models.toml",
    model: str = "strong",
) -> Outcome:
    return call("prepare", "rubric", source, out, *arguments, "--models", models, "--writer", model)


def graded_command(
    *arguments: str, out: str = "out.jsonl", source: str = "solved.jsonl", model: str = "strong"
) -> Outcome:
    return call("prepare", "graded", source, out, *arguments, "--models", "models.toml", "--teacher", model)
