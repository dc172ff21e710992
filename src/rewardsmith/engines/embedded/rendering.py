"""Chat templates are programs from a model folder: they are rendered within a limit of time and size.

A template is first probed in a process that can be killed (`template_probe.py`), once for each template. While prompts
are rendered, a thread looks at the clock.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rewardsmith.engines.embedded.bounds import MAX_TEMPLATE
from rewardsmith.engines.embedded.template_probe import EXTRA, FACTOR, MEMORY, SIZE
from rewardsmith.errors import UserError

LIMIT = 20.0
"""Seconds in which one conversation must be rendered."""

PROBE_SECONDS, PROBE_MEMORY = 10, 1 << 30
"""Seconds of a processor, and bytes, for the few conversations of the probe."""

_LOOK = 0.5
_WAIT = 120.0


def require_bounded_template(
    tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], where: str, *, known: Collection[str] = ()
) -> None:
    """Raise a `UserError` if the chat template does not end, or makes far too much of a short conversation.

    Args:
        tokenizer: of the model; without a template nothing is done.
        arguments: of the chat template.
        where: the setting, for the message.
        known: templates of our own.
    """
    found = tokenizer.chat_template
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    for template in found.values() if isinstance(found, dict) else [found]:
        if (
            template
            and template not in known
            and (wrong := _wrong(str(template), json.dumps({**special, **arguments}, sort_keys=True)))
        ):
            raise UserError(f"{where}: the chat template {wrong}. Name another one with chat, or correct the template")


@cache
def _wrong(template: str, arguments: str) -> str:
    """Return what is wrong with a template, "" if nothing is."""
    if len(template) > MAX_TEMPLATE:
        return f"has more than {MAX_TEMPLATE:,} characters"
    program = str(Path(__file__).with_name("template_probe.py"))
    command = [sys.executable, "-P", program, str(PROBE_SECONDS), str(PROBE_MEMORY), *filter(None, sys.path)]
    task = json.dumps({"template": template, "arguments": json.loads(arguments)})
    try:
        done = subprocess.run(command, input=task, capture_output=True, text=True, timeout=_WAIT, check=False)
    except subprocess.TimeoutExpired:
        return f"takes longer than {_WAIT:g} s"
    few = "for a few short conversations"
    reasons = {
        0: "",
        MEMORY: f"needs more than {PROBE_MEMORY >> 30} GiB {few}",
        SIZE: "makes more than a million characters of a few short messages",
    }
    killed = f"takes longer than {PROBE_SECONDS} s {few}"
    other = killed if done.returncode < 0 else f"could not be tried out ({done.stderr.strip()[-300:]})"
    return reasons.get(done.returncode, other)


def rendered(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], *, prompt: bool, **arguments: Any
) -> str:
    """Return a conversation as the chat template writes it.

    Args:
        tokenizer: with the template.
        messages: the conversation.
        prompt: whether an answer follows.
        **arguments: of the template.

    Raises:
        ValueError: it took too long, or became too long; and whatever the template raises.
    """
    text = str(
        _watch.limited(
            lambda: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **arguments)
        )
    )
    limit = EXTRA + FACTOR * sum(len(message["content"]) for message in messages)
    if len(text) > limit:
        raise ValueError(f"it made {len(text):,} characters of the messages, more than {limit:,}")
    return text


class _TooSlow(BaseException):
    """Raised in a thread that renders for too long."""


class _Watch:
    """Ends what takes too long, by an exception in its thread; one look at a dictionary for what does not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[int, float] = {}
        self._work = threading.Event()
        self._thread: threading.Thread | None = None

    def limited(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns; raise a `ValueError` if it takes longer than `LIMIT` seconds."""
        thread = threading.get_ident()
        with self._lock:
            self._due[thread] = time.monotonic() + LIMIT
            if self._thread is None or not self._thread.is_alive():  # first, or in a forked process
                self._thread = threading.Thread(target=self._run, daemon=True, name="rewardsmith-templates")
                self._thread.start()
            self._work.set()
        try:
            try:
                return work()
            finally:
                with self._lock:
                    late = self._due.pop(thread, None) is None
                if late:  # the exception is raised, or about to be
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
                    raise _TooSlow
        except _TooSlow:
            raise ValueError(f"it took longer than {LIMIT:g} s") from None

    def _run(self) -> None:
        while True:
            self._work.wait()
            time.sleep(min(_LOOK, LIMIT / 4))
            with self._lock:
                now = time.monotonic()
                for thread in [thread for thread, due in self._due.items() if due < now]:
                    del self._due[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooSlow))
                if not self._due:
                    self._work.clear()


_watch = _Watch()

__all__ = ["rendered", "require_bounded_template"]
