"""Base class of all tables of config files: strict types, and limits of sizes and numbers; their keys."""

from collections.abc import Collection, Container, Mapping, Sequence
from functools import cache
from typing import Annotated, ClassVar, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

MAX_SEED = 2**63 - 1  # the largest seed for both torch and NumPy
MAX_SIZE = 10_000_000  # of a vector, a batch, a list: above all models, and without overflow
MAX_LAYERS = 1000  # also of other parts that are built one by one
MAX_NUMBER = 1e30  # float32 holds it, with room for products
MIN_NUMBER = 1e-30  # of numbers other than 0, which float32 would take for 0
MAX_TEXT = 4096  # characters
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
LayerCount = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


_LIMITS = {  # of a number, in pydantic's words
    "gt": "greater than",
    "ge": "greater than or equal to",
    "lt": "less than",
    "le": "less than or equal to",
}


class Owner(NamedTuple):
    """A key and those of its values for which another key has an effect."""

    name: str  # in messages
    values: Container[object]
    off: tuple[object, ...] = ()  # values of the other key, besides its default, that turn it off


class Above:
    """The numbers above a limit."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and value > self._limit


class Section(BaseModel):
    """A table of a config file.

    ``owners`` maps a deciding key to the keys that have no effect for some of its values, and are refused.
    A file may give them their defaults, as a whole config has every key. The command line may do so only to
    undo what a config sets.
    ``readers`` is the same for keys that are refused only where they are given: on the command line, in a
    chat and in a request. In a file they may wait for another that changes the deciding key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {}
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _usable(cls, value: object, about: ValidationInfo) -> object:
        """Raise ValueError for numbers of a size that float32 lacks, and for texts too long or with NUL."""
        field = cls.model_fields[about.field_name or ""]
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, int) and abs(item) > MAX_SEED:
                raise ValueError(f"must be {_range_text(field, MAX_SEED)}")
            if isinstance(item, float) and abs(item) > MAX_NUMBER:
                raise ValueError(f"must be {_range_text(field, MAX_NUMBER)}")
            if isinstance(item, float) and 0 < abs(item) < MIN_NUMBER:
                raise ValueError(f"must be 0, or not closer to 0 than {MIN_NUMBER:g}")
            if isinstance(item, str) and (len(item) > MAX_TEXT or "\0" in item):
                raise ValueError(f"must have at most {MAX_TEXT:,} characters, and none of them NUL")
        return value

    def changed(self) -> str | None:
        """The first key whose value is not its default."""
        fields = type(self).model_fields
        return next((name for name in fields if getattr(self, name) != fields[name].default), None)

    def unread_with(self, key: str) -> list[str]:
        """The deciding keys whose values leave ``key`` without a reader."""
        return [
            decider
            for decider, readers in self.readers.items()
            if key in readers and getattr(self, decider) not in readers[key].values
        ]

    def misplaced(self, key: str, values: Collection[str]) -> str | None:
        """The first non-default setting that has no effect for any of ``values`` of ``key``."""
        for name, owner in self.owners.get(key, {}).items():
            unset = (type(self).model_fields[name].default, *owner.off)
            if getattr(self, name) not in unset and not any(value in owner.values for value in values):
                return f"{name} belongs to {owner.name}"
        return None

    def lacking(self, key: str) -> str:
        """The owner that ``key`` needs for an effect and that this table lacks. Empty if it lacks none."""
        for decider, owned in self.owners.items():
            value = getattr(self, decider, None)  # cells of dialog models have their kinds in other tables
            if key in owned and value is not None and value not in owned[key].values:
                return owned[key].name
        return ""

    def idle(self) -> Mapping[str, str]:
        """Tables of this config of which nothing is read, each with the reason."""
        return {}

    def unread(self) -> Mapping[str, Sequence[str]]:
        """Keys of this config that nothing reads, each with the keys of other tables that decide so.

        They are refused like those of ``readers``.
        """
        return {}


def _range_text(field: FieldInfo, most: float) -> str:
    """The range of a number in pydantic's words: by the limits of its key, or else of size ``most``."""
    limits = [*field.metadata, *_limits_within(field.annotation)]
    found = {name: getattr(limit, name) for limit in limits for name in _LIMITS if hasattr(limit, name)}
    if not found.keys() & {"gt", "ge"}:
        found["ge"] = -most
    if not found.keys() & {"lt", "le"}:
        found["le"] = most
    texts = {name: f"{found[name]:g}" if isinstance(found[name], float) else found[name] for name in found}
    if texts.keys() == {"ge", "le"}:
        return f"from {texts['ge']} to {texts['le']}"
    return " and ".join(f"{words} {texts[name]}" for name, words in _LIMITS.items() if name in texts)


def _limits_within(annotation: object) -> list[object]:
    """Limits of the parts of a type, such as those of the values of a list."""
    parts = get_args(annotation)
    own = [limit for part in parts if isinstance(part, FieldInfo) for limit in part.metadata]
    return own + [limit for part in parts for limit in _limits_within(part)]


@cache
def known_keys(schema: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Every dotted key of a schema with its field, nested sections included."""
    keys: dict[str, FieldInfo] = {}
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys |= {f"{name}.{key}": inner for key, inner in known_keys(field.annotation).items()}
        else:
            keys[name] = field
    return keys


@cache
def deciding_keys(schema: type[BaseModel]) -> frozenset[str]:
    """Every dotted key of a schema whose value decides if other keys have an effect."""
    return frozenset(f"{name}.{key}" for name, section in _sections(schema).items() for key in section.owners)


@cache
def off_values(schema: type[BaseModel]) -> Mapping[str, object]:
    """Values that turn a key off whose default does not, by dotted key."""
    return {
        f"{name}.{key}": owner.off[0]
        for name, section in _sections(schema).items()
        for owned in section.owners.values()
        for key, owner in owned.items()
        if owner.off
    }


def _sections(schema: type[BaseModel]) -> dict[str, type[Section]]:
    found = {name: field.annotation for name, field in schema.model_fields.items()}
    return {
        name: section
        for name, section in found.items()
        if isinstance(section, type) and issubclass(section, Section)
    }


@cache
def known_tables(schema: type[BaseModel]) -> tuple[str, ...]:
    """Every dotted table of a schema, in order."""
    return tuple(dict.fromkeys(key.rpartition(".")[0] for key in known_keys(schema) if "." in key))
