"""Log probabilities for tokens that no model chose: made up, but always the same."""

from typing import Any
from zlib import crc32


def token_logprobs(tokens: tuple[str, ...], top: int) -> dict[str, Any]:
    """Return the `logprobs` object of some tokens, each with its `top` likeliest alternatives."""
    return {"content": [_entry(token, top) for token in tokens], "refusal": None}


def _entry(token: str, top: int) -> dict[str, Any]:
    # In (-1, 0], and the token itself is the likeliest.
    logprob = -(crc32(token.encode()) % 1000) / 1000
    alternatives = [
        _token(token if rank == 0 else f"{token}~{rank}", logprob - rank) for rank in range(top)
    ]
    return {**_token(token, logprob), "top_logprobs": alternatives}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
