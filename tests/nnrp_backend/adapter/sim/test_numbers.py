import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnrp_backend.adapter.sim.numbers import choose_number


@pytest.mark.parametrize(
    ("schema", "integer", "chosen"),
    [
        ({}, True, 1),
        ({}, False, 1),
        ({"maximum": 0}, True, 0),
        ({"minimum": 2}, True, 2),
        ({"minimum": 2.5}, True, 3),
        ({"exclusiveMinimum": 2}, True, 3),
        ({"minimum": 2, "exclusiveMinimum": 1}, True, 2),
        ({"minimum": 2, "exclusiveMinimum": 2}, True, 3),
        ({"maximum": -2, "exclusiveMaximum": -2}, True, -3),
        ({"multipleOf": 4}, True, 0),
        ({"multipleOf": 4, "minimum": 5}, True, 8),
        ({"multipleOf": 1.5, "minimum": 1}, True, 3),
        ({"multipleOf": 1.5, "minimum": 1}, False, 1.5),
        ({"minimum": 2.5}, False, 2.5),
        ({"exclusiveMinimum": 2.5}, False, 3.5),
        ({"exclusiveMaximum": -2.5}, False, -3.5),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, False, 0.25),
        ({"minimum": 0.3, "maximum": 0.3}, False, 0.3),
    ],
)
def test_the_plainest_number_within_the_bounds(
    schema: dict[str, float], integer: bool, chosen: float
) -> None:
    found = choose_number(schema, integer=integer)
    assert found == chosen
    assert type(found) is type(chosen)


@pytest.mark.parametrize(
    ("schema", "integer"),
    [
        ({"minimum": 2, "maximum": 1}, False),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, True),
        ({"minimum": 1, "exclusiveMaximum": 1}, False),
        ({"multipleOf": 5, "minimum": 1, "maximum": 4}, True),
        ({"multipleOf": 0}, False),
        ({"multipleOf": -1}, False),
        ({"minimum": "1"}, False),
        ({"exclusiveMinimum": True}, False),
        ({"minimum": float("inf")}, False),
        ({"minimum": 10**400, "multipleOf": 0.3}, False),
        ({"minimum": 10**400}, False),
        ({"maximum": -(10**400)}, False),
        ({"minimum": 10**400, "maximum": 10**400 + 1}, False),
        ({"exclusiveMinimum": 0.1, "exclusiveMaximum": 0.1 + 2**-56}, False),
    ],
)
def test_no_number(schema: dict[str, float], integer: bool) -> None:
    assert choose_number(schema, integer=integer) is None


limits = st.one_of(st.integers(-50, 50), st.floats(-50, 50).map(lambda x: round(x, 2)))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "minimum": limits,
            "maximum": limits,
            "exclusiveMinimum": limits,
            "exclusiveMaximum": limits,
            "multipleOf": st.integers(1, 20),
        },
    ),
    st.booleans(),
)
def test_a_chosen_number_satisfies_and_a_whole_one_is_found_if_there_is_any(
    schema: dict[str, float], integer: bool
) -> None:
    full = {"type": "integer" if integer else "number", **schema}
    validator = jsonschema.Draft202012Validator(full)
    chosen = choose_number(schema, integer=integer)
    if chosen is not None:
        assert validator.is_valid(chosen)
    else:
        assert not any(validator.is_valid(number) for number in range(-51, 71))
