"""Foreign text inside a prompt: quoted in one pass, in a fence that it cannot close.

`quote` puts hostile text between fences longer than any run of backticks in it and breaks role tokens, so that it can
change nothing but itself. `fill` replaces all placeholders at once, so that one inside a value stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

MAX_FENCE = 32
"""Backticks. A longer run inside a text is broken by spaces: no judge counts to a thousand."""

# The tokens by which the common chat templates separate messages. Written with a space they are ordinary text.
_LT, _GT, _BAR, _OPEN = "[<＜﹤]", "[>＞﹥]", "[|｜]", r"[\[［]"
# Names in angle brackets, in any case: whole, or as one of several parts with underscores between them.
_NAMES = (
    r"s|bos|eos|pad|unk|cls|sep|mask|sop|eop|eoh|eoa|eod|sys|end|escape|role|system|user|assistant|human|bot|turn|think|thinking"
    r"|thought|answer|startoftext|endoftext|(?:unused|dummy|ctrl)[0-9]{1,6}|mask:[0-9]{1,4}|seed:[a-z_]{1,32}"
)
_PARTS = (
    r"start|begin|beginning|end|of|turn|sentence|utterance|text|role|system|user|assistant|human|bot|token|bos|eos|pad"
    r"|unk|think|tool|function|call|image|audio|video|longcat|fim|issue|commit|unused|reserved|special|extra|never|arg|sys|usr"
)
# Names in square brackets, as they are spelled: x[mask] is code.
_BRACKETED = (
    r"INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|THINK|MODEL_SETTINGS|gMASK"
    r"|CLS|SEP|MASK|PAD|UNK|BOS|EOS|EOT|@BOS@|IMG|IMG_BREAK|IMG_END|PREFIX|MIDDLE|SUFFIX|AUDIO|BEGIN_AUDIO|multimodal"
    r"|UNUSED_TOKEN_[0-9]{1,6}|(?:start|end)_header_id|extra_id_[0-9]{1,4}"
)
_TAGS = (
    rf"{_BAR}[^\n]{{1,64}}{_GT}"  # <|im_start|>, <|eot_id|>, <｜User｜>, <|turn>
    rf"|[^\s]{{1,64}}{_BAR}{_GT}"  # <turn|>
    rf"|/?(?:{_NAMES})\s{{0,64}}{_GT}"  # <eos>, </role>
    rf"|/?(?:[a-z0-9]{{0,24}}_){{1,6}}(?:{_PARTS})[0-9]{{0,6}}(?:_[a-z0-9]{{1,24}}){{0,6}}\s{{0,64}}{_GT}"
    rf"|/?(?:{_PARTS})(?:_[a-z0-9]{{1,24}}){{1,6}}\s{{0,64}}{_GT}"  # <end_of_turn>
    rf"|\[[a-z0-9_]{{1,64}}\]{_GT}"  # <[PLHD1_never_used]>
)
_ROLES = re.compile(
    rf"{_LT}(?=[^<>＜＞﹤﹥]{{1,160}}+{_GT})(?={_TAGS})"  # most other text fails here at once
    r"|<(?=</?SYS>>)"
    rf"|{_OPEN}(?={_BAR}[^\[\]\n]{{1,64}}{_BAR}[\]］]|/?(?-i:{_BRACKETED})[\]］])"  # [|user|], [INST]
    r"|◁(?=[^\s◁▷][^◁▷\n]{0,64}▷)"  # ◁think▷
    r"|\](?=~!?b[\[\]])|\[(?=e~\[)",  # ]~b], [e~[
    re.IGNORECASE,
)
# All that is a backtick, or becomes one where a tokenizer normalizes its text.
_BACKTICKS = re.compile("[`\u1fef\uff40]+")
_TOO_LONG = re.compile(f"[`\u1fef\uff40]{{{MAX_FENCE - 1}}}(?=[`\u1fef\uff40])")


def harmless(text: str) -> str:
    """Return the text with its role tokens broken by a space: `<|im_end|>` becomes `< |im_end|>`."""
    return _ROLES.sub(lambda match: match.group() + " ", text)


def shortened(text: str, max_chars: int) -> str:
    """Return a text of at most `max_chars` characters as it is; of a longer one its two ends, and what is missing."""
    if len(text) <= max_chars:
        return text
    head, tail = text[: max_chars - max_chars // 2], text[len(text) - max_chars // 2 :]
    return f"{head}\n[… {len(text) - max_chars} characters are left out here …]\n{tail}"


def quote(text: str, max_chars: int | None = None) -> str:
    """Return the text between two fences that it does not contain, its role tokens broken, and shortened."""
    inside = harmless(text if max_chars is None else shortened(text, max_chars))
    inside = _TOO_LONG.sub(lambda match: match.group() + " ", inside)
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(inside)), default=0))
    return f"{fence}\n{inside}\n{fence}"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every `{{name}}` that has a value in one pass; what the values hold is not looked at again."""
    return PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group()), template)
