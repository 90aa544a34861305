"""Scalar types that several APIs share. Strictness comes from the models' configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

__all__ = ["Int64", "NullIsFalse", "UInt8", "UInt32"]

#: The integer widths of the published types. Narrower bounds are the engine's business.
UInt8 = Annotated[int, Field(ge=0, le=2**8 - 1)]
UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


def _null_is_false(value: Any) -> Any:
    return False if value is None else value


#: A flag for which some clients write null when they mean "no".
NullIsFalse = Annotated[bool, BeforeValidator(_null_is_false)]
