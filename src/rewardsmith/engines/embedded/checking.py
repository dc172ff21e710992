"""What is wrong with a model as far as its files tell: found before any weights are loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from rewardsmith.engines.embedded import adapters, support
from rewardsmith.engines.embedded.chat import with_template
from rewardsmith.engines.embedded.loading import (
    HeadKind,
    check_weights,
    find_folder,
    is_tiny,
    place,
    read_config,
    read_tokenizer,
    require_chat_template,
)
from rewardsmith.engines.embedded.quiet import quiet
from rewardsmith.engines.embedded.tiny import tiny_config
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.errors import UserError


@dataclass(frozen=True)
class Outline:
    """A model without its weights.

    Attributes:
        name: in the recipe.
        tokenizer: how it reads text.
        max_length: the longest sequence that it reads.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    max_length: int


def check_model(settings: ModelSettings, name: str, *, chat: bool = True) -> Outline:
    """Look at everything of a model but its weights, of which the headers are read; a Hugging Face id is downloaded.

    Args:
        settings: of the model, which has an `init`.
        name: of the model in messages.
        chat: whether it must be able to render the messages of a prompt.

    Raises:
        UserError: there is no such model, it cannot be used here, or its files do not fit together.
    """
    try:
        return _checked(settings, name, chat)
    except UserError as error:
        message = str(error)
        if message.startswith("models."):
            raise
        names_setting = re.match(r"\w+ = ", message) is not None
        raise UserError(f"models.{name}{'.' if names_setting else ': '}{message}") from error


def _checked(settings: ModelSettings, name: str, chat: bool) -> Outline:
    init = settings.init
    assert init is not None
    place(settings.device, settings.dtype)
    if is_tiny(init):
        config, tokenizer = tiny_config(init)
    else:
        folder = find_folder(init)
        with quiet():
            config = read_config(init, folder, settings.head)
            check_weights(init, folder)
            tokenizer = read_tokenizer(init, folder, config)
    if settings.chat is not None:
        tokenizer = with_template(tokenizer, settings.chat, name)
    if chat:
        require_chat_template(tokenizer, init)
    if settings.lora is not None:
        _check_adapter(config, settings.head, settings.lora, name)
    return Outline(name, tokenizer, support.max_length(config))


def _check_adapter(config: PreTrainedConfig, head: HeadKind, lora: LoraSettings, name: str) -> None:
    """Attach the adapter to a model without weights: that finds its layers, and those that are not there."""
    adapters.check_trained(lora, f"models.{name}.lora")
    family = AutoModelForCausalLM if head == "language" else AutoModelForSequenceClassification
    with quiet(), torch.device("meta"):
        model = family.from_config(config)  # type: ignore[no-untyped-call]
    adapters.attach(model, lora.model_copy(update={"init": None}), name)
