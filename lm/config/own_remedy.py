"""Mistakes in configs that name the best remedy themselves. The module does not import pydantic."""


class OwnRemedyError(ValueError):
    """A mistake in a config whose own remedy, after a semicolon, is better than defaults of other keys.

    ``for_key`` is the remedy if the key that the message begins with was given.
    """

    def __init__(self, message: str, for_key: str = "") -> None:
        super().__init__(message)
        self.for_key = for_key
