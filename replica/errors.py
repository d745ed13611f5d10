"""What a request can do wrong, in the shape in which vLLM says so.

One exception for all refusals; `body` is vLLM's OpenAI error shape.
"""

from typing import Final

_KINDS: Final = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class BadRequestError(Exception):
    """A request that vLLM would refuse. `status` 400 or 404; `param` names the field at fault, if one is."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def error_body(message: str, status: int, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": _KINDS[status], "param": param, "code": status}}
