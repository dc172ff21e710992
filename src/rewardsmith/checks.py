"""What the nouns check of their fields, and how they make them immutable. Messages name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed; equal to a plain one, and as easily pickled or written as JSON."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping belongs to a frozen noun: make a new noun with dataclasses.replace()")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        """Pickle by value: the default protocol would call `__setitem__`."""
        return FrozenDict, (dict(self),)


def require(name: str, value: object, kind: type) -> None:
    """Raise a TypeError unless `value` is of that kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be {kind.__name__}")


def require_text(name: str, value: object, *, empty: bool = True) -> None:
    """Raise an error unless `value` is text that can be written as UTF-8 and, where `empty` is False, not empty."""
    require(name, value, str)
    assert isinstance(value, str)
    if not empty and not value:
        raise ValueError(f"{name} is empty")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} has a lone surrogate at character {error.start}: it is not Unicode") from None


def require_count(name: str, value: object, *, minimum: int) -> None:
    """Raise an error unless `value` is an int of at least `minimum` that fits 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be int")
    if not minimum <= value < 2**63:
        given = value if abs(value) < 2**64 else "too large"  # Python refuses to print integers of thousands of digits
        raise ValueError(f"{name} is {given}: it must be at least {minimum}, and fit 64 bits")


def finite(name: str, value: object) -> float:
    """Return `value` as a Python float; refuse anything that is not a finite number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: it must fit a float") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}: it must be finite; what cannot be scored is a Failure, not a number")
    return number


def tuple_of(name: str, values: object, kind: type) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple, after checking the kind of each entry."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} is of type {type(values).__name__}: it must be a list or tuple")
    for i, value in enumerate(values):
        require(f"{name}[{i}]", value, kind)
    return tuple(values)


def vector(name: str, values: ArrayLike, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a read-only one-dimensional copy of `values` in `dtype`, checked to hold the same finite numbers."""
    if isinstance(values, np.ndarray) and values.shape == (0,) and values.dtype == dtype:
        return values  # nothing in it can change
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} cannot be read as numbers: {error}") from None
    if given.size == 0:
        given = np.empty(0, dtype)
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {given.shape}: it must have one dimension")
    if given.dtype.kind not in "iuf" or (np.issubdtype(dtype, np.integer) and given.dtype.kind == "f"):
        raise TypeError(f"{name} has dtype {given.dtype}: it must convert to {np.dtype(dtype).name}")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        at = int(np.flatnonzero(~np.isfinite(given))[0])
        raise ValueError(f"{name}[{at}] is {given[at]}: it must be finite")
    with np.errstate(over="ignore"):
        array = given.astype(dtype, copy=True)
    exact = (array == given).all() if np.issubdtype(dtype, np.integer) else np.isfinite(array).all()
    if not exact:
        raise ValueError(f"{name} holds a value that does not fit {np.dtype(dtype).name}")
    array.flags.writeable = False
    return array


def flags(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    """Return a read-only one-dimensional copy of bools."""
    given = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype != np.bool_):
        raise ValueError(f"{name} has dtype {given.dtype} and shape {given.shape}: it must be a list of bools")
    array = given.astype(np.bool_, copy=True)
    array.flags.writeable = False
    return array


def unicode(text: str) -> str:
    """Return the text with anything that cannot be written as UTF-8 replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


_MAX_DEPTH = 64


def freeze(name: str, value: object, depth: int = 0) -> Any:
    """Return `value` as immutable JSON: None, bool, int, finite float, str, tuple, FrozenDict with string keys."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{name} is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str):
        require_text(name, value)
        return value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}: JSON has no such number; use None for a missing value")
        return value
    if isinstance(value, Mapping):
        for key in value:
            require_text(f"the key {key!r} of {name}", key)
        return FrozenDict({key: freeze(f"{name}.{key}", item, depth + 1) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value))
    raise TypeError(
        f"{name} is of type {type(value).__name__}: only JSON values are kept (None, bool, number, text, list, table)"
    )


def thawed(value: object) -> Any:
    """Return a frozen JSON value as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {name: thawed(inner) for name, inner in value.items()}
    return [thawed(inner) for inner in value] if isinstance(value, list | tuple) else value
