"""Read what an engine sent, even where its JSON is broken in ways that can be mended."""

import json
from typing import Any, Final

import msgspec

from nnrp_backend.profile.errors import ErrorCode, ProfileError

_decode: Final = msgspec.json.Decoder().decode


def decode_answer(data: bytes) -> tuple[dict[str, Any], bool]:
    """Decode an engine's chunk or whole answer.

    Returns:
        The object, and whether its bytes are unfit to be sent on: not one line of valid UTF-8.

    Raises:
        ProfileError: it is an error body, or no JSON object.
    """
    unfit = b"\n" in data or b"\r" in data
    try:
        tree = _decode(data)
    except (msgspec.DecodeError, RecursionError):
        tree, unfit = _mended(data), True
    if not isinstance(tree, dict):
        raise malformed()
    if tree.get("error"):
        raise ProfileError.from_backend(tree["error"])
    return tree, unfit


def malformed() -> ProfileError:
    """Return the error for an answer that is not of the chat family."""
    return ProfileError(
        ErrorCode.BACKEND_ERROR, "The engine sent something that is no chat answer."
    )


def _mended(data: bytes) -> Any:
    # Bad UTF-8, lone surrogates, bare control characters and NaN: Python's parser can be told to
    # take each of them, and the second pass proves that nothing of the kind is left.
    try:
        tree = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=_null)
        return _decode(json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise malformed() from None


def _null(_: str) -> None:
    return None
