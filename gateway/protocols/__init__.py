"""Request and response types of the public APIs. Imports nothing else of this project."""

from gateway.protocols.chat import ChatRequest
from gateway.protocols.errors import InvalidRequest
from gateway.protocols.json import DEFAULT_MAX_DEPTH, parse_object
from gateway.protocols.models import Model, ModelList
from gateway.protocols.validation import checked

__all__ = [
    "DEFAULT_MAX_DEPTH",
    "ChatRequest",
    "InvalidRequest",
    "Model",
    "ModelList",
    "checked",
    "parse_object",
]
