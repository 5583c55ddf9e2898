"""Failures of requests, as the API reports them: an HTTP status and an error object."""

from typing import Any

from lm.errors import visible

_LONGEST = 80  # characters of a client's text in a message


class ApiError(Exception):
    """A request that gets an error object instead of an answer; ``code`` is the API's name of the fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """The error object."""
        if self.status == 429:
            kind = "rate_limit_error"
        else:
            kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }


def wrong_value(param: str, problem: str) -> ApiError:
    """The failure of a request by the value of a parameter."""
    return ApiError(400, f"{param}: {problem}", param=param)


def quoted(text: object, most: int = _LONGEST) -> str:
    """A text of the client for a message: without control characters, and cut."""
    safe = visible(text)
    return safe if len(safe) <= most else f"{safe[:most]}…"
