"""What was asked of models: added up over the starts of a run, and told in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

from rewardsmith.llm import Usage


def added(before: Mapping[str, Usage], now: Mapping[str, Usage]) -> dict[str, Usage]:
    """Return the sums by model; a model that nothing was asked of is left out."""
    sums = {}
    for name in dict.fromkeys([*before, *now]):
        one, other = before.get(name, Usage()), now.get(name, Usage())
        sums[name] = Usage(*(getattr(one, field.name) + getattr(other, field.name) for field in fields(Usage)))
    return {name: used for name, used in sums.items() if any(asdict(used).values())}


def told(used: Usage) -> str:
    """Return the line for people: calls, what needed none, what went wrong, tokens, cost."""
    parts = [f"{used.calls:,} call{'' if used.calls == 1 else 's'}"]
    parts += [f"{used.cached:,} answer{'' if used.cached == 1 else 's'} from the cache"] if used.cached else []
    parts += [f"{used.retries:,} {'retry' if used.retries == 1 else 'retries'}"] if used.retries else []
    parts += [f"{used.failed:,} failed"] if used.failed else []
    if used.prompt_tokens or used.tokens:  # not known of numbers and vectors
        parts.append(f"{used.prompt_tokens:,} tokens read and {used.tokens:,} written")
    parts += [f"cost {used.cost:.4g}"] if used.cost else []
    return ", ".join(parts)
