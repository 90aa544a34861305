"""Names that the profile gives to itself and to its operations (profile sections 1, 5 and 13)."""

from typing import Final

PROFILE: Final = "openai-compatible"
SCHEMA_VERSION: Final = "openai-compatible/1"

CHAT: Final = "chat.completions.create"
RESPONSES: Final = "responses.create"
MODELS_LIST: Final = "models.list"
EMBEDDINGS: Final = "embeddings.create"

# Operation names are free strings that the capability document advertises. The following are
# no part of any level; an adapter that serves them declares each as an extension.
COMPLETIONS: Final = "completions.create"
MESSAGES: Final = "messages.create"
RERANK: Final = "rerank.create"
SCORE: Final = "score.create"
TOKENIZE: Final = "tokenize"
DETOKENIZE: Final = "detokenize"

LEVEL_OF: Final[dict[str, int]] = {CHAT: 1, RESPONSES: 2, MODELS_LIST: 3, EMBEDDINGS: 3}
"""Compatibility level that brings each operation (profile section 4)."""

CHUNKS_FINAL: Final = "openai_chunk.final"
"""Extension: every `openai_chunk` of this worker may be sent on as it is."""
