"""Foreign text inside a prompt: quoted in one pass, in a fence that it cannot close.

A judge reads what a policy wrote. That text is hostile: it may hold placeholders, fences, headers, its own verdict, or
the tokens that separate the turns of a chat. `quote` puts it between fences longer than any run of backticks in it
and breaks the role tokens, so that it can change nothing but itself. `fill` replaces all placeholders at once, so that
a placeholder inside a value stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

LONGEST_FENCE = 32
"""Backticks. A longer run inside a text is broken by spaces: no judge counts to a thousand."""

# The tokens by which the common chat templates tell turns apart. Written with a space they are plain text.
_ROLES = re.compile(
    r"[<＜](?=[|｜][^<>＜＞\n]{1,64}[>＞])"  # <|im_start|>, <|eot_id|>, <｜User｜>, <|turn>
    r"|[<＜](?=[^<>＜＞\s]{1,64}[|｜][>＞])"  # <turn|>
    r"|\[(?=[|｜][^\[\]\n]{1,64}[|｜]\])"  # [|user|]
    r"|[<＜](?=/?(?:s|bos|eos|pad|unk|sop|eop|eoh|eoa|start_of_turn|end_of_turn|turn|think|thinking|thought|answer"
    r"|tool_call|tool_response|seed:[a-z_]{1,32}|extra_id_[0-9]{1,4}|reserved_[0-9]{1,4}|special_[0-9]{1,4})\s*[>＞])"
    r"|<(?=</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|THINK"
    r"|MODEL_SETTINGS|gMASK|CLS|SEP|MASK|PAD|UNK)\])"
    r"|\](?=~!?b[\[\]])|\[(?=e~\[)",  # ]~b], [e~[
    re.IGNORECASE,
)
_BACKTICKS = re.compile(r"`+")
_TOO_LONG = re.compile(rf"`{{{LONGEST_FENCE - 1}}}(?=`)")


def harmless(text: str) -> str:
    """Return the text with its role tokens broken by a space: `<|im_end|>` becomes `< |im_end|>`."""
    return _ROLES.sub(lambda match: match.group() + " ", text)


def shortened(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters as it is; of a longer one the two ends, and how much is missing."""
    if len(text) <= longest:
        return text
    head, tail = text[: longest - longest // 2], text[len(text) - longest // 2 :]
    return f"{head}\n[… {len(text) - longest} characters are left out here …]\n{tail}"


def quote(text: str, longest: int | None = None) -> str:
    """Return the text between two fences that it does not contain, its role tokens broken.

    Args:
        text: what another wrote.
        longest: characters that are shown; of a longer text the middle is left out. None shows all.
    """
    inside = harmless(text if longest is None else shortened(text, longest))
    inside = _TOO_LONG.sub(lambda match: match.group() + " ", inside)
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(inside)), default=0))
    return f"{fence}\n{inside}\n{fence}"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every `{{name}}` of a template in one pass; what the values hold is not looked at again.

    Raises:
        KeyError: a placeholder has no value.
    """
    return PLACEHOLDER.sub(lambda match: values[match.group(1)], template)


__all__ = ["LONGEST_FENCE", "PLACEHOLDER", "fill", "harmless", "quote", "shortened"]
