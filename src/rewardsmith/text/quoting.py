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

# The tokens by which the common chat templates tell turns apart. Written with a space they are plain text.
_ROLES = re.compile(
    r"<(?=[|｜][^<>\n]{1,64}[|｜]>)"  # <|im_start|>, <|eot_id|>, <｜User｜>
    r"|<(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|turn|think|thinking|answer)\s*>)"
    r"|<(?=</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])",
    re.IGNORECASE,
)


def harmless(text: str) -> str:
    """Return the text with its role tokens broken by a space: `<|im_end|>` becomes `< |im_end|>`."""
    return _ROLES.sub(lambda match: match.group() + " ", text)


def quote(text: str) -> str:
    """Return the text between two fences that it does not contain, its role tokens broken."""
    inside = harmless(text)
    longest = max(map(len, re.findall(r"`+", inside)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{inside}\n{fence}"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every `{{name}}` of a template in one pass; what the values hold is not looked at again.

    Raises:
        KeyError: a placeholder has no value.
    """
    return PLACEHOLDER.sub(lambda match: values[match.group(1)], template)
