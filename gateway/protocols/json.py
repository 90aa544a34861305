"""Parse request bodies: what every API of the gateway refuses in JSON, refused in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import jiter

from gateway.protocols.errors import InvalidRequest

__all__ = ["DEFAULT_MAX_DEPTH", "parse_object"]

#: Objects and arrays inside each other. Real requests stay under 20 (tool schemas are the deepest);
#: the bound spares every recursive walk behind the gateway the question.
DEFAULT_MAX_DEPTH: Final = 64

#: A key is the user's own text, but an answer need not repeat a megabyte of it.
MAX_SHOWN_KEY: Final = 200

_DUPLICATE = re.compile(r'Detected duplicate key "(.*)" at line \d+ column \d+$', re.DOTALL)
_RECURSION = "recursion limit exceeded"


def parse_object(raw: bytes, *, max_depth: int = DEFAULT_MAX_DEPTH) -> dict[str, Any]:
    """Parse a body that must be a JSON object.

    Duplicate keys are refused: two parsers behind each other that keep different ones would see two
    different requests. NaN and Infinity are refused: they are not JSON.

    Raises:
        InvalidRequest: not JSON, not an object, a duplicate key, or too deep.
    """
    try:
        value = jiter.from_json(raw, catch_duplicate_keys=True, allow_inf_nan=False)
    except ValueError as error:
        raise _refusal(str(error), max_depth) from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_type")
    if is_deeper_than(max_depth, value, raw):
        raise _too_deep(max_depth)
    return value


def is_deeper_than(limit: int, value: Any, raw: bytes) -> bool:
    """Tell whether containers nest more than `limit` levels in `value`, which `raw` spells.

    A body with no more opening brackets than that cannot, and counting bytes is cheap where it
    matters: megabytes of image in a handful of objects. Any other body is walked level by level.
    """
    if raw.count(b"{") + raw.count(b"[") <= limit:
        return False
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for container in level
            for child in _children(container)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _children(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container


def _refusal(reason: str, max_depth: int) -> InvalidRequest:
    if duplicate := _DUPLICATE.match(reason):
        return InvalidRequest(
            f"duplicate field `{duplicate[1][:MAX_SHOWN_KEY]}`", code="duplicate_field"
        )
    if reason.startswith(_RECURSION):
        return _too_deep(max_depth)
    return InvalidRequest(f"The request body is not valid JSON: {reason}.", code="json_invalid")


def _too_deep(max_depth: int) -> InvalidRequest:
    message = f"The request body nests objects and arrays more than {max_depth} levels deep."
    return InvalidRequest(message, code="json_too_deep")
