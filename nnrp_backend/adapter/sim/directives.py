"""The `/sim` language: a user message that scripts what the sim engine does.

    /sim tokens=200 delay_ms=20 first_ms=500 reasoning=10 tool=lookup args={"q":"x"}
         text="two words" error=backend_overload error_after=5 die_after=3 hang=1

Keys come in any order, each at most once. A value is a word, a JSON string, or a JSON object. The
answer has its parts in this order: `reasoning` pieces, `text`, `tokens` pieces, the `tool` call.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from nnrp_backend.profile.errors import ErrorCode, ProfileError

PREFIX: Final = "/sim"

MAX_PIECES: Final = 1_000_000
"""Of text or of reasoning; enough for any load test, and no one stream lasts for ever."""
MAX_DELAY_MS: Final = 3_600_000

DEFAULT_TOKENS: Final = 16
"""Of a script that asks for no other content."""


class Script(NamedTuple):
    """What one `/sim` message asks for. The defaults are those of a message without a script."""

    tokens: int = 0
    """Pieces of text `tok0 tok1 …`."""
    text: str = ""
    """Text of the caller's own, cut into words."""
    reasoning: int = 0
    """Pieces of reasoning before everything else."""
    tool: str | None = None
    """Name of the tool to call at the end, whether or not the request declares it."""
    args: str = "{}"
    """The call's arguments, as the JSON text that was written."""
    delay_ms: int = 0
    """Between two pieces, on steps shared with every stream of the same delay."""
    first_ms: int = 0
    """Before the first piece."""
    error: ErrorCode | None = None
    error_after: int = 0
    """Pieces before the error."""
    die_after: int | None = None
    """Pieces before the whole connection is closed."""
    hang: bool = False
    """Never answer."""


def parse_script(message: str) -> Script | None:
    """Read a user message; None when it is no script.

    Raises:
        ProfileError: `invalid_backend_request`, saying which part is wrong.
    """
    if message != PREFIX and not message.startswith((PREFIX + " ", PREFIX + "\n")):
        return None
    fields = _parse_fields(message[len(PREFIX) :])
    script = Script(**fields)
    if "error_after" in fields and script.error is None:
        script = script._replace(error=ErrorCode.BACKEND_ERROR)
    if "args" in fields and script.tool is None:
        raise _refuse("args needs tool")
    if not fields.keys() & {"tokens", "text", "tool"}:
        # Enough for every fault that is asked for to happen.
        tokens = max(DEFAULT_TOKENS, script.error_after, script.die_after or 0)
        script = script._replace(tokens=tokens)
    return script


_KEY: Final = re.compile(r"\s*([a-z_]+)(=?)")
_WORD: Final = re.compile(r"\S+")
_JSON: Final = json.JSONDecoder()


def _parse_fields(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    position = 0
    while text[position:].strip():
        match = _KEY.match(text, position)
        if match is None:
            raise _refuse(f"no key at {text[position:].strip()[:20]!r}")
        key, has_value = match.groups()
        if key in fields:
            raise _refuse(f"{key} is given twice")
        raw, position = _take_value(text, match.end(), key) if has_value else ("", match.end())
        fields[key] = _convert(key, raw)
    return fields


def _take_value(text: str, start: int, key: str) -> tuple[str, int]:
    """Cut one value out as it was written; return it and where it ends."""
    if text[start : start + 1] in ('"', "{"):
        try:
            _, end = _JSON.raw_decode(text, start)
        except ValueError as error:
            raise _refuse(f"{key} is not valid JSON: {error}") from None
        except RecursionError:
            raise _refuse(f"{key} is nested too deeply") from None
        if text[end : end + 1].strip():
            raise _refuse(f"no space after {key}")
    else:
        match = _WORD.match(text, start)
        if match is None:
            raise _refuse(f"{key} has no value")
        end = match.end()
    return text[start:end], end


def _convert(key: str, raw: str) -> Any:
    convert = _CONVERTERS.get(key)
    if convert is None:
        raise _refuse(f"unknown key {key!r}; the keys are {', '.join(_CONVERTERS)}")
    try:
        return convert(raw)
    except ValueError as error:
        raise _refuse(f"{key}={raw[:40]}: {error}") from None


def _count(limit: int) -> Callable[[str], int]:
    def convert(raw: str) -> int:
        # `int` alone would also take signs, underscores and the digits of every script.
        if not (raw.isascii() and raw.isdigit()) or int(raw) > limit:
            raise ValueError(f"a whole number from 0 to {limit} is expected")
        return int(raw)

    return convert


def _text(raw: str) -> str:
    text = json.loads(raw) if raw.startswith('"') else raw
    if not text:
        raise ValueError("a text is expected")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("half a surrogate pair cannot be sent")
    return str(text)


def _json_object(raw: str) -> str:
    if not raw.startswith("{"):
        raise ValueError("a JSON object is expected")
    return raw


def _error(raw: str) -> ErrorCode:
    if raw in ("", "1"):
        return ErrorCode.BACKEND_ERROR
    try:
        return ErrorCode(raw)
    except ValueError:
        raise ValueError("not an error code of the profile") from None


def _flag(raw: str) -> bool:
    if raw not in ("", "0", "1"):
        raise ValueError("0 or 1 is expected")
    return raw != "0"


_CONVERTERS: Final[dict[str, Callable[[str], Any]]] = {
    "tokens": _count(MAX_PIECES),
    "delay_ms": _count(MAX_DELAY_MS),
    "first_ms": _count(MAX_DELAY_MS),
    "reasoning": _count(MAX_PIECES),
    "tool": _text,
    "args": _json_object,
    "text": _text,
    "error": _error,
    "error_after": _count(MAX_PIECES),
    "die_after": _count(MAX_PIECES),
    "hang": _flag,
}


def _refuse(reason: str) -> ProfileError:
    return ProfileError(ErrorCode.INVALID_BACKEND_REQUEST, f"/sim: {reason}", param="messages")
