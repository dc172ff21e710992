"""How long three paths through the code are: files, functions and frames.

    python benchmarks/walks.py

It runs the real commands in this process and counts only functions of this package.

- policy step: functions and files that one step of a policy stage calls, from `PolicyTrainer.step` to its return.
- score: functions and files of `rewardsmith score` with a rule, after the imports; and the frames between the function
  `score` and the hand-over of a rollout to a worker process.
- rubric verdict: frames, and their files, between the function `score` and the HTTP request to the judge.
  A frame that started a task counts as well: it is on the path of a reader.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp

import rewardsmith
from rewardsmith.cli import main
from rewardsmith.rewards.pool import Pool
from rewardsmith.trainers.policy import PolicyTrainer

PACKAGE = f"{Path(rewardsmith.__file__).parent}/"
POLICY = """
[models.policy]
init = "tiny-llama"
device = "cpu"
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 2
prompts_per_step = 4
rollouts_per_prompt = 4
sampling = { max_tokens = 8 }
optimizer = { lr = 1e-4 }
reward = { type = "rule", rule = "arithmetic" }
"""
RULE = 'type = "rule"\nrule = "exact"\n'
RUBRIC = """
type = "rubric"
model = "judge"
[models.judge]
type = "server"
urls = ["http://127.0.0.1:PORT/v1"]
model = "judge"
"""
ROW = {
    "prompt": "What is 2 + 2?",
    "responses": ["4", "5"],
    "reward_model": {"ground_truth": "4"},
    "extra_info": {"criteria": "The answer is 4: 10 points."},
}

Place = tuple[str, str]


def in_package(frame: FrameType) -> bool:
    """Whether a frame is a function of the package."""
    return frame.f_code.co_filename.startswith(PACKAGE) and not frame.f_code.co_name.startswith("<")


def place(frame: FrameType) -> Place:
    """Return the file and the name of a frame's function."""
    return frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname


class Called:
    """The functions of the package that are called while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.functions: set[Place] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; a step of the policy switches the counting on and off."""
        if event == "call" and self.on and in_package(frame):
            self.functions.add(place(frame))

    @property
    def files(self) -> int:
        """How many files they are in."""
        return len({file for file, _ in self.functions})


@contextmanager
def profiled(called: Called) -> Iterator[None]:
    """Count in this thread."""
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def call(*arguments: str) -> None:
    """Run a command in this process."""
    before, sys.argv = sys.argv, ["rewardsmith", *arguments]
    try:
        with redirect_stdout(io.StringIO()):
            main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{arguments}: status {ended.code}") from None
    finally:
        sys.argv = before


class Paths:
    """The frames from the function `score` down to a call, through the tasks between them."""

    def __init__(self) -> None:
        self.found: list[list[Place]] = []
        self._of_task: dict[asyncio.Task[Any], list[Place]] = {}

    def factory(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Make a task, and remember from where."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._of_task[task] = self.here()
        return task

    def here(self) -> list[Place]:
        """Return the frames of the package above this place, outer ones first."""
        frames: list[Place] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.endswith("asyncio/events.py"):
            if in_package(frame):
                frames.append(place(frame))
            frame = frame.f_back
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return (self._of_task.get(task, []) if task else []) + frames[::-1]

    def note(self) -> None:
        """Keep the path from `score` to here."""
        path = self.here()
        starts = [i for i, (file, name) in enumerate(path) if name == "score" and file.startswith("rewards/")]
        if starts:
            self.found.append(path[starts[0] :])


@contextmanager
def patched(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Replace an attribute."""
    before = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, before)


def noting(function: Callable[..., Any], paths: Paths) -> Callable[..., Any]:
    """Return a function that notes from where it is called."""

    def noted(*arguments: Any, **options: Any) -> Any:
        paths.note()
        return function(*arguments, **options)

    return noted


def policy_step(folder: Path) -> Called:
    """Return what the second step of a policy stage calls; the first one also imports."""
    recipe = folder / "policy.toml"
    recipe.write_text(POLICY)
    called, step = Called(), PolicyTrainer.step

    async def counted(self: Any, number: int) -> Any:
        called.on = number == 2
        try:
            return await step(self, number)
        finally:
            called.on = False

    with patched(PolicyTrainer, "step", counted), profiled(called):
        call("run", str(recipe), "--folder", str(folder / "run"))
    return called


def score(folder: Path, reward: str) -> tuple[Called, Paths]:
    """Return what `rewardsmith score` calls, and the paths to a worker or to a server."""
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "reward.toml").write_text(f'cache = ""\n{reward}')
    arguments = ("score", str(folder / "rows.jsonl"), "--reward", str(folder / "reward.toml"), "--json")
    call(*arguments)  # the imports
    called, paths = Called(), Paths()
    called.on = True
    new_loop = asyncio.new_event_loop

    def with_factory() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        loop.set_task_factory(paths.factory)  # type: ignore[arg-type]
        return loop

    request = aiohttp.ClientSession._request
    with ExitStack() as stack:
        stack.enter_context(patched(asyncio.events, "new_event_loop", with_factory))
        stack.enter_context(patched(aiohttp.ClientSession, "_request", noting(request, paths)))
        stack.enter_context(patched(Pool, "score", noting(Pool.score, paths)))
        stack.enter_context(profiled(called))
        call(*arguments)
    return called, paths


class Judge(BaseHTTPRequestHandler):
    """A judge that gives every response all points."""

    def do_GET(self) -> None:
        """Name the model."""
        self._reply({"object": "list", "data": [{"id": "judge", "object": "model"}]})

    def do_POST(self) -> None:
        """Grade."""
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "The answer is right.\nTotal Score: 10/10"}
        self._reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}})

    def _reply(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def walk() -> None:
    """Print the three walks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step = policy_step(folder)
        called, to_worker = score(folder, RULE)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _, to_server = score(folder, RUBRIC.replace("PORT", str(server.server_port)))
        server.shutdown()
    rule, verdict = to_worker.found[0], to_server.found[-1]
    print(f"policy step:    {len(step.functions)} functions in {step.files} files")
    print(f"score:          {len(called.functions)} functions in {called.files} files; a rule after {len(rule)} frames")
    print(f"rubric verdict: {len(verdict)} frames in {len({file for file, _ in verdict})} files")
    if "--verbose" in sys.argv:
        for title, path in (("rule", rule), ("rubric verdict", verdict)):
            print(f"\n{title}")
            for file, function in path:
                print(f"  {file}: {function}")


if __name__ == "__main__":
    walk()
