"""What all request types have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["RequestModel"]


class RequestModel(BaseModel):
    """A request type: strict about the types it knows, silent about members it does not.

    Unknown members are neither refused nor kept. What reaches the engine is the client's own JSON,
    not a model written out again, so nothing is lost here.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    def canonical(self) -> dict[str, Any]:
        """Return the request in its canonical form: aliases resolved, null members left out."""
        return self.model_dump(exclude_none=True)
