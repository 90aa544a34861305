"""`GET /v1/models` and `GET /v1/models/{id}`: the responses."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["Model", "ModelList"]


class Model(BaseModel):
    """A model card. Members that only an engine knows (`max_model_len`, `root`) are kept."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = ""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]
