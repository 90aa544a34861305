"""From pydantic's findings to the one sentence an API user can act on.

OpenAI's API reports one problem, with a path in `param` and a code. Pydantic lists everything that
it tried, and its locations name union branches that no user wrote. Both are straightened out here,
on the error path alone, so that a good request pays nothing for it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.protocols.errors import InvalidRequest

__all__ = ["checked"]

M = TypeVar("M", bound=BaseModel)
Path: TypeAlias = tuple[str | int, ...]

#: Pydantic's "not this type" findings, and how to name the type.
_TYPES: Final = {
    "bool_type": "a boolean",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_type": "an integer",
    "list_type": "an array",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "none_required": "null",
    "string_type": "a string",
}

_NAMES: Final = {
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "an array",
    str: "a string",
    type(None): "null",
}

#: Where the members that only one role of chat message may carry belong.
_ROLE_OF: Final = {"tools": "system", "partial": "assistant"}


def checked(model: type[M], value: dict[str, Any]) -> M:
    """Validate a parsed body.

    Raises:
        InvalidRequest: about one member that is wrong, the first in the order of the model.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False), value) from None


def _refusal(errors: list[ErrorDetails], body: dict[str, Any]) -> InvalidRequest:
    located = [(_path(error, body), error) for error in errors]
    member = located[0][0][:2]
    # The branches of a union fail in one member. The deepest finding is about the branch that the
    # user meant: its outer shape was right.
    path = max((path for path, _ in located if path[:2] == member), key=len)
    return _sentence(path, [error for other, error in located if other == path], body)


def _path(error: ErrorDetails, body: Any) -> Path:
    """Return where the finding is, without union tags: the steps that lead nowhere in `body`."""
    path: list[str | int] = []
    here = body
    for step in error["loc"]:
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(step)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    elif error["type"].startswith("union_tag"):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def _sentence(path: Path, errors: list[ErrorDetails], body: dict[str, Any]) -> InvalidRequest:
    param = _spell(path)
    error = errors[0]
    kind = error["type"]
    if kind == "none_required" and path[-1] in _ROLE_OF:
        return InvalidRequest(_misplaced(path, body), code="invalid_value", param=param)
    if kind in ("missing", "union_tag_not_found"):
        message = f"Missing required parameter: '{param}'."
        return InvalidRequest(message, code="missing_required_parameter", param=param)
    if kind.startswith("missing_"):
        return InvalidRequest(error["msg"], code="missing_required_parameter", param=param)
    if kind == "duplicate_field":
        return InvalidRequest(error["msg"], code=kind, param=param)
    wanted = dict.fromkeys(_TYPES[error["type"]] for error in errors if error["type"] in _TYPES)
    if all(error["type"] in _TYPES for error in errors):
        given = _NAMES.get(type(error["input"]), "something else")
        message = f"expected {' or '.join(wanted)}, but got {given} instead"
        return InvalidRequest(
            f"Invalid type for '{param}': {message}.", code="invalid_type", param=param
        )
    return InvalidRequest(
        f"Invalid value for '{param}': {_expectation(error)}.", code="invalid_value", param=param
    )


def _expectation(error: ErrorDetails) -> str:
    match error["type"]:
        case "literal_error":
            return f"expected {error['ctx']['expected']}"
        case "union_tag_invalid":
            return f"expected one of {error['ctx']['expected_tags']}"
        case "string_pattern_mismatch":
            return f"it is not a well-formed {error['loc'][-1]}"
    message = error["msg"]
    return message[:1].lower() + message[1:]


def _misplaced(path: Path, body: Any) -> str:
    member = path[-1]
    message = body
    for step in path[:-1]:
        message = message[step]
    only = _ROLE_OF[str(member)]
    return f"`{member}` is only accepted on {only} messages, not on role {message['role']}"


def _spell(path: Path) -> str:
    spelled = ""
    for step in path:
        spelled += f"[{step}]" if isinstance(step, int) else f".{step}" if spelled else step
    return spelled
