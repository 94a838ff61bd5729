"""Checks what callers give, and names the argument that is wrong. What may be a secret is not shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .limits import NAME_BYTES_MAX, SLOTS_MAX


def kind_of(value: object) -> str:
    """What a value is, for people."""
    return "None" if value is None else type(value).__name__


def instance(argument: str, value: object, of: type | tuple[type, ...], right: str) -> None:
    """A value of some type; `right` says which, for people.

    >>> instance("policy", "deadline", int, "a Policy, such as Policy.DEADLINE")
    Traceback (most recent call last):
    TypeError: policy must be a Policy, such as Policy.DEADLINE, not str
    """
    if not isinstance(value, of):
        raise TypeError(f"{argument} must be {right}, not {kind_of(value)}")


def function(argument: str, value: object, right: str) -> None:
    """Something that can be called."""
    if not callable(value):
        raise TypeError(f"{argument} must be {right}, not {kind_of(value)}")


def name(argument: str, value: str) -> str:
    """A name of something, as the server takes it.

    >>> name("key", 7)
    Traceback (most recent call last):
    TypeError: key must be a string, not int
    """
    instance(argument, value, str, "a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument} is not text that can be sent: {error.reason}") from error
    if not 1 <= size <= NAME_BYTES_MAX or value in (".", ".."):
        shown = value if size <= NAME_BYTES_MAX else value[:32] + "..."
        bounds = f"a name has 1 to {NAME_BYTES_MAX} bytes, and is not '.' or '..'"
        raise ValueError(f"{argument} is {shown!r}, which has {size} bytes: {bounds}")
    return value


def seconds(argument: str, value: float, is_right: Callable[[float], bool], right: str) -> None:
    """A number of seconds; `right` says which are right, for people.

    >>> seconds("ttl", "30s", lambda ttl: ttl >= 1, "1 or more seconds")
    Traceback (most recent call last):
    TypeError: ttl must be a number of seconds, not str: give 1 or more seconds
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{argument} must be a number of seconds, not {kind_of(value)}: give {right}")
    if not is_right(value):
        raise ValueError(f"{argument} is {value:g}: give {right}")


def timeout(value: float | None) -> None:
    """How long an acquire may wait."""
    if value is not None:
        right = "seconds, 0 to ask once, or None to wait for as long as it takes"
        seconds("timeout", value, lambda timeout: timeout >= 0, right)


def slots(value: int | None) -> None:
    """How many holders may share a resource, or none for an exclusive lease.

    >>> slots(0)
    Traceback (most recent call last):
    ValueError: slots is 0: give 1 to 1000 holders at once, or None for an exclusive lease
    """
    if value is not None:
        right = f"1 to {SLOTS_MAX} holders at once, or None for an exclusive lease"
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"slots must be a whole number, not {kind_of(value)}: give {right}")
        if not 1 <= value <= SLOTS_MAX:
            raise ValueError(f"slots is {value}: give {right}")


def slot(value: int | None) -> int:
    """A slot that a gate judges; 0 for an exclusive lease."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"slot must be a whole number, not {kind_of(value)}: give that of the guard")
    if not 1 <= value <= SLOTS_MAX:
        raise ValueError(f"slot is {value}: give that of the guard, 1 to {SLOTS_MAX}, or None for an exclusive lease")
    return value


def fields(argument: str, value: Mapping[str, Any] | None) -> None:
    """An object of JSON, or nothing."""
    if value is not None:
        instance(argument, value, Mapping, "a dict")
        for key in value:
            instance(f"a key of {argument}", key, str, "a string")
