"""Exceptions and their exit codes.

Every message is one line with the file, line or key at fault and a remedy. The command line prints only the
message, and a traceback only for our own bugs.
"""

import re
from collections.abc import Collection

_SURROGATE = re.compile("[\ud800-\udfff]")


class HighrankError(Exception):
    """A failure that the user can act on; ``exit_code`` is the exit code of the command line.

    Every class can be made from its message, as other processes do that are told of an error.
    """

    exit_code = 1
    reported = False  # True if another process of the same command prints the error

    def __init__(self, message: object) -> None:
        super().__init__(visible(message))


class ConfigError(HighrankError):
    """Usage or configuration: an unknown key, an ill-typed value, options that contradict each other."""

    exit_code = 2


class DataError(HighrankError):
    """A corpus that is missing, empty, undecodable or of the wrong layout."""

    exit_code = 3


class MisfitError(DataError):
    """A text that is too short for the values of the config's ``keys``."""

    def __init__(self, message: object, keys: Collection[str] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class StorageError(HighrankError):
    """A missing, unsuitable, corrupt or locked run, model or result; a full disk."""

    exit_code = 4


class RunMovedError(StorageError):
    """The folder of a run is no longer where its training began, and must not be written."""


class DivergenceError(HighrankError):
    """Non-finite numbers: of a training, even from its last good checkpoint, or of an analysed model."""

    exit_code = 5


class OutOfMemory(HighrankError):  # noqa: N818 (the name it has in the field)
    """Memory ran out. Saved files are intact, and the same command resumes with more memory."""

    exit_code = 6
    usual = (
        "out of memory: lower train.batch_size, the sizes of the model or the beam, or free some;"
        " what is saved stands"
    )

    def __init__(self, message: object = usual) -> None:
        super().__init__(message)


class WorkerError(HighrankError):
    """Another process of the same training or evaluation died, hangs, or has different results.

    The message names the rank.
    """

    exit_code = 7


class Interrupted(HighrankError):  # noqa: N818 (an ending, not an error: everything is saved)
    """A signal ended the command: training after saving, so that it can resume. Other commands at once."""

    exit_code = 75


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with ``message`` unless ``holds``."""
    if not holds:
        raise ConfigError(message)


def visible(value: object) -> str:
    """A path, name or text for a message, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def encodable(text: str) -> bool:
    """True if UTF-8 can encode a text, which then has no half of a surrogate pair."""
    return text.isascii() or _SURROGATE.search(text) is None


def brief(error: Exception) -> str:
    """The beginning of an error of another library, on one line, with unprintable characters escaped.

    The name of its class if it says nothing.
    """
    return visible(" ".join(str(error).split())[:160]) or type(error).__name__
