"""What a case-results document looks like, written anew from the public suite's description."""

from typing import Any

_OUTCOMES = ["passed", "failed", "skipped"]
_TERMINALS = ["success", "error", "cancelled"]

_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"type": "string"}},
}

_RESULT: dict[str, Any] = {
    "type": "object",
    "required": ["id", "outcome", "terminal"],
    "properties": {
        "id": {"type": "string"},
        "outcome": {"enum": _OUTCOMES},
        "terminal": {"enum": _TERMINALS},
        "events": {"type": "array", "items": _EVENT},
        "diagnostics": {"type": "object"},
        "message": {"type": "string"},
    },
    "additionalProperties": False,
}

CASE_RESULTS: dict[str, Any] = {
    "type": "object",
    "required": ["profile", "schema_version", "adapter", "results"],
    "properties": {
        "$schema": {"type": "string"},
        "profile": {"const": "openai-compatible"},
        "schema_version": {"const": "openai-compatible/1"},
        "adapter": {"type": "string", "minLength": 1},
        "results": {"type": "array", "items": _RESULT},
    },
    "additionalProperties": False,
}
