"""What is different between two recipes, in the words of an override."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rewardsmith.recipe import toml


def changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Return each setting whose value differs between two tables as `{path: "old -> new"}`, in order of the paths."""
    old, new = (dict([*_leaves("", table), *_orders("", table)]) for table in (before, now))
    paths = [path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)]
    return {path: f"{_shown(old, path)} -> {_shown(new, path)}" for path in paths}


def _shown(settings: dict[str, Any], path: str) -> str:
    return toml(settings[path]) if path in settings else "not set"


def _orders(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the order of tables in which it counts: of several routes the first that fits is taken."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        where = f"{path}.{key}".lstrip(".")
        if key in ("parts", "routes") and isinstance(inner, dict):
            yield f"order of {where}", list(inner)
        yield from _orders(where, inner)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), inner)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, inner in enumerate(value):
            yield from _leaves(f"{path}.{i}", inner)
    else:
        yield path, value
