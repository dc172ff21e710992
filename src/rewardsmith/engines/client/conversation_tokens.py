"""Conversations as tokens, for servers that apply no chat template to them.

SGLang's `POST /classify` takes `input_ids`, or text, to which special tokens of the template would be added again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rewardsmith.engines.model_settings import ClientSettings, ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation

if TYPE_CHECKING:
    from rewardsmith.engines.embedded.model_text import ModelText


class ConversationTokens:
    """Renders conversations as the tokens of a reward model; its tokenizer is loaded for the first one."""

    def __init__(self, settings: ClientSettings, model: str | None, name: str) -> None:
        self._init, self._name = settings.tokenizer or model, name
        self._text: ModelText | None = None

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the tokens of a conversation; `ModelCallError` if the chat template refuses it."""
        if self._text is None:
            self._text = self._load()
        tokens: list[int] = self._text.encode_conversation(conversation).tolist()
        return tokens

    def _load(self) -> ModelText:
        from rewardsmith.engines.embedded.model_files import ModelFolder, quiet  # noqa: PLC0415 they import torch
        from rewardsmith.engines.embedded.model_text import ModelText  # noqa: PLC0415

        where = f"models.{self._name}.tokenizer"
        if self._init is None:
            raise UserError(f"{where} is not set: SGLang rates tokens; name the folder or the id of the reward model")
        try:
            folder = ModelFolder(self._init, weights=False)
            with quiet():
                text = ModelText(folder.tokenizer(folder.config("scalar")), ModelSettings(init=self._init), self._name)
            text.require_chat_template()
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return text
