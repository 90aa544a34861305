"""Make an engine's whole chat answer final, by the same rules as its chunks."""

from typing import Any, Final

import msgspec

from nnrp_backend.profile.decoding import decode_answer, malformed
from nnrp_backend.profile.envelope import ChunkOptions
from nnrp_backend.profile.finality import (
    CUT_REASONS,
    cut_short,
    drop_nulls,
    fill,
    finish_choice,
    finish_message,
    finish_reasoning,
    finish_usage,
)
from nnrp_backend.profile.tool_calls import arguments_text

_encode: Final = msgspec.json.Encoder().encode


def finalize_completion(body: bytes | dict[str, Any], options: ChunkOptions | None = None) -> bytes:
    """Return a `chat.completion` as clients may see it, on one line of valid UTF-8.

    Bytes that are final already come back as they are.

    Raises:
        ProfileError: the engine answered an error, aborted, or sent no completion.
    """
    options = options or ChunkOptions()
    data = body if isinstance(body, bytes) else _encode(body)
    tree, changed = decode_answer(data)
    choices = tree.get("choices")
    if not isinstance(choices, list):
        raise malformed()
    for choice in choices:
        changed |= _finish_whole_choice(choice, options)
    if options.model is not None and tree.get("model") != options.model:
        tree["model"] = options.model
        changed = True
    if tree.get("object") != "chat.completion":
        tree["object"] = "chat.completion"
        changed = True
    if isinstance(tree.get("usage"), dict):
        changed |= finish_usage(tree["usage"])
    changed |= drop_nulls(tree)
    return _encode(tree) if changed else data


def _finish_whole_choice(choice: Any, options: ChunkOptions) -> bool:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise malformed()
    if choice.get("finish_reason") in CUT_REASONS:
        raise cut_short(choice["finish_reason"])
    changed = finish_choice(choice)
    changed |= fill(message, {"role": "assistant"})
    changed |= finish_reasoning(message, options)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        for call in calls:
            changed |= _finish_whole_call(call)
    elif "tool_calls" in message:
        del message["tool_calls"]
        changed = True
    return finish_message(message) or changed


def _finish_whole_call(call: Any) -> bool:
    if not isinstance(call, dict):
        raise malformed()
    changed = drop_nulls(call) | fill(call, {"type": "function"})
    function = call.get("function")
    if isinstance(function, dict) and not isinstance(function.get("arguments"), str):
        function["arguments"] = arguments_text(function.get("arguments"))
        changed = True
    return changed
