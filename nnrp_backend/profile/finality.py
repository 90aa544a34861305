"""What makes a chat chunk or completion final: sendable to any OpenAI client as it is.

All functions edit a decoded JSON tree in place and say whether they changed it, so that callers
can keep the original bytes when nothing had to change.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.errors import ErrorCode, ProfileError

FINISH_REASONS: Final = frozenset(
    {"stop", "length", "tool_calls", "content_filter", "function_call"}
)
"""All that clients accept: some raise on any other word, some pass it on to users."""

CUT_REASONS: Final = ("abort", "error")
"""The engine gave up on the choice. No finish reason may claim that such an answer ended: the
stream gets an error instead."""

_PRIVATE_REASONS: Final[Mapping[str, str]] = {
    # vLLM: a repetition that the request asked to stop at, as a stop string would.
    "repetition": "stop",
    # TGI
    "eos_token": "stop",
    "stop_sequence": "stop",
    # engines that speak Anthropic's words
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def finish_reason(reason: Any) -> str:
    """Map an engine's finish reason to one of OpenAI's; what is unknown counts as `stop`.

    A call cut off by the token limit stays `length`: its arguments are not complete.
    """
    if not isinstance(reason, str):
        return "stop"
    return reason if reason in FINISH_REASONS else _PRIVATE_REASONS.get(reason, "stop")


def cut_short(reason: Any) -> ProfileError:
    """Return the error for a choice that ended for one of `CUT_REASONS`."""
    if reason == "abort":
        return ProfileError(ErrorCode.BACKEND_CANCELLED, "The engine aborted the request.")
    return ProfileError(ErrorCode.BACKEND_ERROR, "The engine failed during generation.")


def finish_choice(choice: dict[str, Any]) -> bool:
    """Map the finish reason and write OpenAI's two nullable members; drop all other nulls."""
    changed = drop_nulls(choice, keep=("logprobs", "finish_reason"))
    for member in ("logprobs", "finish_reason"):
        if member not in choice:
            choice[member] = None
            changed = True
    theirs = choice["finish_reason"]
    if theirs == "":  # some engines' word for "not yet"
        choice["finish_reason"] = None
        changed = True
    elif theirs is not None and (ours := finish_reason(theirs)) != theirs:
        # What the engine meant stays readable where vLLM puts such detail.
        choice.setdefault("stop_reason", theirs)
        choice["finish_reason"] = ours
        changed = True
    if isinstance(choice["logprobs"], dict):
        changed |= finish_logprobs(choice["logprobs"])
    return changed


def finish_logprobs(logprobs: dict[str, Any]) -> bool:
    """Write the members that OpenAI requires; vLLM leaves out those it did not set."""
    changed = fill(logprobs, {"content": None, "refusal": None})
    for token in (*_objects(logprobs["content"]), *_objects(logprobs["refusal"])):
        changed |= fill(token, {"logprob": -9999.0, "bytes": None, "top_logprobs": []})
        for alternative in _objects(token["top_logprobs"]):
            changed |= fill(alternative, {"bytes": None})
    return changed


def finish_message(message: dict[str, Any]) -> bool:
    """Write the nullable members of a whole message, and no text where there is none.

    An engine that streams cannot tell "no text" from "empty text", and vLLM says either for a
    message that only calls tools. OpenAI says null there.
    """
    changed = drop_nulls(message, keep=("content", "refusal"))
    changed |= fill(message, {"content": None, "refusal": None})
    if message["content"] == "" and any(
        message.get(key) for key in ("tool_calls", "reasoning", "reasoning_content")
    ):
        message["content"] = None
        changed = True
    return changed


def finish_reasoning(message: dict[str, Any], options: ChunkOptions) -> bool:
    """Put reasoning text under the key, or both keys, that the client reads."""
    theirs = message.get("reasoning"), message.get("reasoning_content")
    text = theirs[0] if theirs[0] is not None else theirs[1]
    if text is None:
        return False  # nulls are dropped elsewhere
    wanted = (
        text if options.reasoning != "reasoning_content" else None,
        text if options.reasoning != "reasoning" else None,
    )
    if wanted == theirs:
        return False
    for key, value in zip(("reasoning", "reasoning_content"), wanted, strict=True):
        message.pop(key, None)
        if value is not None:
            message[key] = value
    return True


def finish_usage(usage: dict[str, Any]) -> bool:
    """Drop the nulls: OpenAI leaves out token details that it does not have."""
    changed = drop_nulls(usage)
    for details in usage.values():
        if isinstance(details, dict):
            changed |= drop_nulls(details)
    return changed


def drop_nulls(tree: dict[str, Any], keep: Collection[str] = ()) -> bool:
    """Remove the members that are null, except those to keep."""
    if None not in tree.values():
        return False
    doomed = [key for key, value in tree.items() if value is None and key not in keep]
    for key in doomed:
        del tree[key]
    return bool(doomed)


def fill(tree: dict[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Add the members that are missing."""
    missing = [key for key in defaults if key not in tree]
    for key in missing:
        tree[key] = defaults[key]
    return bool(missing)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
