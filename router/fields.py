"""What a setting's value may be, for pydantic: checked kinds and units, and the model that all sections are."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import CoreSchema, core_schema

from router import redisurl, values
from router.values import Endpoint, Kind

_UNITLESS = BeforeValidator(values.unitless)
Duration = Annotated[float, Kind.DURATION, BeforeValidator(values.duration)]
MaybeDuration = Annotated[
    float | None, Field(gt=0, le=7 * 86_400), Kind.DURATION, BeforeValidator(values.maybe_duration)
]
Size = Annotated[int, Kind.SIZE, BeforeValidator(values.size)]
Listen = Annotated[Endpoint, Kind.ADDRESS, BeforeValidator(values.address)]
Workers = Annotated[int, Kind.WORKERS, BeforeValidator(values.workers)]
Url = Annotated[str, Kind.URL, BeforeValidator(values.url)]
RedisAddress = Annotated[str | None, Kind.REDIS, BeforeValidator(redisurl.check)]
Integer = Annotated[int, _UNITLESS]
Number = Annotated[float, _UNITLESS, Field(allow_inf_nan=False)]
MaybeInteger = Annotated[int | None, Field(gt=0), _UNITLESS]
MaybeNumber = Annotated[float | None, Field(gt=0, allow_inf_nan=False), _UNITLESS]
MaybeShare = Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False), _UNITLESS]
MaybeHost = Annotated[str | None, BeforeValidator(values.host)]
RequestPath = Annotated[str, Field(pattern="^/[^?#]*$")]


class OneOf:
    """In an annotation of `str` or `str | None`: a word out of `words`, where another module names them. Otherwise
    Literal says it."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        words = core_schema.literal_schema(list(self.words))
        return words if source is str else core_schema.nullable_schema(words)


class Model(BaseModel):
    """`text` and `example` (the name of an item) are for the manual, `shorthand` is the child of a plain value."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)
    text: ClassVar[str]
    example: ClassVar[str] = ""
    shorthand: ClassVar[str | None] = None
