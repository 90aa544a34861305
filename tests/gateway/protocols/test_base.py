import pytest
from pydantic import ValidationError

from gateway.protocols.base import RequestModel


class Thing(RequestModel):
    count: int | None = None
    label: str = "none"


def test_strict_about_types() -> None:
    assert Thing.model_validate({"count": 1}).count == 1
    with pytest.raises(ValidationError):
        Thing.model_validate({"count": "1"})


def test_unknown_members_are_neither_refused_nor_kept() -> None:
    assert Thing.model_validate({"other": 1}).canonical() == {"label": "none"}


def test_null_is_left_out_of_the_canonical_form() -> None:
    assert Thing.model_validate({"count": None}).canonical() == {"label": "none"}
    assert Thing.model_validate({"count": 0}).canonical() == {"count": 0, "label": "none"}
