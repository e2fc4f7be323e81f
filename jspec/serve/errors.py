"""Errors as the OpenAI API has them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping
from typing import Any

from jspec._validate.errors import on_a_screen

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


_LONGEST = 100
"""Letters of a field's name; those that are longer are the client's own."""


class APIError(Exception):
    """An error as the client reads it. It fits a screen, whatever was asked."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(on_a_screen(message))
        self.status = status
        self.param = param if param is None else param[:_LONGEST]
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of it."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else _TYPES[400])
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }
