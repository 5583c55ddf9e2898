"""A chat template with the marks around a response, as a run stores it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Id = Annotated[int, Field(ge=0)]


class ChatForm(BaseModel):
    """A chat template, and the tokens and blanks around a response.

    The prompt is the rendered context and then the tokens ``lead``. Its last token is ``first``. The response
    is tokenized with the blanks ``before`` and ``after`` it, and ends in the token ``end``.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    template: str
    marks: dict[str, str]  # special tokens that the template may name, such as bos_token
    lead: Annotated[tuple[Id, ...], Field(strict=False)]
    first: Id
    end: Id
    before: str
    after: str
