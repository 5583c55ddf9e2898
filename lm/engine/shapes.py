"""Modules on the meta device, to count parameters without memory or random numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lm.errors import ConfigError


class _Uninitialised(TorchFunctionMode):
    """Skips ``torch.nn.init``, because a random fill on the meta device makes torch load its compiler."""

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
    """Context in which new tensors and modules are on the meta device, without initialisation.

    Raises ConfigError for tensors with more entries than torch can count.
    """
    try:
        with torch.device("meta"), _Uninitialised():
            yield
    except (OverflowError, RuntimeError, TypeError) as error:
        if not isinstance(error, OverflowError) and "overflow" not in str(error).lower():
            raise
        raise ConfigError("model sizes overflow; reduce the largest one") from error
