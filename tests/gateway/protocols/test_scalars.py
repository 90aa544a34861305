from typing import Any

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gateway.protocols.scalars import Int64, NullIsFalse, UInt8, UInt32

STRICT = ConfigDict(strict=True)


@pytest.mark.parametrize(
    ("scalar", "low", "high"),
    [(UInt8, 0, 2**8 - 1), (UInt32, 0, 2**32 - 1), (Int64, -(2**63), 2**63 - 1)],
)
def test_the_width_of_integers(scalar: Any, low: int, high: int) -> None:
    adapter = TypeAdapter(scalar, config=STRICT)
    assert adapter.validate_python(low) == low
    assert adapter.validate_python(high) == high
    for bad in (low - 1, high + 1, 1.0, "1", True, None):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)


def test_null_is_false_and_nothing_else_is() -> None:
    adapter = TypeAdapter(NullIsFalse, config=STRICT)
    assert adapter.validate_python(None) is False
    assert adapter.validate_python(True) is True
    for bad in (0, 1, "", "false"):
        with pytest.raises(ValidationError):
            adapter.validate_python(bad)
