"""Chat templates: the model's own, or another one that the recipe names; and the token that ends an answer under it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rewardsmith.engines.embedded.bounds import MAX_TEMPLATE
from rewardsmith.engines.embedded.rendering import rendered, require_bounded_template
from rewardsmith.engines.embedded.tiny import CHAT_TEMPLATE
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError, listing, nearest

CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
"""What most base models were shown some of; their vocabulary then has its two tokens."""

_TOKENS = {"chatml": ("<|im_start|>", "<|im_end|>")}
_BUILT_IN = {"chatml": CHATML}
_PROBE = "Qzx"  # no template says this of its own accord


def for_chat(tokenizer: PreTrainedTokenizerBase, settings: ModelSettings, model: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model with the chat template that its settings name, if they do.

    Args:
        tokenizer: of the model.
        settings: its table.
        model: its name in the recipe, for messages.

    Raises:
        UserError: there is no such template, or it cannot be used.
    """
    where = f'init = "{settings.init or model}"'
    if settings.chat is not None:
        where = f'models.{model}: chat = "{settings.chat}"'
        tokenizer = with_template(tokenizer, settings.chat, model)
    require_bounded_template(tokenizer, settings.template, where, known=(CHATML, CHAT_TEMPLATE))
    return tokenizer


def with_template(tokenizer: PreTrainedTokenizerBase, chat: str, model: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer with another chat template; the one that was given stays as it is.

    Args:
        tokenizer: of the model.
        chat: `chatml`, or the path of a Jinja file.
        model: its name in the recipe, for messages.

    Raises:
        UserError: there is no such file, or the vocabulary lacks what the template needs.
    """
    where = f'models.{model}: chat = "{chat}"'
    if chat in _BUILT_IN:
        known = tokenizer.get_vocab()
        lacking = [token for token in _TOKENS[chat] if token not in known]
        if lacking:
            raise UserError(
                f"{where} needs the token {listing(lacking)}, which the vocabulary has not: in pieces it could not end"
                " an answer. Leave chat out to use the model's own template, or name a Jinja file"
            )
        template = _BUILT_IN[chat]
    else:
        try:
            template = Path(chat).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            hint = f"{nearest(chat, _BUILT_IN)} Known: {listing(_BUILT_IN)}, or the path of a Jinja file"
            raise UserError(f"{where} cannot be read ({what}).{hint}") from None
        if not template.strip() or len(template) > MAX_TEMPLATE:
            raise UserError(f"{where} is empty, or longer than {MAX_TEMPLATE:,} characters: it is no chat template")
    made = copy.deepcopy(tokenizer)
    made.chat_template = template
    return made


def end_of_turn(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> int:
    """Return the token that ends an answer: what the chat template puts after it, else the end token.

    Of a model whose template ends a turn with a token of its own (`<|im_end|>`, `<end_of_turn>`) an answer that ends
    with the end of the text would look like nothing that it has seen, and servers would not stop where it stops.

    Args:
        tokenizer: with an end token.
        arguments: of the chat template.
    """
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | {*tokenizer.all_special_ids}
    end: int = tokenizer.eos_token_id
    return next((i for i in _after_answer(tokenizer, arguments) if i in special), end)


def may_end_with(tokenizer: PreTrainedTokenizerBase, token: int, arguments: Mapping[str, Any]) -> bool:
    """Whether a conversation that ends with an answer may end with this special token; inside an answer it is broken.

    Args:
        tokenizer: with an end token.
        token: its number.
        arguments: of the chat template.
    """
    after = _after_answer(tokenizer, arguments)
    return token == (after[-1] if after else tokenizer.eos_token_id)


def _after_answer(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> list[int]:
    """Return the tokens that the chat template puts after an answer; none where that cannot be seen."""
    if not tokenizer.chat_template:
        return []
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = rendered(tokenizer, chat, prompt=False, **arguments)
    except Exception:  # noqa: BLE001 a template is a program: who renders a real prompt is told what is wrong
        return []
    _, found, after = text.rpartition(_PROBE)
    ids: list[int] = tokenizer(after, add_special_tokens=False)["input_ids"] if found else []
    return ids
