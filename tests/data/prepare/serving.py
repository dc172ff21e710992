"""A server in a thread that writes rubrics and grades, for commands that run in this process or in another."""

import asyncio
import hashlib
import json
import re
import threading
from typing import Any

from rewardsmith.engines.client.probes import QUESTIONS
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


def wrote(body: dict[str, Any]) -> str:
    """Answer a request for a rubric, or for a grade, as a pure function of what was asked."""
    asked = str(body["messages"][0]["content"])
    if "You write the rubric" in asked:
        return f"First I think about it.\n\n{json.dumps(rubric())}"
    if asked in QUESTIONS:
        return "whatever"
    return graded(part_of(asked, "Answer"))


def part_of(asked: str, section: str) -> str:
    """Return what stands between the fences of a section."""
    ((_, found),) = re.findall(FENCED.format(section), asked, re.DOTALL)
    return str(found)


def true_points(response: str) -> int:
    """What the teacher thinks of a solution: a pure function of it."""
    return hashlib.sha256(response.encode()).digest()[0] % 11


def graded(response: str) -> str:
    """Return the teacher's analysis of a solution."""
    return f"I looked at {len(response)} characters.\n\n**Total Score:** {true_points(response)}/10"


class Serving:
    """A faulty server in a thread of its own."""

    def __init__(self) -> None:
        self.server = FaultyServer(say=wrote)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    @property
    def asked(self) -> list[str]:
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
