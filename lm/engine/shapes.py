"""Modules as shapes alone: what they hold is counted without memory, random numbers, or time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lm.errors import ConfigError


class _Uninitialised(TorchFunctionMode):
    """Leaves out ``torch.nn.init``: on the meta device, a random fill makes torch load its compiler."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == torch.nn.init.__name__:
            return given.get("tensor", args[0] if args else None)
        return func(*args, **given)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside, new tensors and modules are on the meta device, and modules are not initialised.

    ConfigError for tensors of more entries than torch can count.
    """
    try:
        with torch.device("meta"), _Uninitialised():
            yield
    except (OverflowError, RuntimeError, TypeError) as error:
        if not isinstance(error, OverflowError) and "overflow" not in str(error).lower():
            raise
        raise ConfigError("the sizes of the model are beyond all counting; lower the largest") from error
