"""Text to tokens and back for one model: its tokenizer under its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.embedded import chat_template
from rewardsmith.engines.embedded.token_offsets import TokenOffsets
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation, ModelCallError
from rewardsmith.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED_PROMPTS = 4_096  # whose tokens are kept: drawing, generating and learning encode the same ones


class ModelText:
    """The half of an engine that needs no weights."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: ModelSettings, name: str) -> None:
        self.name = name
        self.settings = settings
        self.tokenizer = chat_template.with_chat_template(tokenizer, settings, name)
        chat_template.require_bounded_template(self.tokenizer, settings, name)
        self.padding: int | None = self.tokenizer.pad_token_id  # skipped at the end of a conversation
        self.offsets = TokenOffsets(self.tokenizer)
        self._escape = chat_template.special_token_escaper(self.tokenizer)
        self._end = chat_template.end_token(self.tokenizer, settings.template)
        self._prompts: dict[tuple[tuple[str, str], ...], NDArray[np.int32]] = {}

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Token to id."""
        return self.tokenizer.get_vocab()

    def require_chat_template(self) -> None:
        """Raise a `UserError` unless the model can render messages."""
        chat_template.require_chat_template(self.tokenizer, self.settings.init or self.name)

    def encode(self, prompt: Prompt) -> NDArray[np.int32]:
        """Return the prompt under the chat template, up to where the response begins; recent prompts are cached."""
        key = tuple((message.role, message.content) for message in prompt.messages)
        tokens = self._prompts.pop(key, None)
        if tokens is None:
            self.require_chat_template()
            try:
                tokens = self._render(prompt.messages, generation_prompt=True)
            except Exception as error:  # noqa: BLE001 a template is a program: it may refuse in any way
                message = f"the chat template of {self.name} cannot render prompt {prompt.id!r}: {error}"
                raise UserError(message) from None
            tokens.flags.writeable = False
            if len(self._prompts) >= CACHED_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
        self._prompts[key] = tokens  # the most recent one is last
        return tokens

    def encode_response(self, text: str) -> NDArray[np.int32]:
        """Return a response as the model would generate it, with the token that ends it under its chat template."""
        return np.append(self.encode_text(text), np.int32(self._end))

    def encode_conversation(self, conversation: Conversation) -> NDArray[np.int32]:
        """Return a conversation up to the token at which a scalar head is read: the last one that is not padding."""
        try:
            tokens = self._render(self._escape(conversation), generation_prompt=False)
        except Exception as error:  # noqa: BLE001 a template is a program: it may refuse in any way
            message = f"the chat template of {self.name} cannot render it: {error}"
            raise ModelCallError("refused", message) from None
        words = np.flatnonzero(tokens != (-1 if self.padding is None else self.padding))
        return tokens[: int(words.max(initial=0)) + 1]

    def encode_text(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text without the chat template."""
        return np.array(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int32)

    def _render(self, messages: Sequence[Message], *, generation_prompt: bool) -> NDArray[np.int32]:
        template = self.settings.template
        text = chat_template.render_chat(self.tokenizer, messages, template, generation_prompt=generation_prompt)
        return self.encode_text(text)

    def require_room(self, prompt: Prompt, length: int, max_tokens: int, max_length: int) -> None:
        """Raise a `UserError` unless a prompt of this length and its answer fit the model."""
        if length == 0:
            raise UserError(f"prompt {prompt.id!r} has no tokens: there is nothing to answer")
        if length + max_tokens > max_length:
            raise UserError(
                f"prompt {prompt.id!r} has {length} tokens and max_tokens is {max_tokens}: together more than the"
                f" {max_length} positions of {self.name}. Lower max_tokens, or set max_prompt_tokens"
            )
