"""A check, and functions that may be called only after it."""

from collections.abc import Callable
from typing import Any


class Watch:
    """Counts calls of watched functions, and fails where two of them have no check between."""

    def __init__(self) -> None:
        self.calls, self._checked = 0, False

    def check(self) -> None:
        self._checked = True

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert self._checked, f"{function.__name__}: no check after {self.calls} calls"
            self.calls, self._checked = self.calls + 1, False
            return function(*args, **kwargs)

        return call
