"""A plug-in file: `rm_preprocess` makes the judge's prompts, `rm_postprocess` reads its answers.

    rm_preprocess(text_prompts, text_responses, tgt_tokenizer) -> list[str]
    rm_postprocess(results) -> list[float]

Both work on whole lists, in worker processes and with a deadline. Where one raises, hangs or ends its process, it is
called again with one entry at a time, so that one bad text fails alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, Halt
from rewardsmith.rewards.judges.hooks import too_late
from rewardsmith.rewards.judges.plugin_calls import POSTPROCESS, PREPROCESS
from rewardsmith.rewards.judges.together import settled
from rewardsmith.rewards.judges.tokenizers import load_tokenizer, require_tokenizer
from rewardsmith.rewards.pool import Call, shared
from rewardsmith.text.quoting import harmless

LOAD = 60.0
"""Seconds that a plug-in may take to be imported."""

LOAD_TOKENIZER = 300.0
"""Seconds for that and for its tokenizer, whose libraries are large."""


class PluginFile:
    """A plug-in file and the tokenizer that it is given.

    Args:
        path: of the file.
        tokenizer: folder or Hugging Face id of the judge's tokenizer; None gives the plug-in None.
        deadline: seconds for one call of a function of the file.
        memory: MiB for one call.

    Raises:
        UserError: the file cannot be loaded, or lacks one of the two functions; or there can be no such tokenizer.
    """

    def __init__(self, path: str, tokenizer: str | None, *, deadline: float, memory: int) -> None:
        file = Path(path).resolve()
        if not file.is_file():
            raise UserError(f"there is no plug-in {path!r}: give the path of a Python file")
        if tokenizer is not None:
            require_tokenizer(tokenizer)
        self._shown, self._path, self._tokenizer = path, str(file), tokenizer
        self._deadline, self._memory = deadline, memory
        self._version = _version(file)
        self._is_ready = tokenizer is None
        self._load(None)

    def _load(self, tokenizer: str | None) -> None:
        self._call = Call(self._path, {"tokenizer": tokenizer}, version=self._version, loader=f"{_CALLS}:load_plugin")
        try:
            shared().load_now(self._call, limit=LOAD if tokenizer is None else LOAD_TOKENIZER)
        except UserError as error:
            why = str(error).removeprefix(f"{self._path} cannot be loaded: ")
            raise UserError(f"the plug-in {self._shown!r} cannot be loaded ({why})") from None

    async def ready(self) -> None:
        """Load the tokenizer, once."""
        if not self._is_ready:
            assert self._tokenizer is not None
            if not os.path.isdir(os.path.expanduser(self._tokenizer)):  # a download may take longer than a worker may
                await asyncio.to_thread(load_tokenizer, self._tokenizer)
            await asyncio.to_thread(self._load, self._tokenizer)
            self._is_ready = True

    async def prompts(self, question: str, responses: Sequence[str]) -> list[str | Exception]:
        """Return the text that the judge continues, one for each response, or what was raised instead.

        The plug-in writes the turns of the chat itself, so the role tokens in a response are broken before.
        """
        made = await self._each(PREPROCESS, question, [harmless(response) for response in responses])
        return [self._explained(one) if isinstance(one, CannotScore) else one for one in made]

    def _explained(self, why: CannotScore) -> CannotScore:
        """Say what is missing where the plug-in wanted to use the tokenizer that it was not given.

        It gets None rather than something that explains itself: plug-ins ask whether it is None, and do without.
        """
        missed = str(why).startswith(("AttributeError: ", "TypeError: ")) and "'NoneType'" in str(why)
        if self._tokenizer is not None or not missed:
            return why
        return CannotScore(
            why.kind, f'{why}. The plug-in was given no tokenizer: tokenizer = "…" names that of the judge'
        )

    async def values(self, results: Sequence[str]) -> list[float | Exception]:
        """Return the value of each answer of the judge, or what was raised instead."""
        return await self._each(POSTPROCESS, "", list(results))

    async def _each(self, name: str, question: str, texts: list[str]) -> list[Any]:
        """Return what a function makes of each text, or a `CannotScore`."""
        if not texts:
            return []
        try:
            return await self._called(name, question, texts)
        except CannotScore as error:
            if len(texts) == 1:
                return [error]

        async def alone(text: str) -> Any:
            return (await self._called(name, question, [text]))[0]

        return await settled(alone, texts)

    async def _called(self, name: str, question: str, texts: list[str]) -> list[Any]:
        try:
            status, value = await shared().result(
                self._call, (name, question, texts), deadline=self._deadline, memory=self._memory
            )
        except CannotScore as error:
            raise too_late(name, self._deadline) if error.kind == "timeout" else error from None
        if status == "halt":
            raise Halt(value)
        return [one[0] if len(one) == 1 else CannotScore(*one) for one in value]


_CALLS = "rewardsmith.rewards.judges.plugin_calls"


def _version(file: Path) -> str:
    """Return what changes when a Python file of the folder does."""
    found = hashlib.sha256()
    for path in sorted(file.parent.glob("*.py")):
        try:
            there = path.stat()
        except OSError:
            continue
        found.update(f"{path.name}:{there.st_mtime_ns}:{there.st_size}\n".encode())
    return found.hexdigest()


__all__ = ["PluginFile"]
