"""Typed results, and the only place that turns them into JSON.

A result is a frozen dataclass whose fields are the keys of the JSON object. A :data:`Merged` field gives its
own keys to the object. A field with the default None has no key if it is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
_MERGED = "merged"

Merged = Annotated[T, _MERGED]  # a field whose keys stand beside the other keys; none if it is None


def as_json(result: "DataclassInstance") -> dict[str, Any]:
    """The JSON object of a result."""
    found: dict[str, Any] = {}
    for key in fields(result):
        value = getattr(result, key.name)
        if _MERGED in getattr(key.type, "__metadata__", ()):
            found |= _plain(value) or {}
        elif value is not None or key.default is not None:
            found[key.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return as_json(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value
