"""Chat templates: which one is used, how it is rendered, and the token that ends a response under it.

A template is a program from a model folder. It is tried out in a process with limits (`template_probe.py`), once for
each template; later renderings have limits of time, in the main thread, and of length.
"""

from __future__ import annotations

import copy
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rewardsmith.engines.embedded.template_probe import EXTRA, FACTOR, MEMORY, SIZE
from rewardsmith.engines.embedded.tiny import TINY_TEMPLATE
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.types import Message

CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
"""The format that many base models have been trained on a little; their vocabulary then has its two tokens."""

MAX_TEMPLATE = 200_000  # characters of a chat template
RENDER_SECONDS = 20.0  # time limit for rendering one conversation
PROBE_SECONDS, PROBE_MEMORY = 10, 1 << 30  # CPU seconds, and bytes, for the few conversations of the probe
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_PROBE_WAIT = 120.0
_ANSWER = "Qzx"  # no template contains this


def with_chat_template(
    tokenizer: PreTrainedTokenizerBase, settings: ModelSettings, model: str
) -> PreTrainedTokenizerBase:
    """Return the tokenizer with the chat template that the settings name, if they do; the given one is not changed."""
    if settings.chat is None:
        return tokenizer
    chat, where = settings.chat, f'models.{model}: chat = "{settings.chat}"'
    if chat == "chatml":
        template = CHATML
        if missing := set(_CHATML_TOKENS) - set(tokenizer.get_vocab()):
            raise UserError(
                f"{where} needs the token {listing(missing)}, which the vocabulary does not have. Leave chat out to use"
                " the model's own template, or name a Jinja file"
            )
    else:
        try:
            template = Path(chat).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            hint = f"{nearest(chat, ['chatml'])} Known: chatml, or the path of a Jinja file"
            raise UserError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error}).{hint}") from None
        if not template.strip() or len(template) > MAX_TEMPLATE:
            raise UserError(f"{where} is empty, or longer than {MAX_TEMPLATE:,} characters: it is no chat template")
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def require_chat_template(tokenizer: PreTrainedTokenizerBase, init: str) -> None:
    """Raise a `UserError` unless the tokenizer of the model `init` can render a chat."""
    if not tokenizer.chat_template:
        raise UserError(
            f'init = "{init}": the tokenizer has no chat template, so it cannot render the messages of a prompt. Use'
            ' the instruction-tuned variant, set chat = "chatml", or put a chat_template.jinja there'
        )


# ---- hostile templates -----------------------------------------------------------------------------------------------


def require_bounded_template(tokenizer: PreTrainedTokenizerBase, settings: ModelSettings, model: str) -> None:
    """Raise a `UserError` if the chat template does not end, or renders far too much text."""
    where = f'models.{model}: chat = "{settings.chat}"' if settings.chat else f'init = "{settings.init or model}"'
    templates = tokenizer.chat_template
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        if not template or template in (CHATML, TINY_TEMPLATE):
            continue
        problem = _probe(str(template), json.dumps({**special, **settings.template}, sort_keys=True))
        if problem:
            raise UserError(
                f"{where}: the chat template {problem} for a few short messages: name another one with chat"
            )


@cache
def _probe(template: str, arguments: str) -> str:
    """Return what is wrong with a template, "" if nothing is."""
    if len(template) > MAX_TEMPLATE:
        return f"has more than {MAX_TEMPLATE:,} characters"
    program = str(Path(__file__).with_name("template_probe.py"))
    command = [sys.executable, "-P", program, str(PROBE_SECONDS), str(PROBE_MEMORY), *filter(None, sys.path)]
    task = json.dumps({"template": template, "arguments": json.loads(arguments)})
    try:
        done = subprocess.run(command, input=task, capture_output=True, text=True, timeout=_PROBE_WAIT, check=False)
    except subprocess.TimeoutExpired:
        return f"takes longer than {_PROBE_WAIT:g} s"
    if done.returncode < 0:
        return f"takes longer than {PROBE_SECONDS} s"
    limits = {0: "", MEMORY: f"needs more than {PROBE_MEMORY >> 30} GiB", SIZE: "renders over a million characters"}
    return limits.get(done.returncode, f"could not be tried out ({done.stderr.strip()[-300:]})")


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    arguments: Mapping[str, Any],
    *,
    generation_prompt: bool,
) -> str:
    """Return a conversation under the chat template; `ValueError` beyond the limits, or what the template raises."""
    table = [{"role": message.role, "content": message.content} for message in messages]
    options = {"tokenize": False, "add_generation_prompt": generation_prompt, **arguments}
    with _time_limit():
        text = str(tokenizer.apply_chat_template(table, **options))
    limit = EXTRA + FACTOR * sum(len(message.content) for message in messages)
    if len(text) > limit:
        raise ValueError(f"it rendered {len(text):,} characters, more than {limit:,}")
    return text


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise a `ValueError` after `RENDER_SECONDS`; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: object) -> None:
        raise ValueError(f"it took longer than {RENDER_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, RENDER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- special tokens --------------------------------------------------------------------------------------------------


def special_token_escaper(tokenizer: Any) -> Callable[[Sequence[Message]], list[Message]]:
    """Return a function that breaks special tokens inside messages with a space: they stay text."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    names = sorted({*added, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def escape_text(text: str) -> str:
        return pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)

    def escape(messages: Sequence[Message]) -> list[Message]:
        return [Message(escape_text(message.role), escape_text(message.content)) for message in messages]

    return escape


def end_token(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> int:
    """Return the token that ends a response: what the chat template puts after it (`<|im_end|>`), else end of text."""
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | {*tokenizer.all_special_ids}
    end: int = tokenizer.eos_token_id
    return next((i for i in _tokens_after_answer(tokenizer, arguments) if i in special), end)


def may_end_with(tokenizer: PreTrainedTokenizerBase, token: int, arguments: Mapping[str, Any]) -> bool:
    """Whether a conversation that ends with a response may end with this special token."""
    after = _tokens_after_answer(tokenizer, arguments)
    return token == (after[-1] if after else tokenizer.eos_token_id)


def _tokens_after_answer(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> list[int]:
    """Return the tokens that the chat template puts after a response; none where it cannot render one."""
    if not tokenizer.chat_template:
        return []
    chat = [Message("user", "?"), Message("assistant", _ANSWER)]
    try:
        text = render_chat(tokenizer, chat, arguments, generation_prompt=False)
    except Exception:  # noqa: BLE001 a template is a program: the error is reported with the first real prompt
        return []
    _, found, after = text.rpartition(_ANSWER)
    ids: list[int] = tokenizer(after, add_special_tokens=False)["input_ids"] if found else []
    return ids
