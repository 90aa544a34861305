"""Which tool the sim engine calls, and with what arguments."""

import re
from typing import NamedTuple

import msgspec

from nnrp_backend.adapter.sim.request import ChatRequest, Function, NamedChoice, refuse
from nnrp_backend.adapter.sim.schema import SchemaError, generate


class ToolCall(NamedTuple):
    """A call of one function."""

    name: str
    arguments: str
    """JSON text."""


def choose_call(request: ChatRequest) -> ToolCall | None:
    """Return the call that the request asks for, with arguments that satisfy its schema.

    `required` calls the first function, a named choice its own, and `auto`, the default, one that
    the last message names when that is the user's.

    Raises:
        ProfileError: the choice cannot be met.
    """
    functions = request.functions
    match request.tool_choice:
        case "none":
            return None
        case "auto" | None:
            function = _named_by_user(request)
        case "required":
            function = next(iter(functions.values()), None)
            if function is None:
                raise refuse("tool_choice needs tools", param="tool_choice")
        case NamedChoice(function=chosen):
            function = functions.get(chosen.name)
            if function is None:
                raise refuse(f"tool_choice names {chosen.name!r}, which is not in tools",
                             param="tool_choice")  # fmt: skip
    return None if function is None else ToolCall(function.name, _arguments(function))


def _named_by_user(request: ChatRequest) -> Function | None:
    # After a tool's own message its result is to be answered, or agents would never end.
    if not request.functions or request.messages[-1].role != "user":
        return None
    text = request.messages[-1].text()
    for name, function in request.functions.items():
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
            return function
    return None


def _arguments(function: Function) -> str:
    if not function.parameters:
        return "{}"
    try:
        arguments = generate(function.parameters)
    except SchemaError as error:
        raise refuse(f"parameters of {function.name}: {error}", param="tools") from None
    if not isinstance(arguments, dict):
        raise refuse(f"parameters of {function.name} describe no object", param="tools")
    return msgspec.json.encode(arguments).decode()
