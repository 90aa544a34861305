"""What is wrong with a request, before anything knows how to say it in HTTP."""

from __future__ import annotations

__all__ = ["InvalidRequest"]


class InvalidRequest(Exception):
    """Raise when a request body is not what its API defines.

    Attributes:
        message: one sentence for the user.
        code: `json_invalid`, `json_too_deep`, `duplicate_field`, `missing_required_parameter`,
            `invalid_type` or `invalid_value`.
        param: path of the offending member, as `messages[0].content`; None for the whole body.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
