"""A server in a thread that writes rubrics and grades, problems and solutions for it, and the commands."""

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewardsmith.engines.client.probes import QUESTIONS
from tests.command_line import Outcome, call
from tests.engines.faulty import FaultyServer, last_text

FENCED = r"## {}(?: \(.*?\))?\n\n(`{{3,}})\n(.*?)\n\1\n"


def rubric(**changes: Any) -> dict[str, Any]:
    """Return a rubric that has all that it must have."""
    parts = {
        "method": ("strategy", ["unverified-assumptions"], 2, "Names a method that can work, and says why it applies."),
        "steps": (
            "computation",
            ["irrelevant-errors"],
            3,
            "Every step follows from what stands before; each slip costs.",
        ),
        "whole": ("synthesis", ["miracle-steps", "over-generalisation"], 3, "No result appears without a derivation."),
        "end": ("conclusion", [], 2, "The final statement answers what was asked, in the form that was asked for."),
    }
    items = [
        {"name": name, "part": part, "checks": checks, "points": points, "text": text}
        for name, (part, checks, points, text) in parts.items()
    ]
    why = {"neglected-premises": "only whole numbers are added", "coincidence": "the numbers are all given"}
    return {"criteria": items, "not_applicable": why} | changes


def reply_to(body: dict[str, Any]) -> str:
    """Reply to a request for a rubric, or for a grade, as a pure function of the prompt."""
    prompt = str(body["messages"][0]["content"])
    if "You write the rubric" in prompt:
        return f"First I think about it.\n\n{json.dumps(rubric())}"
    if prompt in QUESTIONS:
        return "whatever"
    response = part_of(prompt, "Answer")
    return f"I looked at {len(response)} characters.\n\n**Total Score:** {true_points(response)}/10"


def part_of(prompt: str, section: str) -> str:
    """Return what stands between the fences of a section."""
    ((_, found),) = re.findall(FENCED.format(section), prompt, re.DOTALL)
    return str(found)


def true_points(response: str) -> int:
    """What the teacher thinks of a solution: a pure function of it."""
    return hashlib.sha256(response.encode()).digest()[0] % 11


class Serving:
    """A faulty server in a thread of its own, so that a whole command or run can call it."""

    def __init__(self, reply: Callable[[dict[str, Any]], str] = reply_to) -> None:
        self.server = FaultyServer(say=reply)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    @property
    def prompts(self) -> list[str]:
        """The last message of every request so far; probes of the verdict cache are left out."""
        return [text for text in map(last_text, self.server.bodies) if text not in QUESTIONS]

    def __enter__(self) -> "Serving":
        self._thread.start()
        self.do(self.server.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


# ---- rows and commands ----------------------------------------------------------------------------------------------

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
