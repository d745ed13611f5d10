"""What a request can do wrong, in the shapes in which vLLM says so.

One exception for all refusals. `error_body` is vLLM's OpenAI shape, `anthropic_error_body` the one of its Messages API.
"""

from collections.abc import Callable
from typing import Final

ErrorShape = Callable[[str, int, str | None, str | None], dict[str, object]]
"""message, status, param, kind -> the body of the answer."""

_KINDS: Final = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class BadRequestError(Exception):
    """A request that vLLM would refuse. `status` 400 or 404; `param` names the field at fault, if one is.

    `kind` is the error's type where vLLM does not derive it from the status.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400, kind: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = kind


def error_body(message: str, status: int, param: str | None = None, kind: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind or _KINDS[status], "param": param, "code": status}}


def anthropic_error_body(
    message: str, status: int, param: str | None = None, kind: str | None = None
) -> dict[str, object]:
    """`param` has no place in it. The type is vLLM's, not one of Anthropic's."""
    return {"type": "error", "error": {"type": kind or _KINDS[status], "message": message}}
